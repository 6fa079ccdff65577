"""The location of a blob store: a directory, or a prefix in a bucket."""

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
    """The location of a store, without secrets."""

    path: Path | None
    """The directory, absolute; None for S3."""
    bucket: str
    prefix: str
    """The key prefix in the bucket, without leading or trailing slashes; `""` if there is none."""

    @property
    def shown(self) -> str:
        """The location as a URL; the keys of objects follow it."""
        if self.path is not None:
            return f"file://{self.path}"
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def key(self) -> str:
        """An identifier of the location."""
        return digest("blobs", self.shown)[:8].hex()

    def uri(self, key: str) -> str:
        """Return the URI of an object: verbatim, without percent escapes, as in `blob_uri`."""
        return f"{self.shown.rstrip('/')}/{key}"


def parse_place(url: str) -> BlobPlace:
    """Parse the location of a store: a path, `file:///DIR` or `s3://BUCKET/PREFIX`.

    Raises UsageError if `url` is none of these, or contains credentials.
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
