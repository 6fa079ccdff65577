"""The location of a blob store (a directory, or a prefix in a bucket), and the keys of objects.

The key of a tensor is `traces/<workspace_id>/<run_id>/<span_id>/<snapshot_id>.<ext>` (schemas page,
"Snapshot object-storage layout").
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from ....errors import UsageError
from ....ids import digest

MAX_PART_BYTES = 210
"""The maximum size of a part of a key.

File systems allow 255 bytes, and the temporary file of a write has a longer name.
"""
MAX_KEY_BYTES = 900
"""The maximum size of a key. S3 allows 1,024 bytes, including the prefix of the store."""

_PLAIN = re.compile(r"[A-Za-z0-9_=@+-][A-Za-z0-9_.=@+-]{0,119}")
_OTHER = re.compile(r"[^A-Za-z0-9_.=@+-]")
_KEPT = 40


def checked_key(key: str) -> str:
    """Return `key` if it is valid: plain names separated by slashes.

    Raises UsageError if a part is empty or starts with a dot (as `.`, `..` and temporary files do),
    if the key contains control characters or text that UTF-8 cannot encode, or if it is too long.
    """
    try:
        size = len(key.encode())
        parts = [(part, len(part.encode())) for part in key.split("/")]
    except UnicodeEncodeError:
        raise UsageError(f"the key {key[:80]!a} is not UTF-8: choose another one") from None
    if size > MAX_KEY_BYTES:
        raise UsageError(f"the key has {size} bytes: expected at most {MAX_KEY_BYTES}")
    for part, length in parts:
        if not part or part.startswith(".") or any(ord(c) < 32 or ord(c) == 127 for c in part):
            raise UsageError(
                f"the key {key[:80]!a} contains {part[:80]!a}: expected names separated by single"
                " slashes, without a leading dot and without control characters"
            )
        if length > MAX_PART_BYTES:
            raise UsageError(f"a part of the key has {length} bytes: at most {MAX_PART_BYTES}")
    return key


def plain_part(text: str) -> str:
    """Return `text` as a part of a key.

    Text that is not plain is replaced by its plain characters and a digest. Ids come from input and
    may be any string; equal ids give equal parts.
    """
    if _PLAIN.fullmatch(text):
        return text
    digits = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{_OTHER.sub('_', text)[:_KEPT].lstrip('.')}-{digits}".lstrip("-")


def tensor_key(workspace: str, run: str, span_id: str, snapshot_id: str, mark: str = "") -> str:
    """Return the key of a snapshot's tensor; `mark` distinguishes tensors with the same ids."""
    parts = (plain_part(part) for part in ("traces", workspace, run, span_id, snapshot_id))
    return checked_key("/".join(parts) + (f".{mark}" if mark else "") + ".safetensors")


_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
_USE = "use a directory, file:///DIR or s3://BUCKET/PREFIX"


class BlobPlace(NamedTuple):
    """The location of a store, without secrets."""

    path: Path | None
    """The absolute path of the directory; None for S3."""
    bucket: str
    prefix: str
    """The key prefix in the bucket, without leading or trailing slashes; `""` for no prefix."""

    @property
    def shown(self) -> str:
        """The location as a URL; the URI of an object is this URL followed by the object's key."""
        if self.path is not None:
            return f"file://{self.path}"
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def key(self) -> str:
        """An identifier of the location."""
        return digest("blobs", self.shown)[:8].hex()

    def uri(self, key: str) -> str:
        """Return the URI of an object, as in `blob_uri`: the key is not percent-encoded."""
        return f"{self.shown.rstrip('/')}/{key}"


def parse_place(url: str) -> BlobPlace:
    """Parse the location of a store: a path, `file:///DIR` or `s3://BUCKET/PREFIX`.

    Raises UsageError if `url` is none of these, or contains credentials.
    """
    if url.startswith("s3://"):
        return _in_bucket(url)
    path = url.removeprefix("file://")
    if not path or "://" in path or "\0" in path or (path != url and not path.startswith("/")):
        raise UsageError(f"{url[:200]!a} is not a location of blobs: {_USE}")
    return BlobPlace(Path(path).absolute(), "", "")


def _in_bucket(url: str) -> BlobPlace:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise UsageError(f"the blob URL is not valid: {_USE}") from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise UsageError(
            "the blob URL contains credentials or parameters: give only the bucket and a prefix,"
            " and set credentials in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
        )
    if not _BUCKET.fullmatch(parts.netloc):
        raise UsageError(f"{parts.netloc[:80]!a} is not a valid bucket name: {_USE}")
    prefix = parts.path.strip("/")
    return BlobPlace(None, parts.netloc, checked_key(prefix) if prefix else "")
