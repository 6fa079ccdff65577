"""docker/compose.yaml as Compose understands it, as far as the tests ask."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

DOCKER = Path(__file__).parents[3] / "docker"
COMPOSE = DOCKER / "compose.yaml"
_ENV = re.compile(r"\$\{env:(\w+)(?::-([^}]*))?\}")


@dataclass(frozen=True)
class Service:
    """One service, its short forms taken apart."""

    name: str
    settings: dict[str, Any]
    environment: dict[str, str] = field(default_factory=dict)
    binds: dict[str, Path] = field(default_factory=dict)
    """Files of the checkout by their place in the container."""
    volumes: dict[str, str] = field(default_factory=dict)
    """Named volumes by their place in the container."""

    @property
    def command(self) -> list[str]:
        """Its arguments."""
        return list(self.settings.get("command", []))

    def local(self, text: str) -> str:
        """The text with places in the container replaced by the files that are mounted there."""
        for target, source in self.binds.items():
            text = text.replace(target, str(source))
        return text

    def config(self) -> Any:
        """The one YAML file that it is started with, its variables filled in by its environment."""
        [source] = self.binds.values()
        text = _ENV.sub(
            lambda found: self.environment.get(found[1], found[2] or ""), source.read_text()
        )
        return yaml.safe_load(text)


@cache
def document() -> dict[str, Any]:
    """The file as it stands, aliases and merges resolved."""
    loaded: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return loaded


@cache
def services() -> dict[str, Service]:
    """All services by name."""
    return {name: _service(name, settings) for name, settings in document()["services"].items()}


def _service(name: str, settings: dict[str, Any]) -> Service:
    binds, volumes = {}, {}
    for entry in settings.get("volumes", []):
        source, target, *mode = entry.split(":")
        if source.startswith("."):
            assert mode == ["ro"], f"{name} may write to {source}"
            binds[target] = (DOCKER / source).resolve()
        else:
            volumes[target] = source
    return Service(name, settings, dict(settings.get("environment", {})), binds, volumes)
