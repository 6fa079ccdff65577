"""What a blob URL names: a directory, or a prefix in a bucket."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from ....errors import UsageError
from ....ids import digest
from .keys import checked_key

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
_USE = "use a directory, file:///DIR or s3://BUCKET/PREFIX"


class BlobPlace(NamedTuple):
    """Where a store is; nothing in it is secret."""

    path: Path | None
    """The directory, absolute; None for S3."""
    bucket: str
    prefix: str
    """Of the keys in the bucket, without slashes around it; `""` for none."""

    @property
    def shown(self) -> str:
        """The place as a URL; objects are below it."""
        if self.path is not None:
            return f"file://{self.path}"
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def key(self) -> str:
        """What tells it from other places."""
        return digest("blobs", self.shown)[:8].hex()

    def uri(self, key: str) -> str:
        """Where the object of a key is: verbatim, without percent escapes, as blob_uri has it."""
        return f"{self.shown.rstrip('/')}/{key}"


def parse_place(url: str) -> BlobPlace:
    """The place that `url` names: a path, `file:///DIR` or `s3://BUCKET/PREFIX`.

    Raises UsageError where it is none. Credentials have no place in it.
    """
    if url.startswith("s3://"):
        return _in_bucket(url)
    path = url.removeprefix("file://")
    if not path or "://" in path or "\0" in path or (path != url and not path.startswith("/")):
        raise UsageError(f"{url[:200]!a} names no place for blobs: {_USE}")
    return BlobPlace(Path(path).absolute(), "", "")


def _in_bucket(url: str) -> BlobPlace:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise UsageError(f"a URL of blobs that cannot be read: {_USE}") from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise UsageError(
            "a URL of blobs with credentials or parameters in it: name the bucket and a prefix,"
            " and give credentials in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
        )
    if not _BUCKET.fullmatch(parts.netloc):
        raise UsageError(f"{parts.netloc[:80]!a} is no name of a bucket: {_USE}")
    prefix = parts.path.strip("/")
    return BlobPlace(None, parts.netloc, checked_key(prefix) if prefix else "")
