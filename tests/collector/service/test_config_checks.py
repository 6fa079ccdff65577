"""What keys must be to each other, what is unwise, and what a reload may take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from cirron_otel.collector.service.exporter_options import CirronExporter, OtlpExporter
from cirron_otel.collector.service.options_tree import diff
from cirron_otel.collector.service.targets import api_key, name_of, otlp_config
from cirron_otel.collector.service.validation import table
from cirron_otel.core.targets.cirron.batches import CirronTarget
from cirron_otel.core.targets.otlp.config import OtlpCompression, OtlpProtocol

from .configs import (
    GOOD,
    load,
    options,
    problems,
    tree_with,
)

OTLP = "exporters: [{type: otlp, endpoint: 'https://h:4317', %s}]"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("sesame\n")
    (tmp_path / "TWO").write_text("sesame\nsesame\n")
    (tmp_path / "BINARY").write_bytes(b"\xff\xfe")
    (tmp_path / "LARGE").write_bytes(b"a" * 70_000)
    (tmp_path / "HEADERS").write_text("X-A: 1\n")
    return tmp_path


class TestProblems:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("receivers: {grpc: {address: off}, http: {address: off}}", "receivers are all off"),
            ("receivers: {grpc: {address: 'h:1'}, http: {address: 'h:1'}}", "expected two ports"),
            ("limits: {in_flight_bytes: 1MiB}", "in_flight_bytes is 1,048,576: expected at least"),
            ("limits: {journal_bytes: 1MiB}", "journal_bytes is 1,048,576: expected at least"),
            ("spool: {max_bytes: 10MB}", "max_bytes is 10,000,000: expected at least 276,824,064"),
            ("limits: {journal_bytes: 8MiB, request_bytes: 1MiB}", "expected at least 33,554,432"),
            ("limits: {journal_bytes: 40MiB, request_bytes: 40MiB}",
             "expected at least 84,019,200, twice the larger of 16,777,216"),
            ("limits: {request_bytes: 2GiB}", "from 1024 to 2147483647"),
            ("receivers: {auth: {tokens_file: none-such}}", "tokens_file names 'none-such', which"
             " cannot be read: No such file"),
            ("receivers: {http: {tls: {cert: FILE, key: .}}}", "key names '.', which cannot be"),
            ("receivers: {headers: {pass: [Authorization]}}", "none of which carries credentials"),
            ("exporters: [{type: cirron}]", "has neither of api_key and api_key_file"),
            ("exporters: [{type: cirron, api_key: a, api_key_file: FILE}]", "has both of"),
            ("exporters: [{type: cirron, api_key_file: TWO}]", "TWO has 2 lines"),
            ("exporters: [{type: cirron, api_key_file: BINARY}]", "BINARY is not UTF-8"),
            ("exporters: [{type: cirron, api_key_file: LARGE}]", "LARGE is larger than 65,536"),
            (OTLP % "headers_file: none-such", "headers_file names 'none-such', which cannot be"),
            (OTLP % "headers_file: FILE", "FILE contains invalid headers: expected lines"),
            (OTLP % "headers_from: [x-b]", "names 'x-b', which is not stored: add it to"),
            (OTLP % "compression: deflate", "deflate, which gRPC does not support"),
            (OTLP % "tls: {key: FILE}", "tls.key is set without cert"),
            (OTLP.replace("https", "http") % "tls: {}", "tls is set, but the endpoint begins"),
            (OTLP.replace("4317", "4317/v1/traces") % "", "has a path, which gRPC does not use"),
            ("exporters: [{type: cirron, api_key: a}, {type: cirron, api_key: b}]",
             "exporters[1] has the same target as exporters[0]"),
            ("exporters: [{type: otlp, endpoint: 'http://h:1'}, {type: otlp, endpoint: 'http://h:1',"
             " headers: {a: b}}]", "exporters[1] has the same target as exporters[0]"),
            ("exporters: [" + "{type: cirron, api_key: a}, " * 101 + "]", "expected 100 at most"),
        ],
    )  # fmt: skip
    def test_inconsistent_options_are_reported(self, here: Path, text: str, expected: str) -> None:
        (wrong,) = problems(here, text)
        assert expected in wrong
        assert "sesame" not in wrong

    def test_exporters_with_different_tenants_are_distinct_targets(self, here: Path) -> None:
        one = {"type": "otlp", "endpoint": "http://h:1"}
        found = options(here, {"exporters": [one, {**one, "tenant": "a"}, {**one, "tenant": "b"}]})
        assert [name_of(each) for each in found.exporters] == [
            "otlp http://h:1",
            "otlp http://h:1 a",
            "otlp http://h:1 b",
        ]


class TestWarnings:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("", []),
            ("receivers: {grpc: {address: '0.0.0.0:1'}}", ["any client may send"]),
            ("receivers: {auth: {tokens: [t]}}\nhealth: {address: '0.0.0.0:1'}",
             ["health.address is 0.0.0.0:1, without TLS: tokens for /metrics"]),
            ("receivers: {auth: {tokens: [t]}}\nhealth: {address: 'localhost:1'}", []),
            ("health: {address: '0.0.0.0:1'}", []),
            ("receivers: {grpc: {address: '127.9.9.9:1'}, http: {address: '[::1]:2'}}", []),
            ("receivers: {grpc: {address: '[::]:1'}, auth: {tokens: [a]}}", ["without tls"]),
            ("receivers: {http: {address: 'h:1', tls: {cert: FILE, key: FILE, client_ca: FILE}}}",
             []),
            ("receivers: {http: {address: 'h:1', tls: {cert: FILE, key: FILE}}}",
             ["any client may send"]),
            ("receivers: {http: {address: off}}", ["health and metrics are not available"]),
            ("storage: {retention_days: 3}", ["without storage.url"]),
            ("exporters: [{type: cirron, endpoint: 'http://h', api_key: a}]", ["without TLS"]),
            ("exporters: [{type: cirron, endpoint: 'http://localhost:1', api_key: a}]", []),
            ("exporters: [{type: otlp, endpoint: 'http://h:1', headers: {a: b}}]",
             ["without TLS"]),
        ],
    )  # fmt: skip
    def test_unwise_options_are_warned_about(
        self, here: Path, text: str, expected: list[str]
    ) -> None:
        found = load(here, text).warnings
        assert len(found) == len(expected)
        assert all(words in told for words, told in zip(expected, found, strict=True))


class TestTargets:
    def otlp(self, here: Path, **more: Any) -> OtlpExporter:
        (found,) = options(
            here, {"exporters": [{"type": "otlp", "endpoint": "https://h:1", **more}]}
        ).exporters
        assert isinstance(found, OtlpExporter)
        return found

    def test_grpc(self, here: Path) -> None:
        tls = {"ca": "FILE", "cert": "FILE", "key": "FILE"}
        found = otlp_config(
            self.otlp(here, headers={"X-B": "2"}, headers_file="HEADERS", tenant="t", tls=tls)
        )
        assert (found.protocol, found.endpoint, found.insecure) == (OtlpProtocol.GRPC, "h:1", False)
        assert found.headers == {"x-a": "1", "x-b": "2", "x-scope-orgid": "t"}
        assert (found.certificate, found.client_key, found.client_certificate) == ("FILE",) * 3
        assert (found.timeout, found.compression) == (10, OtlpCompression.GZIP)
        assert otlp_config(self.otlp(here, endpoint="http://h:1")).insecure

    @pytest.mark.parametrize(
        "endpoint", ["http://h:1/x", "http://h:1/x/", "http://h:1/x/v1/traces"]
    )
    def test_http(self, here: Path, endpoint: str) -> None:
        found = otlp_config(self.otlp(here, endpoint=endpoint, protocol="http/json"))
        assert (found.protocol, found.insecure) == (OtlpProtocol.HTTP_JSON, True)
        assert found.endpoint == "http://h:1/x/v1/traces"

    def test_cirron(self, here: Path) -> None:
        (found,) = options(here, "exporters: [{type: cirron, api_key_file: FILE}]").exporters
        assert isinstance(found, CirronExporter)
        assert api_key(found) == "sesame"
        target = CirronTarget(found.endpoint, found.ingest_path, api_key(found), "0")
        assert target.shown == "https://api.cirron.com/v1/traces"


class TestReload:
    @pytest.mark.parametrize("path", sorted(GOOD))
    def test_reload_applies_each_key_according_to_the_table(self, here: Path, path: str) -> None:
        old, new = options(here, ""), options(here, tree_with(path, GOOD[path][0]))
        found = diff(old, new)
        key = dict(table())[path].key
        assert key is not None
        changed = found.at_once + found.restart
        assert len(changed) == 1
        assert path.startswith(changed[0])
        assert bool(found.at_once) == key.at_once
        assert found.options == (new if key.at_once else old)

    def test_reload_leaves_keys_that_need_a_restart_unchanged(self, here: Path) -> None:
        old = yaml.safe_load(
            "{spool: {directory: a}, logs: {level: info}, receivers: {http: {idle_s: 1}}}"
        )
        new = yaml.safe_load(
            "{spool: {directory: b}, logs: {level: debug, format: text},"
            " receivers: {http: {idle_s: 2}, auth: {tokens: [a]}}, drain_s: 5}"
        )
        found = diff(options(here, old), options(here, new))
        assert found.at_once == ("receivers.auth.tokens", "logs.level", "logs.format", "drain_s")
        assert found.restart == ("spool.directory", "receivers.http.idle_s")
        expected = new | {"spool": {"directory": "a"}}
        expected["receivers"]["http"]["idle_s"] = 1
        assert found.options == options(here, expected)

    def test_nothing_changed_is_nothing_to_do(self, here: Path) -> None:
        text = "exporters: [{type: cirron, api_key: a}]\nstorage: {url: 'sqlite:///x'}"
        found = diff(options(here, text), options(here, text))
        assert (found.at_once, found.restart) == ((), ())

    def test_a_new_secret_is_a_change(self, here: Path) -> None:
        text = "exporters: [{type: cirron, api_key: %s}]"
        assert diff(options(here, text % "a"), options(here, text % "b")).at_once == ("exporters",)
