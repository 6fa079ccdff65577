"""Recordings of TraceML's as batches: files of frames, and folders of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from ....errors import InputError
from .batch_parts import ImportedBatch
from .framing import HEADER_BYTES, MAX_FRAME_BYTES, FrameDecoder
from .payloads import read_payload
from .stream import OnFinding, TraceMLStream

FRAMES_SUFFIX: Final = ".frames"
_CHUNK: Final = 2**18
_EXPECTED: Final = "expected a .frames file, or a folder of them"

Progress = Callable[[int], None]


class TraceMLImport:
    """The batches of a recording; ids are digests, so that importing again gives the same."""

    def __init__(self, path: str | os.PathLike[str], *, on_finding: OnFinding) -> None:
        """Find the recording. Raises InputError if there is none."""
        self._on_finding = on_finding
        self._files = _find(Path(path))
        self.bytes_read = 0
        """The size of everything that was read."""

    def batches(self, progress: Progress = lambda _: None) -> Iterator[ImportedBatch]:
        """Read the recording, and yield its batches. Raises InputError."""
        for file in self._files:
            try:
                with file.open("rb") as stream:
                    yield from self._frames(stream, file.name, progress)
            except OSError as error:
                raise _unreadable(file, error) from None

    def _frames(self, stream: BinaryIO, name: str, progress: Progress) -> Iterator[ImportedBatch]:
        decoder, importer = FrameDecoder(), TraceMLStream(name, self._on_finding)
        while data := stream.read(_CHUNK):
            self.bytes_read += len(data)
            for payload in decoder.feed(data):
                yield from importer.feed(payload)
            progress(self.bytes_read)
        yield from importer.finish(decoder.rest)


def _find(path: Path) -> list[Path]:
    """Return the files of a recording. Raises InputError."""
    try:
        if path.is_dir():
            files = sorted(each for each in path.rglob(f"*{FRAMES_SUFFIX}") if each.is_file())
            if not files:
                raise InputError(f"{path} is not a recording of TraceML's: {_EXPECTED}")
            return files
        with path.open("rb") as stream:
            if not _has_frames(stream):
                raise InputError(f"{path} is not a recording of TraceML's: {_EXPECTED}")
    except OSError as error:
        raise _unreadable(path, error) from None
    return [path]


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path} cannot be read: {error.strerror or error}; {_EXPECTED}")


def _has_frames(stream: BinaryIO) -> bool:
    """Return whether a file starts with a frame that can be decoded."""
    header = stream.read(HEADER_BYTES)
    size = int.from_bytes(header, "big")
    if len(header) < HEADER_BYTES or not 0 < size <= MAX_FRAME_BYTES:
        return False
    payload = stream.read(size)
    return len(payload) == size and isinstance(read_payload(payload).value, dict | list)
