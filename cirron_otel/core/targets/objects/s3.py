"""A blob store in S3, or in a server with the same protocol; it uses obstore."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from ....errors import MissingExtraError
from ...delivery.errors import MisconfiguredError, StoppedError, UnreachableError
from .place import BlobPlace, checked_key
from .store import PIECE_BYTES, BlobContent, DifferentError, StoredObject

PART_BYTES = 8 << 20
"""The default size in bytes above which objects are uploaded in parts, and the minimum size of a
part."""
_MOST_PARTS = 9_000
"""The maximum number of parts of an object. S3 allows 10,000."""
_PARTS_AT_ONCE = 3
"""The number of parts that are uploaded at the same time; each of them is held in memory."""
_CHECKSUM = "cirron-sha256"
"""The metadata key of an object's checksum."""
_REQUEST_S, _CONNECT_S, _RETRY_S = 120, 5, 10

_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,80})</Code>")
_STATUS = re.compile(r"status code: (\d{3})")
_ABOUT_US = {
    "SignatureDoesNotMatch": "the secret key is wrong: check AWS_SECRET_ACCESS_KEY",
    "InvalidAccessKeyId": "the access key is unknown: check AWS_ACCESS_KEY_ID",
    "ExpiredToken": "the session token has expired: renew AWS_SESSION_TOKEN",
    "InvalidToken": "the session token is wrong: check AWS_SESSION_TOKEN",
    "AccessDenied": "access is denied: the credentials must allow to put, get and list objects",
    "NoSuchBucket": "the bucket does not exist: create it, or check its name and AWS_ENDPOINT_URL",
    "InvalidBucketName": "the server does not allow this bucket name: use another one",
    "AuthorizationHeaderMalformed": "the region is wrong: check AWS_REGION",
    "PermanentRedirect": "the bucket is in another region: check AWS_REGION",
    "RequestTimeTooSkewed": "the server's clock differs too much: correct this machine's clock",
}
_OF_METADATA = ("/latest/api/token", "/latest/meta-data")
"""The metadata services' URL paths, which obstore requests if the environment has no credentials.
"""
_WITHOUT_WORDS = frozenset({"301", "400", "403"})
"""The status codes of a HEAD request that is not allowed or not valid. The response has no body."""


class ListedObject(NamedTuple):
    """An object in a listing."""

    key: str
    size: int
    modified: datetime
    """When it was stored, by the server's clock."""


class S3BlobStore:
    """Stores objects in a bucket. Implements BlobStore."""

    def __init__(self, place: BlobPlace, whole_bytes: int = PART_BYTES) -> None:
        """Prepare the store, without sending a request.

        Objects of up to `whole_bytes` are sent in one request, others in parts. Raises
        MissingExtraError if obstore is not installed, and MisconfiguredError if an AWS_… variable
        is invalid.
        """
        try:
            import obstore  # noqa: PLC0415 - an extra
            from obstore import exceptions  # noqa: PLC0415
            from obstore.store import S3Store  # noqa: PLC0415
        except ImportError:
            raise MissingExtraError("s3", "a store in S3") from None
        self.place = place
        self._obstore, self._errors = obstore, exceptions
        self._whole_bytes = whole_bytes
        self._is_interrupted = False
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
        try:
            self._store = S3Store(
                place.bucket,
                prefix=place.prefix or None,
                client_options={
                    # If the endpoint starts with http://, assume that this is intended.
                    "allow_http": endpoint.startswith("http://"),
                    "timeout": timedelta(seconds=_REQUEST_S),
                    "connect_timeout": timedelta(seconds=_CONNECT_S),
                },
                retry_config={"max_retries": 1, "retry_timeout": timedelta(seconds=_RETRY_S)},
            )
        except (exceptions.BaseError, ValueError):
            raise MisconfiguredError(
                f"{place.shown} cannot be used with the current AWS_… variables: check them"
            ) from None

    def put(self, key: str, content: BlobContent) -> bool:
        """Send an object in one request, or in several parts if it is large.

        Returns False if the object already existed.
        """
        checked_key(key)
        attributes = {_CHECKSUM: content.sha256, "Content-Type": "application/octet-stream"}
        if self._is_same(key, content, self._held(key)):
            return False
        is_new = True
        try:
            if content.size <= self._whole_bytes:
                self._put_whole(key, content, attributes)
                return True
            self._put_parts(key, content, attributes)
        except FileNotFoundError:  # for example, because another client ended the upload
            raise UnreachableError(
                f"{self.place.shown}: the server no longer has the upload"
            ) from None
        except self._errors.AlreadyExistsError:
            is_new = False
        # A server also answers 409 or 412 if the upload merely collides with another upload, which
        # may still fail. An upload in parts may also overwrite an object that another client stores
        # at the same time. So check the stored object itself.
        if not self._is_same(key, content, self._held(key)):
            raise UnreachableError(
                f"{self.place.uri(key)} does not exist yet, although the server reported that it"
                " does: the upload is retried; if this continues, allow s3:GetObject and"
                " s3:ListBucket"
            )
        return is_new

    def _put_parts(self, key: str, content: BlobContent, attributes: dict[str, str]) -> None:
        part = max(PART_BYTES, -(-content.size // _MOST_PARTS))
        with self._store_errors():
            self._obstore.put(
                self._store,
                key,
                self._until_interrupted(content.checked_pieces(part)),
                attributes=attributes,
                use_multipart=True,
                chunk_size=part,
                max_concurrency=_PARTS_AT_ONCE,
            )

    def _put_whole(self, key: str, content: BlobContent, attributes: dict[str, str]) -> None:
        data = b"".join(content.checked_pieces())
        with self._store_errors():
            self._obstore.put(self._store, key, data, attributes=attributes, mode="create")

    def _is_same(self, key: str, content: BlobContent, held: StoredObject | None) -> bool:
        """Return whether the object exists. Raises DifferentError if its content is different."""
        if held is None:
            return False
        if held.sha256 is not None:
            is_same = held == (content.size, content.sha256)
        else:
            is_same = held.size == content.size and self._reads_as(key, content)
        if is_same:
            return True
        raise DifferentError(
            f"{self.place.uri(key)} already exists with different content: remove it first"
        )

    def _reads_as(self, key: str, content: BlobContent) -> bool:
        theirs = iter(self.get(key))
        rest = b""
        for piece in content.pieces():
            while len(rest) < len(piece) and (more := next(theirs, b"")):
                rest += more
            if rest[: len(piece)] != piece:
                return False
            rest = rest[len(piece) :]
        return True

    def _held(self, key: str) -> StoredObject | None:
        try:
            return self.head(key)
        except _ForbiddenError:
            return None  # this is S3's response for a missing object if listing is not allowed

    def head(self, key: str) -> StoredObject | None:
        """Return the metadata of an object, or None if it does not exist."""
        checked_key(key)
        try:
            with self._store_errors():
                result = self._obstore.get(self._store, key, options={"head": True})
        except FileNotFoundError:
            return None
        return StoredObject(result.meta["size"], result.attributes.get(_CHECKSUM))

    def get(self, key: str) -> Iterator[bytes]:
        """Yield the content of an object. Raises FileNotFoundError if it does not exist."""
        checked_key(key)
        try:
            with self._store_errors():
                stream = self._obstore.get(self._store, key).stream(min_chunk_size=PIECE_BYTES)
                for piece in self._until_interrupted(iter(stream)):
                    yield bytes(piece)
        except FileNotFoundError:
            raise FileNotFoundError(f"{self.place.uri(key)} does not exist") from None

    def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        """Return the last bytes of an object, at most `length`, and the size of the object.

        Raises FileNotFoundError if it does not exist.
        """
        checked_key(key)
        with self._store_errors():
            options: Any = {"range": {"suffix": length}}
            result = self._obstore.get(self._store, key, options=options)
            return bytes(result.bytes()), result.meta["size"]

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return the bytes of an object from `start` to before `end`.

        Raises FileNotFoundError if it does not exist.
        """
        checked_key(key)
        with self._store_errors():
            return bytes(self._obstore.get_range(self._store, key, start=start, end=end))

    def list(self, folder: str) -> Iterator[ListedObject]:
        """Yield the objects below a folder, in the order of their keys."""
        checked_key(folder)
        pages = iter(self._obstore.list(self._store, folder, chunk_size=1000))
        while True:
            with self._store_errors():
                page = next(pages, None)
            if page is None:
                return
            for meta in page:
                yield ListedObject(meta["path"], meta["size"], meta["last_modified"])

    def delete(self, key: str) -> None:
        """Remove an object if it exists."""
        checked_key(key)
        try:
            with self._store_errors():
                self._obstore.delete(self._store, key)
        except FileNotFoundError:
            pass

    def interrupt(self) -> None:
        """Stop transfers at their next piece, and refuse later calls.

        Requests are not cancelled.
        """
        self._is_interrupted = True

    def _until_interrupted(self, pieces: Iterator[Any]) -> Iterator[Any]:
        for piece in pieces:
            self._go_on()
            yield piece

    def _go_on(self) -> None:
        if self._is_interrupted:
            raise StoppedError(f"stopped before {self.place.shown} received everything")

    @contextmanager
    def _store_errors(self) -> Iterator[None]:
        """Convert obstore's errors, whose text contains requests and their signatures."""
        self._go_on()
        errors = self._errors
        try:
            yield
        except errors.AlreadyExistsError:
            raise
        except FileNotFoundError as error:
            if _code(error) == "NoSuchBucket":
                raise self._misconfigured("NoSuchBucket") from None
            raise FileNotFoundError("no such object") from None
        except (errors.PermissionDeniedError, errors.UnauthenticatedError) as error:
            raise self._misconfigured(_code(error) or "AccessDenied") from None
        except errors.BaseError as error:
            raise self._failed(error) from None

    def _misconfigured(self, code: str) -> MisconfiguredError:
        kind = _ForbiddenError if code == "AccessDenied" else MisconfiguredError
        return kind(f"{self.place.shown} cannot be used: {_ABOUT_US[code]}" if code in _ABOUT_US
                    else f"{self.place.shown} cannot be used: the answer is {code}")  # fmt: skip

    def _failed(self, error: Exception) -> UnreachableError:
        text, code = str(error), _code(error)
        if code in _ABOUT_US:
            return self._misconfigured(code)
        if any(path in text for path in _OF_METADATA):
            return MisconfiguredError(
                f"{self.place.shown} cannot be used without credentials: set AWS_ACCESS_KEY_ID and"
                " AWS_SECRET_ACCESS_KEY, or use a machine that has a role"
            )
        match = _STATUS.search(text)
        status = match[1] if match else ""
        if status in _WITHOUT_WORDS and not code:
            return self._misconfigured("AccessDenied")
        answer = f"{status} {code}".strip()
        what = f"the server answered {answer}" if answer else _transport(text)
        return UnreachableError(f"{self.place.shown} cannot be reached: {what}")


class _ForbiddenError(MisconfiguredError):
    """The server refuses a request without giving a reason, for example a HEAD request."""


def _code(error: BaseException) -> str:
    match = _CODE.search(str(error))
    return match[1] if match else ""


def _transport(text: str) -> str:
    for sign, what in (
        ("ConnectionRefused", "the connection was refused"),
        ("dns error", "the host name is unknown"),
        ("kind: Timeout", "it did not answer in time"),
        ("certificate", "its certificate is not trusted"),
        ("https", "no TLS connection"),
    ):
        if sign in text:
            return f"{what}; check AWS_ENDPOINT_URL and AWS_REGION"
    return "no answer"
