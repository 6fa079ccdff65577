"""Every destination of the package, with a real server or file behind it."""

from __future__ import annotations

import io
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cirron_otel.collector.service.blob_sender import BlobSender
from cirron_otel.core.delivery.batch_target import BatchTarget
from cirron_otel.core.spool.paths import SpoolPaths
from cirron_otel.core.targets.cirron.batches import CirronTarget
from cirron_otel.core.targets.event_stream import EventStreamTarget
from cirron_otel.core.targets.objects import open_store
from cirron_otel.core.targets.otlp.config import OtlpConfig, OtlpProtocol
from cirron_otel.core.targets.otlp.target import OtlpTarget
from cirron_otel.core.targets.sql.ownership import OwnerContext
from cirron_otel.core.targets.sql.storage import Storage
from cirron_otel.core.targets.sql.target import StorageTarget
from cirron_otel.core.translator.own.encode import Options
from tests.kit.backends.process import free_endpoints
from tests.kit.servers.cirron_server import CirronServer, Fault, Received
from tests.kit.servers.servers import GrpcReceiver, HttpReceiver, span_ids

from .archive import ArchiveTarget

SECRET = "cirron_secret_0123456789"


class Destination(ABC):
    """One kind of target, and access to what its server or file has received."""

    reads_batches = True
    """Whether the target refuses a content that is not a batch."""

    @abstractmethod
    def target(self) -> BatchTarget:
        """Return a new target with this destination."""

    @abstractmethod
    def unavailable(self) -> BatchTarget:
        """Return a target of the same kind, and another destination that does not respond."""

    @abstractmethod
    def arrived(self) -> list[int]:
        """Return the numbers of the batches that arrived, each once for every time."""

    def files(self) -> list[bytes] | None:
        """Return the content of the snapshot files that arrived; None if it accepts none."""
        return None


class OtlpHttp(Destination):
    def __init__(self, server: HttpReceiver) -> None:
        self._server = server

    def target(self) -> BatchTarget:
        return self._to(self._server.url)

    def unavailable(self) -> BatchTarget:
        return self._to(f"http://{free_endpoints(1)[0]}/v1/traces")

    def arrived(self) -> list[int]:
        return span_ids([post.body for post in self._server.posts])

    @staticmethod
    def _to(url: str) -> BatchTarget:
        headers = {"authorization": SECRET}
        config = OtlpConfig(OtlpProtocol.HTTP_PROTOBUF, url, timeout=20, headers=headers)
        return OtlpTarget(config, Options())


class OtlpGrpc(Destination):
    def __init__(self, server: GrpcReceiver) -> None:
        self._server = server

    def target(self) -> BatchTarget:
        return self._to(f"127.0.0.1:{self._server.port}", 20)

    def unavailable(self) -> BatchTarget:
        return self._to(free_endpoints(1)[0], 1)

    def arrived(self) -> list[int]:
        return span_ids([call.body for call in self._server.calls])

    @staticmethod
    def _to(endpoint: str, timeout: float) -> BatchTarget:
        headers = {"authorization": SECRET}
        config = OtlpConfig(
            OtlpProtocol.GRPC, endpoint, insecure=True, timeout=timeout, headers=headers
        )
        return OtlpTarget(config, Options())


class CirronHttp(Destination):
    def __init__(self, server: CirronServer) -> None:
        self._server = server
        server.faults = [_refuse_what_is_no_batch] * 1000

    def target(self) -> BatchTarget:
        return CirronTarget(self._server.url, "/v1/traces", SECRET, "test", timeout=20)

    def unavailable(self) -> BatchTarget:
        return CirronTarget(f"http://{free_endpoints(1)[0]}", "/v1/traces", SECRET, "test")

    def arrived(self) -> list[int]:
        ids = self._server.accepted
        return [_number(span) for each in ids for span in self._server.batches[each]["spans"]]

    def files(self) -> list[bytes]:
        return [bytes(content) for content in self._server.blobs.values()]


def _refuse_what_is_no_batch(received: Received) -> Fault | None:
    content: Any = received.batch
    return None if isinstance(content, dict) else Fault(422)


class Sql(Destination):
    def __init__(self, url: str) -> None:
        self._url = url

    def target(self) -> BatchTarget:
        return StorageTarget(self._url)

    def unavailable(self) -> BatchTarget:
        if self._url.startswith("sqlite"):
            return StorageTarget("sqlite:////dev/null/storage.sqlite")
        return StorageTarget(f"postgresql://user:{SECRET}@{free_endpoints(1)[0]}/database")

    def arrived(self) -> list[int]:
        with Storage.open(self._url) as storage:
            batches = [json.loads(data) for _, data in storage.batches()]
        return [_number(span) for batch in batches for span in batch["spans"]]


class EventStream(Destination):
    """Standard output, in whose place the target accepts any text stream."""

    def __init__(self) -> None:
        self._stream = io.StringIO()

    def target(self) -> BatchTarget:
        return EventStreamTarget("test", self._stream)

    def unavailable(self) -> BatchTarget:
        closed = io.StringIO()
        closed.close()
        return EventStreamTarget("test", closed)

    def _events(self, kind: str) -> list[Any]:
        events = [json.loads(line) for line in self._stream.getvalue().splitlines()]
        return [each["payload"] for each in events if each["__cirron_event__"] == kind]

    def arrived(self) -> list[int]:
        return [_number(span) for batch in self._events("trace_batch") for span in batch["spans"]]

    def files(self) -> list[bytes]:
        return [Path(each["local_path"]).read_bytes() for each in self._events("trace_blob")]


class Blobs(Destination):
    """A directory or a bucket. What arrives are the tensors of snapshot files."""

    reads_batches = False

    def __init__(self, url: str, paths: SpoolPaths) -> None:
        self._url, self._paths = url, paths
        self._senders: list[BlobSender] = []

    def target(self) -> BatchTarget:
        return self._started(self._paths)

    def unavailable(self) -> BatchTarget:
        """The store itself is used by another thread; what fails here is the list of uploads."""
        other = SpoolPaths.under(self._paths.root / "other")
        target = self._started(other)
        self._senders.pop().finish(10)
        target._pending.close()  # type: ignore[attr-defined]
        for path in other.state.glob("uploads-*"):
            path.unlink()
        other.state.rmdir()
        return target

    def _started(self, paths: SpoolPaths) -> BatchTarget:
        sender = BlobSender(self._url, None, OwnerContext(), lambda _: ())
        self._senders.append(sender)
        return sender.start(paths)

    def arrived(self) -> list[int]:
        for sender in self._senders:
            sender.finish(30)
        self._senders.clear()
        return [int(match[1], 16) for key in self._keys() if (match := _SPAN.search(key))]

    def _keys(self) -> list[str]:
        place = open_store(self._url).place
        if place.path is not None:
            return [str(path) for path in place.path.rglob("*") if path.is_file()]
        import obstore
        from obstore.store import S3Store

        store = S3Store(place.bucket, prefix=place.prefix, client_options={"allow_http": True})
        return [each["path"] for page in obstore.list(store) for each in page]


_SPAN = re.compile(r"/([0-9a-f]{16})[0-9a-f]{16}/[^/]*$")
"""The span in a key, which ends in the span and the tensor."""


class Archive(Destination):
    def __init__(self, path: Path) -> None:
        self._path = path

    def target(self) -> BatchTarget:
        return ArchiveTarget(self._path)

    def unavailable(self) -> BatchTarget:
        return ArchiveTarget(Path("/dev/null/archive"))

    def arrived(self) -> list[int]:
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        return [_number(span) for line in lines for span in json.loads(line)["spans"]]


def _number(span: dict[str, Any]) -> int:
    return int(span["id"][:16], 16)


@contextmanager
def cirron_destination() -> Iterator[Destination]:
    with CirronServer().running() as server:
        yield CirronHttp(server)
