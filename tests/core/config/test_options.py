from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.config.options import NOT_GIVEN, OPTIONS, Config, Option
from cirron_otel.core.config.resolve import is_sdk_disabled

from . import options_table
from .places import Place, found_in_call, found_in_text


class TestTheTable:
    def test_the_document_shows_it(self) -> None:
        assert options_table.written() == options_table.table()

    @pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
    def test_each_default_is_a_value_of_its_option(self, option: Option) -> None:
        if option.default is None:
            assert found_in_call(option.name, None) is None
        else:
            assert option.key.parser.parse(option.default) in (option.default, str(option.default))

    @pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
    def test_each_default_can_be_said_by_a_variable(self, option: Option) -> None:
        default = option.default
        text = ",".join(default) if isinstance(default, tuple) else str(default)
        if default is not None:
            expected = Path("/nonexistent") / default if isinstance(default, Path) else default
            assert found_in_text(option.name, text) == expected

    def test_nothing_said_is_the_defaults(self, place: Place) -> None:
        found = place.resolve()
        assert found.config == Config(output_dir=place.cwd / ".cirron")
        assert found.problems == ()
        assert set(found.places.values()) == {"the default"}

    def test_cirron_sdk_environment_variables_are_supported(self) -> None:
        # Those that cirron-sdk 0.3.0 asks its environment for when profile() is called, but for
        # what loads data.
        honoured = (
            "API_KEY API_ENDPOINT WORKSPACE_ID OUTPUT_DIR SNAPSHOTS SAMPLE_RATE FLUSH_INTERVAL"
            " SPOOL_MAX_BYTES INGEST_PATH RUN_ID PIPELINE_ID DEPLOYMENT_ID"
        )
        variables = {option.variable for option in OPTIONS}
        assert {f"CIRRON_{name}" for name in honoured.split()} <= variables

    def test_a_config_does_not_show_its_key(self) -> None:
        assert "sesame" not in repr(Config(api_key="sesame"))
        assert [option.name for option in OPTIONS if option.key.is_secret] == ["api_key"]


class TestOrder:
    def everywhere(self, place: Place) -> dict[str, Any]:
        place.write_home("[default]\nsample_rate = 0.6\n")
        place.write_project("profiling:\n  sample_rate: 0.5\n")
        return {
            "given": {"sample_rate": 0.1},
            "config": {"sample_rate": 0.2},
            "instance": {"sample_rate": 0.3},
            "environ": {"CIRRON_SAMPLE_RATE": "0.4"},
        }

    def test_one_place_after_the_other(self, place: Place) -> None:
        said = self.everywhere(place)
        removals = [
            lambda: said.pop("given"),
            lambda: said.pop("config"),
            lambda: said.pop("instance"),
            lambda: said.pop("environ"),
            (place.project / "cirron.yaml").unlink,
            (place.home / ".cirron" / "config.toml").unlink,
        ]
        rates, places = [], []
        for remove in [*removals, lambda: None]:
            found = place.resolve(**said)
            rates.append(found.config.sample_rate)
            places.append(found.places["sample_rate"])
            assert found.problems == ()
            remove()
        assert rates == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.01]
        assert places == [
            "sample_rate= of profile()",
            "sample_rate in config= of profile()",
            "sample_rate= of Cirron()",
            "CIRRON_SAMPLE_RATE",
            f"sample_rate in {place.project / 'cirron.yaml'}",
            f"sample_rate in {place.home / '.cirron' / 'config.toml'}",
            "the default",
        ]

    def test_a_wrong_value_gives_way_to_the_next_place(self, place: Place) -> None:
        said = self.everywhere(place) | {
            "given": {"sample_rate": 7},
            "config": {"sample_rate": "x"},
        }
        found = place.resolve(**said)
        assert found.config.sample_rate == 0.3
        assert found.problems == (
            "sample_rate= of profile() is 7: expected a number from 0 to 1;"
            " sample_rate= of Cirron() is used",
            "sample_rate in config= of profile() is 'x': expected a number from 0 to 1;"
            " sample_rate= of Cirron() is used",
        )

    def test_with_no_right_value_the_default_is_named(self, place: Place) -> None:
        found = place.resolve(environ={"CIRRON_FLUSH_INTERVAL": "soon"})
        assert found.config.flush_interval == 1.0
        assert found.problems == (
            "CIRRON_FLUSH_INTERVAL is 'soon': expected a number of seconds above 0, up to 86400;"
            " the default, 1.0, is used",
        )

    @pytest.mark.parametrize(
        ("variable", "expected"),
        [
            ("CIRRON_EXPORT_BUDGET", "a number of spans per second above 0, up to 1e+09, or none"),
            ("CIRRON_DETAIL_EVERY", "a whole number of at least 1, up to 2^63-1, or none"),
            ("CIRRON_MARK_CAPACITY", "a whole number of at least 1, up to 2^63-1"),
        ],
    )
    def test_a_number_that_is_too_large(self, place: Place, variable: str, expected: str) -> None:
        (problem,) = place.resolve(environ={variable: str(10**23)}).problems
        assert problem.startswith(f"{variable} is '{10**23}': expected {expected};")

    @pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
    def test_not_given_and_none(self, place: Place, option: Option) -> None:
        variables = {
            "snapshots": "full", "detail_every": "3", "sample_interval": "0.5",
            "digest": "step", "digest_keep": "1..2", "export_budget": "7", "exit_timeout": "4.5",
        }  # fmt: skip
        environ = {f"CIRRON_{name.upper()}": text for name, text in variables.items()}
        default = place.resolve(environ=environ)
        assert place.resolve({option.name: NOT_GIVEN}, environ) == default
        explicit = place.resolve({option.name: None}, environ)
        if option.name in variables:
            assert getattr(default.config, option.name) in ("full", 3, 0.5, "step", (1, 2), 7, 4.5)
            assert getattr(explicit.config, option.name) is None
        else:
            assert explicit == default

    def test_an_empty_variable_is_unset(self, place: Place) -> None:
        assert (
            place.resolve(environ={option.variable: " " for option in OPTIONS}) == place.resolve()
        )


class TestSdkDisabled:
    @pytest.mark.parametrize("text", ["true", "TRUE", " True "])
    def test_otel_sdk_disabled_overrides_every_other_source(self, place: Place, text: str) -> None:
        environ = {"OTEL_SDK_DISABLED": text, "CIRRON_ENABLED": "1"}
        found = place.resolve({"enabled": True}, environ)
        assert found.config.enabled is False
        assert found.places["enabled"] == "OTEL_SDK_DISABLED"

    @pytest.mark.parametrize("text", ["", "1", "yes", "false"])
    def test_only_true_is_true(self, place: Place, text: str) -> None:
        assert not is_sdk_disabled({"OTEL_SDK_DISABLED": text})
        assert place.resolve(environ={"OTEL_SDK_DISABLED": text}).config.enabled is True
