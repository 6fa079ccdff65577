"""Targets that forward the headers of received requests (`exporters[].headers_from`).

Data that was received with different headers is sent in separate requests.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from ...core.delivery.batch_target import BlobSink, Receipt, SealedBatch
from ...core.delivery.blobs import local_blobs
from ...core.delivery.delivery_stats import ExportStats
from ...core.delivery.errors import MisconfiguredError, RefusedError
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

    A forwarded header replaces a header of the same name in the configuration.
    """

    request_bytes = 0

    def __init__(
        self,
        config: OtlpConfig,
        options: Options,
        index: SessionIndex,
        stats: ExportStats,
        *,
        names: Collection[str],
        headers_of: HeadersOf,
    ) -> None:
        """`names` are the headers to forward. Raises the errors of IndexedTarget."""
        super().__init__(config, options, index, stats)
        self._config, self._passed = config, _Lanes(names, headers_of)
        self.lane_of = self._passed.lane_of
        self._pushers: OrderedDict[TenantHeaders, Pusher] = OrderedDict({(): self._pusher})

    def send(self, batches: Sequence[SealedBatch]) -> Receipt:
        """Send one batch over the connection for its headers. Raises the errors of
        BatchTarget.send.
        """
        (batch,) = batches
        headers = self._passed.headers(batch.name)
        self._pusher = self._pusher_for(headers)
        with _of_one_lane(headers):
            return super().send(batches)

    def _pusher_for(self, headers: TenantHeaders) -> Pusher:
        pusher = self._pushers.get(headers)
        if pusher is None:
            config = replace(self._config, headers={**self._config.headers, **dict(headers)})
            pusher = Pusher(config, deadline=config.timeout, retry=False, stop=self._stop)
            if len(self._pushers) >= _MOST_PUSHERS:
                self._pushers.popitem(last=False)[1].close()
            self._pushers[headers] = pusher
        self._pushers.move_to_end(headers)
        return pusher

    def close(self) -> None:
        """Close the connections."""
        for pusher in self._pushers.values():
            pusher.close()


class ForwardingCirronTarget(CirronTarget):
    """A Cirron target that forwards the headers of batches."""

    tenants: Callable[[], Mapping[str, TenantHeaders]] = staticmethod(dict)
    """Returns the headers of each known tenant, by its id (`TenantStore.tenants`)."""
    _lanes = _Lanes((), lambda _: ())
    _passed: Mapping[str, str] = {}

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Accept the arguments of CirronTarget."""
        super().__init__(*arguments, **options)
        self.blobs = ForwardingBlobs(self, self.blobs)

    def pass_on(self, names: Collection[str], headers_of: HeadersOf) -> None:
        """Forward the headers `names`; `headers_of` maps a batch's name to all its headers."""
        self._lanes = _Lanes(names, headers_of)

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
