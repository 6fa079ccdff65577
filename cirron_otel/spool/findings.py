"""What was found wrong, or worth a note, with a file of a spool."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

Severity = Literal["error", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding; `code` and `severity` are stable, `message` is for people.

    An error is what a reader cannot use, or would understand wrongly. A note is unusual, but
    read without loss, or what recording in the real world leaves behind.
    """

    name: str
    """The file's name; "" where it concerns the spool as a whole."""
    code: str
    message: str
    severity: Severity = "error"
    path: str = ""
    """Where in the file, as a JSON path (`$.spans[3].end_ns`)."""

    def __str__(self) -> str:
        place = f"{self.name} {self.path}".strip()
        return f"{self.severity}: {place}: {self.message} [{self.code}]"

    def to_json(self) -> dict[str, str]:
        """The finding as a JSON object."""
        return asdict(self)
