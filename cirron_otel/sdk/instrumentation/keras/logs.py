"""The logs that Keras passes to its callbacks, which may pass them on to loggers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...session.errors import record_error


class Logs(Mapping[str, Any]):
    """The logs of an event as the numbers that callbacks get.

    They are converted when a logger first asks for one, because reading them may wait for a device.
    """

    def __init__(self, args: Any, kwargs: Any, at: int, prefix: str = "") -> None:
        """Take the logs from the arguments of an event; the names get `prefix`."""
        self._given = args[at] if len(args) > at else kwargs.get("logs")
        self._prefix = prefix
        self._numbers: dict[str, Any] | None = None

    def _read(self) -> dict[str, Any]:
        if self._numbers is None:
            self._numbers = {}
            try:
                _add(self._given or {}, self._numbers, self._prefix)
            except Exception as error:
                record_error("keras", error)
        return self._numbers

    def __getitem__(self, name: str) -> Any:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())


def _add(logs: Any, numbers: dict[str, Any], prefix: str) -> None:
    for name, value in logs.items():
        if isinstance(value, dict):
            _add(value, numbers, prefix)
        else:
            numbers[prefix + str(name)] = _number(value)


def _number(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError):
        return value
