"""Targets that forward the headers of received requests (`exporters[].headers_from`).

Data that was received with different headers is sent in separate requests.
"""

from __future__ import annotations

import contextlib
import copy
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from ...core.delivery.batch_target import BlobSink, Receipt, SealedBatch
from ...core.delivery.blobs import local_blobs
from ...core.delivery.delivery_stats import ExportStats
from ...core.delivery.errors import (
    MisconfiguredError,
    RefusedError,
    StoppedError,
    UnreachableError,
)
from ...core.delivery.indexed import IndexedTarget
from ...core.http.client import HttpAnswer
from ...core.placement.session_index import SessionIndex
from ...core.spool.blobs import BlobKey, tenant_key, tenant_of_directory
from ...core.targets.cirron.batches import CirronTarget
from ...core.targets.otlp.config import OtlpConfig
from ...core.targets.otlp.pusher import Pusher
from ...core.translator.own.encode import Options
from ...errors import TargetError
from ..receiver.headers import FIELD_VALUE
from ..receiver.tenancy import HELD, TenantHeaders, UnknownTenantError, tenant_of

_MOST_PUSHERS = 32
"""The maximum number of open connections, one for each recently used set of headers."""

HeadersOf = Callable[[str], TenantHeaders]
"""Returns the headers that were received with the data of a batch, by its file name."""

_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")


class _Lanes:
    """Determines the headers that are forwarded with a batch.

    The batches with the same forwarded headers form a lane.
    """

    def __init__(self, names: Collection[str], headers_of: HeadersOf) -> None:
        """`names` are the headers that are forwarded."""
        self.names, self.headers_of = frozenset(names), headers_of

    def headers(self, name: str) -> TenantHeaders:
        """Return the headers that are forwarded with a batch.

        Raises RefusedError if they cannot be sent in a request.
        """
        headers = self.named(self.headers_of(name))
        for key, value in headers:
            if not (_NAME.fullmatch(key) and (not value or FIELD_VALUE.fullmatch(value))):
                raise RefusedError(
                    f"the header {key} received with {name} cannot be forwarded: expected printable"
                    " ASCII without blanks at the ends"
                )
        return headers

    def lane_of(self, name: str) -> str:
        """Return the lane of a batch: its forwarded headers as JSON text."""
        try:
            return json.dumps(self.named(self.headers_of(name))) if self.names else ""
        except UnknownTenantError:
            return HELD
        except TargetError:  # reported when the batch is sent
            return ""

    def named(self, headers: TenantHeaders) -> TenantHeaders:
        """Return those of `headers` that are forwarded."""
        return tuple(each for each in headers if each[0] in self.names)


class ForwardingOtlpTarget(IndexedTarget):
    """An OTLP target that forwards the headers of batches.

    A forwarded header replaces a header of the same name in the configuration. Requests with
    different headers are in flight at the same time, each over a connection of its own.
    """

    def __init__(
        self,
        config: OtlpConfig,
        options: Options,
        index: SessionIndex,
        stats: ExportStats,
        *,
        names: Collection[str],
        headers_of: HeadersOf,
        most_in_flight: int = 1,
    ) -> None:
        """`names` are the headers to forward. At most `most_in_flight` requests are in flight.

        Raises the errors of IndexedTarget.
        """
        super().__init__(config, options, index, stats)
        self._config, self._passed = config, _Lanes(names, headers_of)
        self.lane_of, self.most_in_flight = self._passed.lane_of, most_in_flight
        self._pushers: OrderedDict[TenantHeaders, Pusher] = OrderedDict({(): self._pusher})
        self._busy: set[TenantHeaders] = set()
        """The headers of the requests in flight, whose connections must stay open."""

    @property
    def request_bytes(self) -> int:
        """The maximum size in bytes of the batches in one request, as JSON.

        It follows the smallest limit that was learned from any tenant's requests. Otherwise a group
        would be split into parts, and accepted parts would be repeated if another part fails.
        """
        limits = (pusher.max_request_bytes for pusher in self._pushers.values())
        return min(super().request_bytes, *limits)

    def send(self, batches: Sequence[SealedBatch]) -> Receipt:
        """Send batches with the same headers over the connection for these.

        Raises the errors of BatchTarget.send.
        """
        return self.prepared(batches)()

    def prepared(self, batches: Sequence[SealedBatch]) -> Callable[[], Receipt]:
        """Encode batches, and return a function that sends them, from any thread.

        Raises RefusedError if they cannot be sent, or have different headers.
        """
        headers, *others = dict.fromkeys(self._passed.headers(batch.name) for batch in batches)
        if others:
            raise RefusedError("these batches have different headers")
        if headers in self._busy:  # their lane was not known when they were queued
            raise UnreachableError("another request with the headers of these batches is in flight")
        with _of_one_lane(headers):
            send = self._prepared(batches, self._pusher_for(headers))
        self._busy.add(headers)
        return partial(self._send_over, headers, send)

    def _send_over(self, headers: TenantHeaders, send: Callable[[], Receipt]) -> Receipt:
        try:
            with _of_one_lane(headers):
                return send()
        finally:
            self._busy.discard(headers)

    def _pusher_for(self, headers: TenantHeaders) -> Pusher:
        pusher = self._pushers.get(headers)
        if pusher is None:
            config = replace(self._config, headers={**self._config.headers, **dict(headers)})
            pusher = Pusher(config, deadline=config.timeout, retry=False, stop=self._stop)
            if len(self._pushers) >= max(_MOST_PUSHERS, 2 * self.most_in_flight):
                oldest = next(each for each in self._pushers if each not in self._busy)
                self._pushers.pop(oldest).close()
            self._pushers[headers] = pusher
        self._pushers.move_to_end(headers)
        return pusher

    def close(self) -> None:
        """Close the connections."""
        for pusher in self._pushers.values():
            pusher.close()


class ForwardingCirronTarget(CirronTarget):
    """A Cirron target that forwards the headers of batches.

    Requests with different headers are in flight at the same time, each over a connection of its
    own.
    """

    most_in_flight = 1

    tenants: Callable[[], Mapping[str, TenantHeaders]] = staticmethod(dict)
    """Returns the headers of each known tenant, by its id (`TenantStore.tenants`)."""
    _lanes = _Lanes((), lambda _: ())
    _passed: Mapping[str, str] = {}

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Accept the arguments of CirronTarget."""
        super().__init__(*arguments, **options)
        self.blobs = ForwardingBlobs(self, self.blobs)
        self._siblings: list[ForwardingCirronTarget] = []
        """This target with other connections, for requests in flight at the same time."""
        self._idle: list[ForwardingCirronTarget] = []
        """The siblings that send nothing."""

    def pass_on(
        self, names: Collection[str], headers_of: HeadersOf, most_in_flight: int = 1
    ) -> None:
        """Forward the headers `names`, with at most `most_in_flight` requests in flight.

        `headers_of` maps a batch's name to all its headers.
        """
        self._lanes = _Lanes(names, headers_of)
        self.most_in_flight = most_in_flight if names else 1

    def headers_of(self, name: str) -> TenantHeaders:
        """Return all headers that were received with a batch."""
        return self._lanes.headers_of(name)

    def lane_of(self, name: str) -> str:
        """Return the lane of a batch: its forwarded headers as JSON text."""
        return self._lanes.lane_of(name)

    @property
    def has_passed_headers(self) -> bool:
        """Whether any headers are forwarded."""
        return bool(self._lanes.names)

    def with_headers(self, headers: TenantHeaders) -> contextlib.AbstractContextManager[None]:
        """Return a context in which every request is sent with those of `headers` that are
        forwarded.
        """
        return self._with(dict(self._lanes.named(headers)))

    @contextlib.contextmanager
    def _with(self, passed: Mapping[str, str]) -> Iterator[None]:
        self._passed = passed
        try:
            yield
        finally:
            self._passed = {}

    def send(self, batches: Sequence[SealedBatch]) -> Receipt:
        """POST one batch with its headers. Raises the errors of BatchTarget.send."""
        (batch,) = batches
        headers = self._lanes.headers(batch.name)
        with self._with(dict(headers)), _of_one_lane(headers):
            return super().send(batches)

    def prepared(self, batches: Sequence[SealedBatch]) -> Callable[[], Receipt]:
        """Return a function that sends one batch over a free connection, from any thread."""
        if self._is_interrupted:
            raise StoppedError(f"stopped before {self.shown} took everything")
        if self._idle:
            sibling = self._idle.pop()
        else:
            sibling = copy.copy(self)
            sibling._client = self._connect()
            self._siblings.append(sibling)
        return partial(self._send_over, sibling, batches)

    def _send_over(
        self, sibling: ForwardingCirronTarget, batches: Sequence[SealedBatch]
    ) -> Receipt:
        try:
            return sibling.send(batches)
        finally:
            self._idle.append(sibling)

    def interrupt(self) -> None:
        """Cancel the requests in progress, and refuse all later ones."""
        super().interrupt()
        for sibling in self._siblings:
            sibling._is_interrupted = True
            sibling._client.interrupt()

    def close(self) -> None:
        """Close the connections."""
        for client in (self._client, *(sibling._client for sibling in self._siblings)):
            client.close()

    def _request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | BinaryIO | None = None,
        seconds: float | None = None,
    ) -> HttpAnswer:
        request_names = {name.lower() for name in (*self._headers, *headers)}
        passed = {name: value for name, value in self._passed.items() if name not in request_names}
        return super()._request(method, path, {**passed, **headers}, body, seconds)


class ForwardingBlobs:
    """A BlobSink that uploads each snapshot file with the headers of its tenant."""

    awaits_files = True

    def __init__(self, target: ForwardingCirronTarget, blobs: BlobSink) -> None:
        """`blobs` uploads one file to `target`."""
        self._target, self._blobs = target, blobs
        self._tenants: Mapping[str, TenantHeaders] = {}

    def keys_of(self, name: str, data: bytes) -> list[BlobKey]:
        """Return the keys under which a batch's snapshot files are stored for its tenant."""
        keys = local_blobs(data)
        tenant = tenant_of(self._target.headers_of(name)) if keys else ""
        return [tenant_key(key, tenant) for key in keys]

    def upload(self, snapshots: Path, key: BlobKey) -> bool:
        """Upload one part of a file; True if the file is complete. Raises the errors of BlobSink.

        If the tenant's headers are unknown, the file is refused: otherwise it would be uploaded for
        another tenant.
        """
        tenant = tenant_of_directory(key.directory)
        if tenant not in self._tenants:
            self._tenants = {"": (), **self._target.tenants()}
        headers = self._tenants.get(tenant)
        if headers is None and self._target.has_passed_headers:
            raise RefusedError(
                f"{key.directory}/{key.file} is not sent: no batch of its tenant is left in the"
                " spool, so the tenant's headers are not known"
            )
        with self._target.with_headers(headers or ()):
            return self._blobs.upload(snapshots, key)


@contextlib.contextmanager
def _of_one_lane(headers: TenantHeaders) -> Iterator[None]:
    """Convert a 431 response (headers too large) to a refusal of the batch with these headers."""
    try:
        yield
    except MisconfiguredError as error:
        if headers and error.status.startswith("431"):
            refused = RefusedError(str(error), error.result, status=error.status)
            refused.refusal = error.refusal
            raise refused from None
        raise
