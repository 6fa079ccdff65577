"""The target that writes batches as lines to standard output, for the platform's runtime.

In a platform run (`CIRRON_RUN_ID` is set), the process wrapper forwards each line that is a
JSON object with the key `__cirron_event__`. The observed format of cirron-sdk 0.3.0 is
`{"__cirron_event__":"trace_batch","schema_version":1,"sdk_version":"...","payload":<the batch>}`,
in ASCII, with a flush after each line. A `trace_blob` line has the location of a snapshot file.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import msgspec

from ... import exactjson
from ...errors import InputError
from ..delivery.batch_target import Receipt, SealedBatch
from ..delivery.blobs import named_blobs, open_blob
from ..delivery.errors import RefusedError, StoppedError, UnreachableError
from ..spool.blobs import BlobKey

_LINE_BREAK = re.compile(r"[\r\n]")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


class _Header(msgspec.Struct):
    schema_version: int = 1
    sdk_version: str = ""


_header_decoder = msgspec.json.Decoder(_Header)


class EventStreamTarget:
    """Writes one line per batch to `stream`, by default the current standard output.

    A batch counts as delivered once its line is written, since readers do not acknowledge lines. If
    the reader loses a line, its batch is still in the spool.
    """

    awaits_files = False
    key = "event-stream"
    """The key is the same for all runs, so that no run repeats the batches of an earlier one."""
    request_bytes = 0

    def __init__(self, sdk_version: str, stream: TextIO | None = None) -> None:
        """`sdk_version` is written into the lines that announce snapshot files."""
        self._stream = sys.stdout if stream is None else stream
        self._sdk_version = sdk_version
        self._is_interrupted = False
        self.shown = "event stream"
        self.blobs = self

    def send(self, batches: Sequence[SealedBatch]) -> Receipt:
        """Write a line for a batch."""
        (batch,) = batches
        try:
            header = _header(batch.data)
            payload = _LINE_BREAK.sub(" ", batch.data.decode())
        except (InputError, UnicodeDecodeError, RecursionError) as error:
            raise RefusedError(f"{batch.name} is not a batch: {error}") from None
        self._write("trace_batch", header, payload)
        return Receipt()

    keys_of = staticmethod(named_blobs)

    def upload(self, snapshots: Path, key: BlobKey) -> bool:
        """Write a line with the location of a snapshot file."""
        with open_blob(snapshots, key):
            path = snapshots / key.directory / key.file
        location = {"remote_key": f"snapshots/{key.directory}/{key.file}", "local_path": str(path)}
        self._write("trace_blob", _Header(1, self._sdk_version), json.dumps(location))
        return True

    def _write(self, kind: str, header: _Header, payload: str) -> None:
        if self._is_interrupted:
            raise StoppedError("stopped before everything was written to the event stream")
        line = (
            f'{{"__cirron_event__":"{kind}","schema_version":{header.schema_version},'
            f'"sdk_version":{json.dumps(header.sdk_version)},"payload":{_in_ascii(payload)}}}\n'
        )
        try:
            self._stream.write(line)
            self._stream.flush()
        except (OSError, ValueError, AttributeError) as error:  # the stream is closed or missing
            raise UnreachableError(f"the event stream cannot be written: {error}") from None

    def interrupt(self) -> None:
        """Write no further lines."""
        self._is_interrupted = True

    def close(self) -> None:
        """Leave the stream open, since it belongs to the program."""

    def abandon(self) -> None:
        """In a forked child: do nothing, since no connection is held."""


def _header(data: bytes) -> _Header:
    """Return the header of a batch. Raises InputError if `data` is not a batch."""
    try:
        return _header_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        batch = exactjson.loads(data)  # exactjson also accepts, for example, lone surrogates
        if not isinstance(batch, dict):
            raise InputError("not a JSON object") from None
        try:
            return msgspec.convert(
                {k: batch[k] for k in _Header.__struct_fields__ if k in batch}, _Header
            )
        except msgspec.ValidationError as error:
            raise InputError(str(error)) from None


def _in_ascii(text: str) -> str:
    """Return equivalent ASCII JSON: escape all other characters, which only strings can contain."""
    return (
        text if text.isascii() else _NOT_ASCII.sub(lambda match: json.dumps(match[0])[1:-1], text)
    )
