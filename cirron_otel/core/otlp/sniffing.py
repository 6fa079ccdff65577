"""The format of a stream by its first bytes, if it is not the expected one."""

from __future__ import annotations

import re

from .compression import collector_hint, compression_of_data
from .formats import Compression
from .framing import StreamError

HEAD = 64
"""The number of bytes that the checks examine."""

_BOM = b"\xef\xbb\xbf"
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_TRACES_JSON = re.compile(rb'(\xef\xbb\xbf)?\s*\{\s*"resource')
_JSON = re.compile(rb"(\xef\xbb\xbf)?\s*[\[{]")


def check_json_head(head: bytes) -> None:
    """Raise StreamError if `head` cannot be the start of JSON lines."""
    _check_compression(head)
    start = head[:HEAD].removeprefix(_BOM).lstrip(b" \t\r\n")
    if start and not start.startswith(b"{") and (_CONTROL.search(start) or not _is_utf8(start)):
        raise StreamError(
            f"expected OTLP/JSON, found binary data ({start[:8].hex(' ')}):"
            " if it is protobuf, read it as .binpb (otlp-proto)"
        )


def check_proto_head(head: bytes) -> None:
    """Raise StreamError if `head` is certainly not length-delimited protobuf."""
    _check_compression(head)
    if _TRACES_JSON.match(head):
        raise StreamError(
            "expected length-delimited protobuf, found OTLP/JSON: read it as .jsonl (otlp-json)"
        )


def proto_hint(head: bytes) -> str:
    """Return a hint about the format of a stream that is not length-delimited protobuf; or ""."""
    if _JSON.match(head):
        return "; it looks like JSON"
    if head[:1] == b"\n":
        return "; it looks like one bare TracesData: put its length, a varint, before it"
    if head[:1] == b"\0" and head[4:5] == b"\n":
        return (
            "; it looks like what the Collector's file exporter writes as proto, with lengths of"
            " 4 bytes: let it write json"
        )
    return ""


def _check_compression(head: bytes) -> None:
    compression = compression_of_data(head)
    if compression is not Compression.NONE:
        suffix = ".gz" if compression is Compression.GZIP else ".zst"
        raise StreamError(f"found {compression} data: give the file the second suffix {suffix}")
    if hint := collector_hint(head):
        raise StreamError(f"found the bytes {head[:8].hex(' ')}{hint}")


def _is_utf8(start: bytes) -> bool:
    try:
        start.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"  # the head ends within a character
    return True
