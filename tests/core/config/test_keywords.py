"""The keyword types are those of the table of options."""

from __future__ import annotations

import inspect

import pytest

import cirron_otel as ci
from cirron_otel.core.config.keywords import CirronOptions, ProfileOptions
from cirron_otel.core.config.options import OPTIONS


@pytest.mark.parametrize(
    ("function", "further"),
    [
        (ci.profile, ProfileOptions),
        (ci.Cirron.profile, ProfileOptions),
        (ci.Cirron.__init__, CirronOptions),
    ],
)
def test_every_option_has_a_type(function: object, further: type) -> None:
    """A new option belongs into `cirron_otel/core/config/keywords.py`, too."""
    parameters = set(inspect.signature(function).parameters)  # type: ignore[arg-type]
    keywords = set(further.__annotations__)
    assert not parameters & keywords
    options = {option.name for option in OPTIONS}
    assert options <= parameters | keywords
    assert keywords <= options
