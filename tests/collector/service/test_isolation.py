"""What one tenant's or one batch's refusal does to the others: nothing."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from cirron_otel.collector.receiver.tenancy import HELD_NAME, TenantHeaders, UnknownTenantError
from cirron_otel.collector.service.exporter_options import OtlpExporter
from cirron_otel.collector.service.header_forwarding import ForwardingCirronTarget
from cirron_otel.collector.service.metrics import EXPORTED_BATCHES, Registry
from cirron_otel.collector.service.otlp_sender import OtlpSender
from cirron_otel.collector.service.target_sender import TargetSender
from cirron_otel.collector.service.targets import otlp_config
from cirron_otel.core.spool.paths import SpoolPaths, file_name
from cirron_otel.core.spool.writer import SpoolWriter
from tests.kit.spools.deliveries import KEY, until

from .endpoints import (
    Decide,
    Endpoint,
    grpc_endpoint,
    http_endpoint,
)

HTTP = {
    "400": 400, "404": 404, "413": 413, "422": 422, "431": 431,
    "401": 401, "403": 403, "429": 429, "500": 500, "503": 503, "lost": None,
}  # fmt: skip
GRPC = {
    "INVALID_ARGUMENT": 3, "UNAUTHENTICATED": 16, "PERMISSION_DENIED": 7, "INTERNAL": 13,
    "RESOURCE_EXHAUSTED": 8, "UNAVAILABLE": 14, "UNIMPLEMENTED": 12, "NOT_FOUND": 5,
}  # fmt: skip
UNSENDABLE = {"blanks": "   ", "at the end": "a ", "beyond Latin-1": "\u4e2d", "a line": "a\nb"}
ABOUT_NO_BATCH = ("401", "429", "503", "UNAUTHENTICATED", "RESOURCE_EXHAUSTED", "UNAVAILABLE")
GOOD = 5


class Spool:
    """A spool whose batches belong to tenants."""

    def __init__(self, root: Path) -> None:
        self.paths = SpoolPaths.under(root)
        self.writer = SpoolWriter(root, None, durable=False)
        self.tenants: dict[str, str] = {}
        self.held: set[str] = set()
        """The batches whose tenant is not known."""
        self._count = 0
        self.timeout_s = 10.0
        self.end_s = 20.0
        """How long to wait for the end of an exporter, seconds."""
        self._following: OtlpSender | TargetSender | None = None

    def put(self, tenant: str, span: str) -> str:
        name = self.write(tenant, span)
        self.announce([name])
        return name

    def announce(self, names: list[str]) -> None:
        if self._following is not None:
            self._following.stored(names)

    def write(self, tenant: str, span: str) -> str:
        """Write a batch of one span, without announcing it."""
        self._count += 1
        number = self._count
        name = file_name(1_790_000_000_000_000_000 + number, f"{number:032x}")
        self.tenants[name] = tenant
        record = {
            "id": f"{number:032x}", "name": span, "parent_id": None, "index": number,
            "start_ns": number, "end_ns": number + 1, "cpu_ns": None, "gpu_ns": None,
            "memory_peak_bytes": None, "thread_id": 1, "pid": 1, "rank": 0, "attrs": {},
            "mark_ids": [],
        }  # fmt: skip
        batch = {
            "schema_version": 1, "sdk_version": "0.3.0", "batch_id": f"{number:032x}",
            "created_ns": 1_790_000_000_000_000_000 + number, "spans": [record], "marks": [],
            "snapshots": [], "otel": {"session": f"{number:032x}"},
        }  # fmt: skip
        self.writer.write(json.dumps(batch).encode(), name)
        return name

    def headers_of(self, name: str) -> TenantHeaders:
        if name in self.held:
            raise UnknownTenantError(name, self.paths.state / HELD_NAME)
        tenant = self.tenants[name]
        return (("x-scope-orgid", tenant),) if tenant else ()

    @contextlib.contextmanager
    def followed(self, endpoint: Endpoint, protocol: str, *, passes: bool) -> Iterator[Registry]:
        exporter = OtlpExporter(
            endpoint=endpoint.url,
            protocol=protocol,
            headers_from=("x-scope-orgid",) if passes else (),
            timeout_s=self.timeout_s,
        )
        registry = Registry()
        following: OtlpSender | TargetSender
        if protocol == "cirron":
            target = ForwardingCirronTarget(endpoint.url, "/v1/traces", KEY, "test")
            target.pass_on(exporter.headers_from, self.headers_of, exporter.requests_in_flight)
            following = TargetSender(self.paths, target, registry, "cirron")
        else:
            following = OtlpSender(
                self.paths, exporter, otlp_config(exporter), self.headers_of, registry
            )
        self._following = following
        try:
            yield registry
        finally:
            self._following = None
            following.end(self.end_s)


def by_tenant(kinds: Mapping[str, int | None]) -> Decide:
    return lambda tenant, _: kinds.get(tenant, 200)


def by_span(kinds: Mapping[str, int | None]) -> Decide:
    return lambda _, name: kinds.get(name, 200)


ENDPOINTS = {"http/protobuf": (http_endpoint, HTTP), "grpc": (grpc_endpoint, GRPC)}


@pytest.mark.parametrize("protocol", ENDPOINTS)
def test_no_tenant_holds_up_another(tmp_path: Path, protocol: str) -> None:
    """Several batches of each kind of trouble come first, and again and again."""
    serve, kinds = ENDPOINTS[protocol]
    spool = Spool(tmp_path)
    bad = {**dict.fromkeys(kinds), **UNSENDABLE}
    for turn in range(GOOD):
        for kind, tenant in bad.items():
            spool.put(tenant or kind, f"{kind}-{turn}")
        spool.put("good", f"good-{turn}")
    with serve(by_tenant(kinds)) as endpoint, spool.followed(endpoint, protocol, passes=True):
        until(lambda: len(endpoint.names()) == GOOD)
        before = len(endpoint.asked)
        for turn in range(GOOD):
            spool.put("good", f"late-{turn}")
            until(lambda: f"late-{turn}" in endpoint.names())  # noqa: B023
        tenants = {tenant for tenant, _ in endpoint.asked}
    # No lane was tried to its end before the others got their turn.
    assert before < len(bad) * GOOD * 2
    assert endpoint.accepted[:GOOD] == [("good", f"good-{turn}") for turn in range(GOOD)]
    assert len(endpoint.accepted) == 2 * GOOD
    assert tenants == {"good", *kinds}  # nothing was sent in the name of a changed tenant


@pytest.mark.parametrize("protocol", ENDPOINTS)
def test_no_batch_holds_up_another(tmp_path: Path, protocol: str) -> None:
    """The same where all tenants look alike to the endpoint."""
    serve, kinds = ENDPOINTS[protocol]
    kinds = {kind: status for kind, status in kinds.items() if kind not in ABOUT_NO_BATCH}
    spool = Spool(tmp_path)
    for kind in kinds:
        spool.put("", kind)
        spool.put("", f"good-{kind}")
    (tmp_path / "spool" / "00-damaged.json").write_bytes(b"{")
    (tmp_path / "spool" / "00-a-directory.json").mkdir()
    with serve(by_span(kinds)) as endpoint, spool.followed(endpoint, protocol, passes=False):
        until(lambda: len(endpoint.names()) == len(kinds))
        for turn in range(GOOD):
            spool.put("", f"late-{turn}")
            until(lambda: f"late-{turn}" in endpoint.names())  # noqa: B023
    assert sorted(endpoint.names()) == sorted(
        [f"good-{kind}" for kind in kinds] + [f"late-{turn}" for turn in range(GOOD)]
    )


def test_a_tenant_that_may_send_again_loses_nothing(tmp_path: Path) -> None:
    """What is refused for the time being comes when it is taken, in order and once."""
    kinds: dict[str, int | None] = {"401": 401, "429": 429, "503": 503, "lost": None}
    spool = Spool(tmp_path)
    for turn in range(3):
        for kind in (*kinds, "good"):
            spool.put(kind, f"{kind}-{turn}")
    troubled = dict(kinds)
    with http_endpoint(by_tenant(troubled)) as endpoint:
        with spool.followed(endpoint, "http/protobuf", passes=True) as registry:
            until(lambda: len(endpoint.names()) == 3)
            troubled.clear()
            until(lambda: len(endpoint.names()) == 15)
        exported = dict(registry.totals()[EXPORTED_BATCHES])
    for kind in (*kinds, "good"):
        names = [name for tenant, name in endpoint.accepted if tenant == kind]
        assert sorted(names) == [f"{kind}-{turn}" for turn in range(3)]
    assert list(exported.values()) == [[15.0]]


def test_an_endpoint_that_refuses_all_gets_few_requests(tmp_path: Path) -> None:
    """And keeps everything: a wrong key, or a server that is down."""
    spool = Spool(tmp_path)
    for number in range(200):
        spool.put("", f"{number}")
    statuses = {"": 401}
    with (
        http_endpoint(by_tenant(statuses)) as endpoint,
        spool.followed(endpoint, "http/protobuf", passes=True),
    ):
        until(lambda: endpoint.requests >= 3)
        time.sleep(1.0)
        assert endpoint.requests < 10
        statuses.clear()
        until(lambda: len(endpoint.names()) == 200)
    assert sorted(map(int, endpoint.names())) == list(range(200))
