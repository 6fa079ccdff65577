"""Where options stand in these tests: directories of their own, an environment of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cirron_otel.core.config.options import NOT_GIVEN, OPTIONS
from cirron_otel.core.config.resolve import Resolved, resolve

BY_NAME = {option.name: option for option in OPTIONS}


class Place(NamedTuple):
    """A working directory below a project, and a home, both empty."""

    cwd: Path
    home: Path

    @property
    def project(self) -> Path:
        return self.cwd.parent

    def resolve(
        self,
        given: Mapping[str, object] | None = None,
        environ: Mapping[str, str] | None = None,
        **keywords: Any,
    ) -> Resolved:
        return resolve(given, environ=environ or {}, cwd=self.cwd, home=self.home, **keywords)

    def write_project(self, text: str, name: str = "cirron.yaml") -> None:
        (self.project / name).write_text(text)

    def write_home(self, text: str) -> None:
        (self.home / ".cirron").mkdir(exist_ok=True)
        (self.home / ".cirron" / "config.toml").write_text(text)


def found_in_text(option: str, text: str) -> object:
    """What a variable that holds `text` gives; NOT_GIVEN where it is wrong."""
    variable = BY_NAME[option].variable
    nowhere = Path("/nonexistent")
    resolved = resolve(environ={variable: text}, cwd=nowhere, home=nowhere)
    assert bool(resolved.problems) == (resolved.places[option] != variable)
    return getattr(resolved.config, option) if not resolved.problems else NOT_GIVEN


def found_in_call(option: str, value: object) -> object:
    """What a keyword argument gives; NOT_GIVEN where it is wrong."""
    nowhere = Path("/nonexistent")
    resolved = resolve({option: value}, environ={}, cwd=nowhere, home=nowhere)
    return getattr(resolved.config, option) if not resolved.problems else NOT_GIVEN
