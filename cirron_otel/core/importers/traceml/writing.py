"""Write batches as TraceML's frames: one file for each connection."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from ....errors import InputError
from ...new_folder import new_folder, safe_parts
from .collected_frames import KEY, CollectedFrames
from .own_runs import OwnRunRows

FRAMES_SUFFIX: Final = ".frames"
NOTES: Final = "lists of ids and times of arrival in a history"


class TraceMLWriter:
    """Collects batches, and writes their frames when all are there."""

    def __init__(self, folder: Path) -> None:
        """Use temporary files in `folder`. Raises sqlite3.Error."""
        self._imported, self._own = CollectedFrames(folder), OwnRunRows(folder)
        self.incomplete: list[str] = []
        """The files that lack frames, one line each."""
        self.bytes_written = 0
        self.files = 0

    @property
    def losses(self) -> dict[str, int]:
        """The number of values that are not in the frames, by kind."""
        notes = self._imported.notes
        return self._own.losses | ({NOTES: notes} if notes else {})

    def close(self) -> None:
        """Close the temporary files."""
        self._imported.close()
        self._own.close()

    def add(self, batch: dict[str, Any]) -> None:
        """Add a batch. Raises InputError if it contains TraceML's data in an unexpected form."""
        members = batch.get(KEY)
        if isinstance(members, dict):
            self._imported.add(members)
        else:
            self._own.add(batch)

    def write_directory(self, target: Path) -> None:
        """Write `rank<R>_pid<P>.frames` for each stream and each session of our own.

        The directory appears with all its files or not at all. Raises TargetError if it exists and
        is not empty, or if it cannot be written, and InputError if there is nothing to write.
        """
        with new_folder(target) as folder:
            for stream in self._imported.streams():
                name = f"rank{stream.rank}_pid{stream.pid}"
                path = self._write(folder, name, self._imported.data(stream))
                missing = self._imported.missing(stream)
                if missing:
                    self.incomplete.append(f"{path}: {missing} frames are not in the source")
                if not stream.has_end:
                    self.incomplete.append(
                        f"{path}: the end of the connection is not in the source: it is open, or"
                        " its last frames are missing"
                    )
            for name, frames in self._own.files():
                self._write(folder, name, frames)
            if self._own.has_batches and not self._own.is_written and not self.files:
                raise InputError(
                    "the source has neither steps nor samples of memory: record a run with steps"
                )
            for name, parts, is_complete in self._imported.documents():
                document = folder.joinpath(*safe_parts(name))
                document.parent.mkdir(parents=True, exist_ok=True)
                with document.open("xb") as file:
                    file.writelines(parts)
                self.files += 1
                self.bytes_written += document.stat().st_size
                if not is_complete:
                    self.incomplete.append(f"{name}: parts of it are not in the source")

    def _write(self, folder: Path, name: str, frames: Iterable[bytes]) -> str:
        """Write a file; another stream of the same process has a number in its name."""
        path, number = folder / f"{name}{FRAMES_SUFFIX}", 1
        while path.exists():
            number += 1
            path = folder / f"{name}_{number}{FRAMES_SUFFIX}"
        with path.open("xb") as file:
            for frame in frames:
                self.bytes_written += file.write(frame)
        self.files += 1
        return path.name
