"""Problems of reading: errors and notes on a file of a spool or another source."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

Severity = Literal["error", "note"]


@dataclass(frozen=True, slots=True)
class ReadingProblem:
    """One problem of reading; `code` and `severity` are stable, the text of `message` may change.

    An error marks data that a reader cannot use or would misinterpret. A note marks data that is
    unusual but can be read without loss, or that real recordings often contain.
    """

    name: str
    """The file's name; "" if the problem concerns the complete spool."""
    code: str
    message: str
    severity: Severity = "error"
    path: str = ""
    """The location in the file, as a JSON path (`$.spans[3].end_ns`)."""

    def __str__(self) -> str:
        place = f"{self.name} {self.path}".strip()
        return f"{self.severity}: {place}: {self.message} [{self.code}]"

    def to_json(self) -> dict[str, str]:
        """Return the problem as a JSON object."""
        return asdict(self)
