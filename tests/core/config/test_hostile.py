from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cirron_otel.core.config.options import OPTIONS
from cirron_otel.core.config.resolve import resolve

from .places import BY_NAME, Place


class TestSecrets:
    @pytest.mark.parametrize("value", ["ses ame", b"sesame", ["sesame"], "sesame\n\x00"])
    def test_a_wrong_key_is_not_shown(self, place: Place, value: object) -> None:
        found = place.resolve({"api_key": value})
        assert len(found.problems) == 1
        assert "sesame" not in str(found)
        assert "ses ame" not in str(found)

    @pytest.mark.parametrize(
        "url",
        [
            "https://user:sesame@host",
            "https://user:ses/ame@host",
            "https://user:" + "sesame" * 40 + "@host",
        ],
    )
    def test_a_password_in_a_url_is_not_shown(self, place: Place, url: str) -> None:
        found = place.resolve({"api_endpoint": url})
        assert len(found.problems) == 1
        assert "ses" not in str(found.problems)


class Hostile:
    """Raises from whatever is asked of it."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise RuntimeError("repr")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")

    __hash__ = object.__hash__


class HostileText(str):
    def strip(self, *_: object) -> str:
        raise RuntimeError("strip")

    def __repr__(self) -> str:
        raise RuntimeError("repr")


class HostileMapping(dict[str, object]):
    def keys(self) -> Any:
        raise RuntimeError("keys")

    def __iter__(self) -> Any:
        raise RuntimeError("iter")


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=5),
    st.lists(st.text(max_size=5), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.sampled_from([10**5000, HostileText("x"), object, Path("x"), {1}]),
    st.builds(Hostile),
    st.lists(st.builds(Hostile), min_size=1, max_size=1),
)
ARGUMENTS = st.dictionaries(st.sampled_from(sorted(BY_NAME)), VALUES)
VARIABLES = st.dictionaries(
    st.sampled_from([option.variable for option in OPTIONS]), st.text(max_size=20)
)


@given(ARGUMENTS, ARGUMENTS, VARIABLES)
def test_nothing_raises(
    given: dict[str, object], config: dict[str, object], environ: dict[str, str]
) -> None:
    nowhere = Path("/nonexistent")
    found = resolve(given, config=config, environ=environ, cwd=nowhere, home=nowhere)
    for option in OPTIONS:
        value = getattr(found.config, option.name)
        if value is not None and not isinstance(value, Path):
            assert option.key.parser.parse(value) == value
    assert all(isinstance(each, str) and len(each) < 1000 for each in found.problems)


@pytest.mark.parametrize("make", [int, str, list, lambda: HostileMapping(a=1), Hostile])
def test_config_that_is_not_a_dict_is_reported(place: Place, make: Callable[[], object]) -> None:
    found = place.resolve({"sample_rate": 0.5}, config=make())
    assert found.config.sample_rate == 0.5
    (problem,) = found.problems
    assert problem.startswith("config= of profile() ")
    assert problem.endswith("; it is not used")
