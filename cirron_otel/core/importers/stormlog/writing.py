"""Write the events of batches as Stormlog's files: an array, a segment, or a directory."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ...new_folder import new_folder, safe_parts
from .collected import CollectedRecords
from .marks import ARRAY, KEY, LINES, in_order, plain_text_of
from .own_events import BUNDLES, events_of
from .own_run import OwnRuns, OwnSession
from .sink_files import SinkFiles


class StormlogWriter:
    """Collects batches, and writes them as files of Stormlog's when all are there."""

    def __init__(self, folder: Path) -> None:
        """Use temporary files in `folder`."""
        self._folder = folder
        self._imported = CollectedRecords(folder)
        self._own = OwnRuns(folder)
        self.spool: Path | None = None
        """The directory beside whose batches the bundles of our own runs are."""
        self.incomplete: list[str] = []
        """Files of the recording that cannot be written again, since parts are missing."""

    @property
    def without_samples(self) -> list[str]:
        """The sessions of our own that were not written, because they have no sample."""
        return self._own.without_samples

    def close(self) -> None:
        """Close the temporary files."""
        self._imported.close()
        self._own.close()

    def add(self, batch: dict[str, Any]) -> None:
        """Add a batch. Raises InputError if it contains Stormlog's data in an unexpected form."""
        if isinstance(batch.get(KEY), dict):
            self._imported.add(batch)
        else:
            self._own.add(batch)

    def write_array(self, stream: BinaryIO) -> None:
        """Write a JSON array of all events, or the only such file of the recording."""
        only = self._only(ARRAY)
        if only is not None:
            stream.writelines(only)
            return
        is_first = True
        for event in self._events():
            stream.write(b"[\n  " if is_first else b",\n  ")
            stream.write(plain_text_of(in_order(event), ARRAY))
            is_first = False
        stream.write(b"[]" if is_first else b"\n]")

    def write_lines(self, stream: BinaryIO) -> None:
        """Write a segment with all events, or the only segment of the recording."""
        only = self._only(LINES)
        if only is not None:
            stream.writelines(only)
            return
        for event in self._events():
            stream.write(plain_text_of(event, LINES) + b"\n")

    def _only(self, form: str) -> Iterator[bytes] | None:
        """Return the content of the only file with records, if it is complete and of this form."""
        layouts = self._imported.layouts()
        if len(layouts) != 1 or layouts[0].form != form or self._own.has_runs:
            return None
        return self._imported.pieces(layouts[0]) if self._is_restorable() else None

    def _is_restorable(self) -> bool:
        """Return whether every file of the recording is complete."""
        imported = self._imported
        self.incomplete = [
            layout.name for layout in imported.layouts() if not imported.is_complete(layout)
        ]
        documents = imported.documents()
        self.incomplete += [name for name in documents if imported.document(name) is None]
        return not self.incomplete and not imported.loose

    def _events(self) -> Iterator[dict[str, Any]]:
        yield from self._imported.events()
        for session in self._own.sessions():
            yield from events_of(session, self._folder)

    def write_directory(self, target: Path) -> None:
        """Write the files of the recording, or a sink, and a sink for each run of our own.

        The directory appears with all its files or not at all. Raises TargetError if it exists and
        is not empty, or if it cannot be written.
        """
        with new_folder(target) as folder:
            self._fill(folder)

    def _fill(self, folder: Path) -> None:
        imported = self._imported
        names = [layout.name for layout in imported.layouts()]
        is_directory = bool(imported.documents()) or any("/" in name for name in names)
        is_directory = is_directory or any(name.startswith("segment-") for name in names)
        if is_directory and self._is_restorable():
            for layout in imported.layouts():
                _write(folder, layout.name, imported.pieces(layout))
            for name in imported.documents():
                _write(folder, name, (imported.document(name) or b"",))
        else:
            sink = SinkFiles(folder)
            for session_id in imported.sessions():
                sink.add_session(session_id, imported.events(session_id))
            sink.finish()
        own = self._own.sessions()
        alone = not names and not imported.documents() and len(own) == 1
        for session in own:
            place = folder if alone else folder / session.session_id
            place.mkdir(exist_ok=True)
            self._write_own(session, place)

    def _write_own(self, session: OwnSession, place: Path) -> None:
        """Write the sink of a session, and its bundles."""
        sink = SinkFiles(place)
        bundles = list(session.bundles(self.spool)) if self.spool is not None else []
        events = events_of(session, self._folder, {bundle.name for bundle in bundles})
        sink.add_session(session.session_id, events, session.summary())
        sink.finish()
        for bundle in bundles:
            shutil.copytree(bundle, place / BUNDLES / bundle.name, symlinks=True)


def _write(folder: Path, name: str, pieces: Iterable[bytes]) -> None:
    """Write a file of a recording below `folder`. Raises InputError if its name leads elsewhere."""
    path = folder.joinpath(*safe_parts(name))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        file.writelines(pieces)
