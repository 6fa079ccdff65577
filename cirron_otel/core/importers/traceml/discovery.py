"""The files of a recording, recognised by their content."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from ....errors import InputError
from .envelopes import CONTROL
from .framing import HEADER_BYTES, MAX_FRAME_BYTES
from .history import MAGIC
from .payloads import read_payload
from .summary import is_summary

FRAMES, TABLE_LOG, HISTORY, SUMMARY = "frames", "table log", "history", "summary"
DOCUMENT: Final = "document"
UNREADABLE: Final = "unreadable"
"""The kind of a file or folder that the operating system does not let us read."""
MAX_DOCUMENT_BYTES: Final = 16 * 2**20
MAX_DEPTH: Final = 16
EXPECTED: Final = "expected frames, a history, a table log, a final summary, or a folder of them"
_RUN_MANIFEST: Final = "manifest.json"
_MANIFESTS: Final = frozenset({_RUN_MANIFEST, "code_manifest.json", "system_manifest.json"})
_RANK: Final = re.compile(r"rank_(\d{1,9})(?!\d)")
_STREAM_SUFFIXES: Final = frozenset({".frames", ".msgpack"})
_CONTAINERS: Final = frozenset([*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF])
"""The first bytes of msgpack maps and arrays."""
_DATABASE_PARTS: Final = ("-wal", "-shm", "-journal")


class RecordedFile(NamedTuple):
    """A file of a recording."""

    path: Path
    name: str
    """The path below the recording."""
    kind: str

    @property
    def table(self) -> str:
        """The table of a table log, by its file's name."""
        return self.path.name.removesuffix(".msgpack").rpartition(".")[2]

    @property
    def rank(self) -> int | None:
        """The rank of a table log, by its folder or its file's name."""
        found = _RANK.findall(self.name) or _RANK.findall(str(self.path))
        return int(found[-1]) if found else None


class RunFiles(NamedTuple):
    """The files of one run."""

    root: Path
    files: list[RecordedFile]

    def of_kind(self, *kinds: str) -> list[RecordedFile]:
        """Return the files of some kinds."""
        return [file for file in self.files if file.kind in kinds]


def find_runs(path: Path) -> list[RunFiles]:
    """Return the runs of a file or folder. Raises InputError if there is no recording.

    A folder with a `manifest.json` is a run of its own. Symbolic links are not followed.
    """
    try:
        if not path.is_dir():
            if not stat.S_ISREG(path.stat().st_mode):
                raise InputError(f"{path} is not a regular file: {EXPECTED}")
            kind = kind_of(path)
            if kind in (None, DOCUMENT):
                raise InputError(f"{path} is not a recording of TraceML's: {EXPECTED}")
            return [RunFiles(path.parent, [RecordedFile(path, path.name, kind or "")])]
        runs = list(_runs_below(path, path, path, 0))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    merged: dict[Path, list[RecordedFile]] = {}
    for run in runs:
        merged.setdefault(run.root, []).extend(run.files)
    found = [RunFiles(root, files) for root, files in merged.items()]
    others = {DOCUMENT, UNREADABLE}
    found = [run for run in found if any(file.kind not in others for file in run.files)]
    if not found:
        raise InputError(f"{path} is not a recording of TraceML's: {EXPECTED}")
    return found


def _runs_below(top: Path, folder: Path, root: Path, depth: int) -> Iterator[RunFiles]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        if folder == top:
            raise
        yield RunFiles(root, [RecordedFile(folder, str(folder.relative_to(top)), UNREADABLE)])
        return
    if any(entry.name == _RUN_MANIFEST and entry.is_file() for entry in entries):
        root = folder
    files = []
    for entry in entries:
        path = Path(entry.path)
        if entry.is_file(follow_symlinks=False) and not entry.name.endswith(_DATABASE_PARTS):
            try:
                kind = kind_of(path)
            except OSError:
                kind = UNREADABLE
            if kind is not None:
                files.append(RecordedFile(path, str(path.relative_to(top)), kind))
    yield RunFiles(root, files)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False) and depth < MAX_DEPTH:
            yield from _runs_below(top, Path(entry.path), root, depth + 1)


def kind_of(path: Path) -> str | None:
    """Return the kind of a file by its content; None for a file that is not TraceML's.

    Raises OSError.
    """
    with path.open("rb") as stream:
        header = stream.read(len(MAGIC))
        if header == MAGIC:
            return HISTORY
        size = int.from_bytes(header[:HEADER_BYTES], "big")
        if header[:1] == b"{" or path.suffix == ".json":
            return _json_kind(path)
        if len(header) < HEADER_BYTES or not 0 < size <= MAX_FRAME_BYTES:
            return None
        stream.seek(HEADER_BYTES)
        payload = stream.read(size)
    if len(payload) == size:
        return _frame_kind(payload)
    is_torn = path.suffix in _STREAM_SUFFIXES and payload[:1] and payload[0] in _CONTAINERS
    return FRAMES if is_torn else None


def _frame_kind(payload: bytes) -> str | None:
    value = read_payload(payload).value
    if isinstance(value, list):
        return FRAMES
    if not isinstance(value, dict):
        return None
    if value.keys() & {"meta", "body", "tables", CONTROL}:
        return FRAMES
    return TABLE_LOG if value.keys() & {"ts", "timestamp"} else FRAMES


def _json_kind(path: Path) -> str | None:
    if path.name in _MANIFESTS:
        return DOCUMENT
    if path.stat().st_size > MAX_DOCUMENT_BYTES:
        return None
    return SUMMARY if is_summary(read_document(path)) else None


def read_document(path: Path) -> Any:
    """Return the content of a JSON file; None if it is not JSON. Raises OSError."""
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return None
