"""An S3 server on loopback that answers uploads with a conflict while it holds no such object.

S3 answers 409 (ConditionalRequestConflict) to an upload that collides with another one, and that
other one may fail. It checks no signatures; versitygw, which does, never answers so.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_WORDS = {409: "ConditionalRequestConflict", 412: "PreconditionFailed"}


class ConflictingS3(ThreadingHTTPServer):
    """The server: `code` answers the first `conflicts` uploads of each object."""

    daemon_threads = True

    def __init__(self, code: int, conflicts: int, missing: int = 404) -> None:
        """`missing` answers a HEAD of what is not there: 403 for those who may not list."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.code, self.conflicts, self.missing = code, conflicts, missing
        self.objects: dict[str, tuple[bytes, dict[str, str]]] = {}
        self.tries: Counter[str] = Counter()
        self.arriving: dict[str, tuple[bytes, dict[str, str]]] = {}
        """Objects that another client puts while the next upload is under way."""
        self.attributes: dict[str, dict[str, str]] = {}
        """Of uploads in parts, by key."""
        self.parts: dict[str, dict[int, bytes]] = {}

    def environment(self) -> dict[str, str]:
        """The variables of an AWS SDK that lead here."""
        return {
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.server_port}",
        }

    def is_conflict(self, key: str) -> bool:
        """Whether this upload is answered with a conflict."""
        self.objects |= self.arriving
        self.tries[key] += 1
        return self.tries[key] <= self.conflicts


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ConflictingS3

    @property
    def _key(self) -> str:
        return unquote(urlsplit(self.path).path)

    def _attributes(self) -> dict[str, str]:
        return {k: v for k, v in self.headers.items() if k.lower().startswith("x-amz-meta-")}

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _answer(
        self, status: int, body: bytes = b"", headers: Iterable[tuple[str, str]] = ()
    ) -> None:
        self.send_response(status)
        for pair in headers:
            self.send_header(*pair)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _conflict(self) -> None:
        code = self.server.code
        self._answer(code, f"<Error><Code>{_WORDS[code]}</Code></Error>".encode())

    def do_HEAD(self) -> None:
        found = self.server.objects.get(self._key)
        if found is None:
            self._answer(self.server.missing)
            return
        body, attributes = found
        self.send_response(200)
        for pair in (
            *attributes.items(),
            ("Content-Length", str(len(body))),
            ("ETag", f'"{md5(body, usedforsecurity=False).hexdigest()}"'),
            ("Last-Modified", formatdate(usegmt=True)),
        ):
            self.send_header(*pair)
        self.end_headers()

    def do_PUT(self) -> None:
        body, key = self._body(), self._key
        query = parse_qs(urlsplit(self.path).query)
        if "partNumber" in query:
            self.server.parts.setdefault(key, {})[int(query["partNumber"][0])] = body
        elif self.server.is_conflict(key):
            self._conflict()
            return
        else:
            self.server.objects[key] = (body, self._attributes())
        self._answer(200, headers=[("ETag", f'"{len(body)}"')])

    def do_POST(self) -> None:
        self._body()
        key = self._key
        if "uploads" in self.path:
            self.server.attributes[key] = self._attributes()
            text = "<{0}><UploadId>1</UploadId></{0}>".format("InitiateMultipartUploadResult")
            self._answer(200, text.encode())
        elif self.server.is_conflict(key):
            self._conflict()
        else:
            parts = self.server.parts.pop(key)
            whole = b"".join(parts[number] for number in sorted(parts))
            self.server.objects[key] = (whole, self.server.attributes[key])
            text = '<CompleteMultipartUploadResult><ETag>"1"</ETag></CompleteMultipartUploadResult>'
            self._answer(200, text.encode())

    def do_DELETE(self) -> None:
        self._answer(204)

    def log_message(self, *_: Any) -> None:
        """Write nothing."""


@contextmanager
def conflicting(code: int, conflicts: int, missing: int = 404) -> Iterator[ConflictingS3]:
    """Run one."""
    with ConflictingS3(code, conflicts, missing) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()
