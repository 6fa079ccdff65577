from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cirron_otel.collector.service.config_file import ConfigError, load_options
from cirron_otel.collector.service.options import CollectorOptions
from cirron_otel.collector.service.options_tree import leaves, secrets_of, tree_of
from cirron_otel.collector.service.validation import table

from . import tables
from .configs import (
    GOOD,
    load,
    options,
    problems,
    tree_with,
    value_at,
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the files that GOOD names."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("sesame\n")
    (tmp_path / "HEADERS").write_text("# two\nx-a: 1\n\nx-b: 2\n")
    return tmp_path


class TestTheTable:
    @pytest.mark.parametrize("name", tables.TABLES)
    def test_the_document_shows_it(self, name: str) -> None:
        assert tables.written(name) == tables.TABLES[name]()

    def test_the_document_has_every_key_and_no_other(self) -> None:
        assert sorted(tables.documented_keys()) == sorted(GOOD)
        assert sorted(path for path, _ in table()) == sorted(GOOD)

    @pytest.mark.parametrize("path", GOOD)
    def test_each_documented_key_counts(self, here: Path, path: str) -> None:
        value, expected = GOOD[path]
        found = tree_of(options(here, tree_with(path, value)))
        assert str(value_at(found, path)) == expected
        assert expected != str(dict(table())[path].default) or path.endswith(".type")

    @pytest.mark.parametrize("path", GOOD)
    def test_each_key_takes_nothing_for_its_default(self, here: Path, path: str) -> None:
        tree = tree_with(path, None)
        wrong = problems(here, tree)
        is_needed = path.endswith((".type", "grpc.tls.cert", "grpc.tls.key", "http.tls.cert",
                                   "http.tls.key", "otlp].endpoint", "otlp.endpoint"))  # fmt: skip
        is_needed |= path.startswith("exporters[cirron].api_key")
        assert bool(wrong) == is_needed
        assert all("Error" not in each for each in wrong)

    @pytest.mark.parametrize("path", GOOD)
    def test_each_key_rejects_values_of_the_wrong_type(self, here: Path, path: str) -> None:
        (wrong,) = problems(here, tree_with(path, {"x": {}}))
        name = path.replace("[otlp]", "[0]").replace("[cirron]", "[0]")
        assert wrong.startswith("collector.yaml:")
        assert f": {name} is a mapping" in wrong
        assert ": expected " in wrong


class TestMessages:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("receivers:\n  htp: {}", ":2: receivers.htp is not a key here: did you mean http?"),
            ("spool:\n\n  max_byts: 1", ":3: spool.max_byts is not a key here: did you mean"
             " max_bytes?"),
            ("retention_days: 3", ":1: retention_days is not a key of the collector: did you mean"
             " storage.retention_days or parquet.retention_days?"),
            ("zzz: 1", ":1: zzz is not a key of the collector: expected spool, receivers, limits,"
             " dedup, storage, blobs, parquet, exporters, health, metrics, logs, drain_s"),
            ("spool: here", ":1: spool is 'here': expected the keys directory, max_bytes"),
            ("exporters: {type: otlp}", ":1: exporters is a mapping: expected a list of exporters,"
             " each with a type"),
            ("exporters:\n- {type: oltp}", ":2: exporters[0].type is 'oltp': expected otlp or"
             " cirron"),
            ("exporters:\n- 5", ":2: exporters[0] is 5: expected a mapping with a type and an"
             " endpoint"),
            ("exporters:\n- type: cirron\n  api_key: k\n  tenant: x",
             ":4: exporters[0].tenant is not a key of an exporter of type cirron: did you mean"
             " exporters[otlp].tenant?"),
            ("logs:\n  level: loud", ":2: logs.level is 'loud': expected one of debug, info,"
             " warning, error"),
            ("- 1", " is a list: expected the keys spool, receivers, limits, dedup, storage, blobs,"
             " parquet, exporters, health, metrics, logs, drain_s"),
            ("a: [", ":1 is not YAML: expected the node content, but found '<stream end>'"),
            ("spool: {}\nlogs: {}\nspool: {}", ":3: spool is repeated"),
            ("logs: {level: info, level: info}", ":1: logs.level is repeated"),
            ("drain_s: ${NOPE}", ":1: drain_s names the variable NOPE, which is not set: set it, or"
             " write ${NOPE:-} for an empty value"),
        ],
    )  # fmt: skip
    def test_messages_give_the_location_the_problem_and_the_fix(
        self, here: Path, text: str, expected: str
    ) -> None:
        assert problems(here, text) == [f"collector.yaml{expected}"]

    def test_all_problems_are_reported_together(self, here: Path) -> None:
        text = "spool: {max: 1}\ndrain_s: -1\nlogs: {level: x, format: y}\nlimits: {a: ${B}}"
        text = text.replace("${B}", '"${B}"')
        assert len(problems(here, text)) == 6

    def test_a_wrong_flag_is_named(self, here: Path) -> None:
        (wrong,) = problems(here, "", grpc="nowhere")
        assert wrong.startswith("--grpc is 'nowhere': expected HOST:PORT")

    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (Path.exists, "cannot be read: No such file"),
            (Path.mkdir, "cannot be read: Is a directory"),
            (lambda file: file.write_bytes(b"\xff"), "is not UTF-8"),
            (lambda file: file.write_bytes(b"#" * 1_000_001), "is larger than 1,000,000 bytes"),
            (lambda file: file.write_text("[" * 100_000), "is nested too deep"),
            (lambda file: file.write_text("a: &a\n" + "b: *a\n" * 200), "more than 100 aliases"),
            (lambda file: file.write_text("a: 2001-99-99"), "is not YAML"),
            (lambda file: file.write_text("a: !!python/object:os.system x"), "is not YAML"),
            (lambda file: file.write_text("a: 1\n--- \nb: 2"), "is not YAML"),
        ],
    )
    def test_unreadable_or_invalid_file_is_a_config_error(
        self, here: Path, make: Any, words: str
    ) -> None:
        file = here / "wrong.yaml"
        make(file)
        with pytest.raises(ConfigError) as caught:
            load_options(file, environ={})
        assert words in str(caught.value)
        assert caught.value.exit_code == 2


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["${A}", "${B:-x}", "off", "1:2", "[::1]:1", "http://x", "FILE", "s3://"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=8) | st.sampled_from(["type", "cert"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)
ANY = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)


class TestAnything:
    @ANY
    @given(st.lists(st.tuples(st.sampled_from(sorted(GOOD)), VALUES), max_size=3))
    def test_any_values_of_keys_are_taken_or_refused(
        self, here: Path, pairs: list[tuple[str, Any]]
    ) -> None:
        tree: dict[str, Any] = {}
        for path, value in pairs:
            tree |= tree_with(path, value)
        self.refused_or_taken(here, yaml.safe_dump(tree))

    @ANY
    @given(st.text(st.sampled_from("spool:{}[]&*a-\n \"'$!|>%@`,?#<<~0"), max_size=60))
    def test_any_text_is_taken_or_refused(self, here: Path, text: str) -> None:
        self.refused_or_taken(here, text)

    @ANY
    @given(st.dictionaries(st.sampled_from(["A", "B", "HOME"]), st.text(max_size=30)))
    def test_any_variable_is_taken_or_refused(self, here: Path, environ: dict[str, str]) -> None:
        text = "receivers: ${A:-}\nspool: {directory: '${B:-x}'}\nexporters: ${B:-[]}\n"
        for wrong in problems(here, text, environ):
            assert "\n" not in wrong

    @pytest.mark.parametrize(
        "text",
        [
            "exporters: &a [*a]",
            "spool: &a {directory: *a}",
            "receivers: &a {auth: {tokens: [*a]}}",
            "storage: &a {context: *a}",
            "x: &x [a, a]\ny: &y [*x, *x]\nexporters: [*y, *y]",
        ],
    )
    def test_recursive_or_expanding_aliases_are_refused(self, here: Path, text: str) -> None:
        assert problems(here, text)

    def refused_or_taken(self, here: Path, text: str) -> None:
        try:
            found = load(here, text, {"A": "1"})
        except ConfigError as error:
            told: tuple[str, ...] = error.problems
            assert told
            assert all(each.isprintable() for each in told)
        else:
            assert not any(each is None for _, _, each in leaves(found.options.limits))


class TestVariablesAndFlags:
    @pytest.mark.parametrize("path", [path for path in GOOD if not path.endswith("type")])
    def test_each_key_may_come_from_a_variable(self, here: Path, path: str) -> None:
        value = GOOD[path][0]
        expected = options(here, tree_with(path, value))
        text = ",".join(value) if isinstance(value, list) else str(value)
        found = load(here, tree_with(path, "${V}"), {"V": text}).options
        assert found == expected
        assert yaml.safe_dump(tree_of(found)) == yaml.safe_dump(tree_of(expected))

    def test_a_variable_may_hold_a_section(self, here: Path) -> None:
        text = "exporters: ${OUT}\nreceivers: {auth: {tokens: '${TOKENS}'}}"
        environ = {"OUT": "[{type: otlp, endpoint: 'http://h:1'}]", "TOKENS": "a1,b2"}
        found = load(here, text, environ).options
        assert [each.endpoint for each in found.exporters] == ["http://h:1"]
        assert [each.reveal() for each in found.receivers.auth.tokens] == ["a1", "b2"]

    def test_text_stays_text_in_a_variable(self, here: Path) -> None:
        found = load(here, "storage: {context: {run: '${RUN}'}}", {"RUN": "0123"}).options
        assert found.storage.context.run == "0123"

    def test_a_variable_is_never_shown(self, here: Path) -> None:
        keys = ("drain_s", "logs.level", "blobs.url", "receivers", "exporters", "spool.max_bytes")
        for path in keys:
            names = path.split(".")
            text = "".join(f"{'  ' * at}{name}:\n" for at, name in enumerate(names))
            wrong = problems(here, text.rstrip() + " ${S}", {"S": "se same://u:p@sesame"})
            assert len(wrong) == 1
            assert "same" not in wrong[0]

    def test_flags_override_the_file(self, here: Path) -> None:
        text = "spool: {directory: a}\nreceivers: {grpc: {address: nonsense}, http: {idle_s: 3}}\n"
        found = load(
            here,
            text,
            spool="b",
            grpc="localhost:0",
            http="off",
            storage="sqlite:///x.db",
            blobs="blobs",
            log_level="error",
        ).options
        assert str(found.spool.directory) == "b"
        assert str(found.receivers.grpc.address) == "localhost:0"
        assert found.receivers.http.address is None
        assert found.receivers.http.idle_s == 3
        assert found.storage.url is not None
        assert found.storage.url.reveal() == "sqlite:///x.db"
        assert (found.blobs.url, found.logs.level) == ("blobs", "error")

    def test_a_flag_takes_the_place_of_a_variable_that_is_not_set(self, here: Path) -> None:
        found = load(here, "spool: {directory: '${NOPE}'}", spool="b").options
        assert str(found.spool.directory) == "b"

    def test_a_flag_is_not_expanded(self, here: Path) -> None:
        assert str(load(here, "", {"A": "x"}, spool="${A}").options.spool.directory) == "${A}"

    def test_without_file_and_flags_there_are_the_defaults(self) -> None:
        assert load_options(environ={}).options == CollectorOptions()

    @pytest.mark.parametrize("off", ["off", "'off'", "none", "no", "false"])
    def test_a_receiver_is_off(self, here: Path, off: str) -> None:
        found = options(here, f"receivers: {{grpc: {{address: {off}}}}}")
        assert found.receivers.grpc.address is None


class TestSecrets:
    def everything(self, here: Path) -> CollectorOptions:
        config = {
            "receivers": {"auth": {"tokens": ["sesame-token"]}},
            "storage": {"url": "postgresql://u:sesame%2Fdb@h/db?sslpassword=sesame-ssl"},
            "metrics": {"otlp": {"endpoint": "http://h:1", "headers": {"a": "sesame-push"}}},
            "exporters": [
                {"type": "otlp", "endpoint": "http://localhost:1",
                 "headers": {"Authorization": "Bearer sesame-otlp"}},
                {"type": "cirron", "api_key": "sesame-key"},
            ],
        }  # fmt: skip
        return options(here, config)

    def test_are_shown_nowhere(self, here: Path) -> None:
        found = self.everything(here)
        for shown in (repr(found), str(found), yaml.safe_dump(tree_of(found))):
            assert "sesame" not in shown
        assert "****" in repr(found)

    def test_are_known_to_the_logs(self, here: Path) -> None:
        assert secrets_of(self.everything(here)) >= {
            "sesame-token", "sesame%2Fdb", "sesame/db", "sesame-ssl", "sesame-push",
            "Bearer sesame-otlp", "sesame-otlp", "sesame-key",
        }  # fmt: skip

    @pytest.mark.parametrize("path", [path for path, (_, text) in GOOD.items() if "****" in text])
    def test_wrong_ones_are_not_shown(self, here: Path, path: str) -> None:
        for value in (
            "ses\name",
            ["se same\n"],
            {"k": "ses\name"},
            [{"ses": "ame"}],
            {"a b": "ses"},
        ):
            (wrong,) = problems(here, tree_with(path, value)) or ["none"]
            assert "ses" not in wrong
            assert "****" not in wrong

    def test_a_password_in_a_wrong_url_is_not_shown(self, here: Path) -> None:
        for key in ("blobs.url", "exporters[otlp].endpoint", "storage.url"):
            (wrong,) = problems(here, tree_with(key, "ftp://user:sesame@host/x"))
            assert "sesame" not in wrong


class TestPrinting:
    def test_printed_configuration_parses_to_the_same_options(self, here: Path) -> None:
        tree: dict[str, Any] = {}
        for path, (value, shown) in GOOD.items():
            if "*" not in shown and "exporters" not in path and "storage.url" not in path:
                merge(tree, tree_with(path, value))
        tree["exporters"] = [{"type": "otlp", "endpoint": "http://h:1", "protocol": "http/json"}]
        found = options(here, tree)
        assert options(here, tree_of(found)) == found
        assert options(here, tree_of(CollectorOptions())) == CollectorOptions()

    def test_disabled_receiver_is_printed_as_off(self, here: Path) -> None:
        found = options(here, "receivers: {grpc: {address: off}}")
        assert tree_of(found)["receivers"]["grpc"]["address"] == "off"
        assert options(here, tree_of(found)) == found


def merge(tree: dict[str, Any], more: dict[str, Any]) -> None:
    for name, value in more.items():
        if isinstance(value, dict) and isinstance(tree.get(name), dict):
            merge(tree[name], value)
        else:
            tree[name] = value
