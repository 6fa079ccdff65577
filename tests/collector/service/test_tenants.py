"""Several tenants at once: nothing of two is in one batch, and each goes on under its own name."""

from __future__ import annotations

import json
import sqlite3
import threading
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

from cirron_otel.collector.receiver.tenancy import (
    FILE_NAME,
    HELD_NAME,
    TenantStore,
    UnknownTenantError,
)
from cirron_otel.core.targets.sql.storage import Storage
from tests.kit.backends.process import free_endpoints
from tests.kit.servers.away import until
from tests.kit.servers.cirron_server import CirronServer
from tests.kit.servers.otlp_sink import otlp_sink
from tests.kit.servers.serving import Serving, serving

from .test_handing_on import configuration
from .test_running import post, record, request

TENANTS = ("a", "b")
COUNT = 20


def headers_of(tenant: str) -> dict[str, str]:
    return {"x-scope-orgid": tenant, "x-cirron-run-id": f"run-{tenant}"}


def send(here: Serving) -> None:
    """Of each tenant through both transports, all at the same time."""

    def of(tenant: str) -> None:
        told = headers_of(tenant)
        grpc = GrpcExporter(f"http://{here.grpc}", insecure=True, headers=tuple(told.items()))
        record(grpc, COUNT, f"{tenant}-grpc-")
        record(HttpExporter(f"{here.http}/v1/traces", headers=told), COUNT, f"{tenant}-http-")

    threads = [threading.Thread(target=of, args=(tenant,)) for tenant in TENANTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def expected(tenant: str) -> list[str]:
    return sorted(f"{tenant}-{way}-{n}" for way in ("grpc", "http") for n in range(COUNT))


def owned(folder: Path) -> dict[tuple[tuple[str, str], ...], list[str]]:
    """The names of the spans of a spool, by the headers that came with them."""
    owners = TenantStore(folder / "state" / FILE_NAME)
    found: dict[Any, list[str]] = defaultdict(list)
    for path in (folder / "spool").glob("*.json"):
        found[owners.of(path.name)] += [s["name"] for s in json.loads(path.read_bytes())["spans"]]
    owners.close()
    return {headers: sorted(names) for headers, names in found.items()}


def test_two_tenants_on_every_way(tmp_path: Path) -> None:
    """In rows, out as OTLP, out to the next collector as batches, and in its rows."""
    sink_at, grpc, http = free_endpoints(3)
    names = "[x-scope-orgid, x-cirron-run-id]"
    ways = (
        f"{{type: otlp, endpoint: 'http://{sink_at}', tenant: nobody, headers_from: {names}}}",
        f"{{type: cirron, endpoint: 'http://{http}', api_key: k, headers_from: {names}}}",
    )
    url, behind_url = (f"sqlite:///{tmp_path / name}.db" for name in ("first", "behind"))
    behind = Serving(tmp_path / "behind", "--grpc", grpc, "--http", http, "--storage", behind_url)
    config = configuration(tmp_path, *ways)
    with otlp_sink(sink_at) as sink:
        with serving(tmp_path / "data", "--config", config, "--storage", url) as here:
            send(here)
            assert (
                post(f"{here.http}/v1/traces", request("none"), "application/x-protobuf")[0] == 200
            )
            assert here.end() == 0
        assert behind.end() == 0
    truth = {tuple(sorted(headers_of(tenant).items())): expected(tenant) for tenant in TENANTS}
    assert owned(tmp_path / "data") == truth | {(): ["none"]}
    assert owned(tmp_path / "behind") == truth | {(): ["none"]}
    out: dict[tuple[str, str | None], set[str]] = defaultdict(set)
    for headers, spans in sink.metadata:
        out[headers["x-scope-orgid"], headers.get("x-cirron-run-id")] |= spans
    by_tenant = {(tenant, f"run-{tenant}"): set(expected(tenant)) for tenant in TENANTS}
    assert out == by_tenant | {("nobody", None): {"none"}}
    for each in (url, behind_url):
        with Storage.open(each, create=False) as storage:
            rows = storage.database.rows('SELECT "workspaceId", "runId", "name" FROM "TraceSpan"')
            found = {(str(w), str(r), str(n)) for w, r, n in rows if n != "none"}
        wanted = {(t, f"run-{t}", name) for t in TENANTS for name in expected(t)}
        assert found == wanted


BATCH = json.dumps(
    {"schema_version": 1, "sdk_version": "0.3.0", "batch_id": "ab" * 16, "created_ns": 7,
     "spans": [], "marks": [], "snapshots": []}
).encode()  # fmt: skip


@pytest.mark.parametrize("body", [BATCH, request()], ids=["a batch", "OTLP"])
def test_the_same_of_two_tenants_is_two(body: bytes, tmp_path: Path) -> None:
    kind = "application/json" if body is BATCH else "application/x-protobuf"
    with serving(tmp_path / "data") as here:
        for tenant in ("", "a", "b", "a", ""):
            told = {"Content-Type": kind} | ({"X-Scope-OrgID": tenant} if tenant else {})
            sent = urllib.request.Request(f"{here.http}/v1/traces", body, told)
            with urllib.request.urlopen(sent, timeout=30) as answer:
                assert answer.status in (200, 202)
        assert here.end() == 0
    assert len(list((tmp_path / "data" / "spool").iterdir())) == 3
    wanted = {(), *((("x-scope-orgid", tenant),) for tenant in TENANTS)}
    assert set(owned(tmp_path / "data")) == wanted


def test_a_header_that_cannot_be_sent_on_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as here:
        told = {"Content-Type": "application/x-protobuf", "X-Scope-OrgID": "a\tb"}
        sent = urllib.request.Request(f"{here.http}/v1/traces", request(), told)
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(sent, timeout=30)
    assert caught.value.code == 400


def test_file_tenants_persist_until_forgotten(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    owners = TenantStore(path)
    mine, other = (("x-scope-orgid", "a"),), (("x-scope-orgid", "b"),)
    assert owners.claim("1.json", (), is_there=False)
    assert owners.claim("2.json", mine, is_there=False)
    assert not owners.claim("2.json", other, is_there=True)
    assert owners.claim("2.json", mine, is_there=True)
    owners.close()
    owners = TenantStore(path)
    assert (owners.of("1.json"), owners.of("2.json")) == ((), mine)
    owners.retain(["1.json"])
    assert owners.of("2.json") == ()
    assert owners.claim("2.json", other, is_there=False)
    owners.close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_damaged_file_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(b"no database" * 100)
    owners = TenantStore(path)
    assert owners.claim("1.json", (("x-scope-orgid", "a"),), is_there=False)
    owners.close()
    assert path.with_name(FILE_NAME + ".damaged").read_bytes().startswith(b"no database")
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT COUNT(*) FROM whose").fetchone() == (1,)


def damage(path: Path) -> None:
    path.write_bytes(b"no database" * 100)


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("lose", [damage, remove])
def test_batches_of_unknown_tenants_are_held_until_an_operator_releases_them(
    lose: Callable[[Path], None], tmp_path: Path
) -> None:
    """By every kind of target. Batches that arrive afterwards are delivered."""
    sink_at, endpoint = free_endpoints(2)
    url = f"sqlite:///{tmp_path / 'rows.db'}"
    names = "[x-scope-orgid]"
    config = configuration(
        tmp_path,
        f"{{type: otlp, endpoint: 'http://{sink_at}', tenant: nobody, headers_from: {names}}}",
        f"{{type: cirron, endpoint: 'http://{endpoint}', api_key: k, headers_from: {names}}}",
    )
    targets = "--config", config, "--storage", url, "--parquet", str(tmp_path / "tables")
    with serving(tmp_path / "data") as here:
        send_as(here, "a", "one")
        assert here.end() == 0
    state = tmp_path / "data" / "state"
    for each in state.glob(f"{FILE_NAME}-*"):
        each.unlink()
    lose(state / FILE_NAME)
    platform = CirronServer()
    port = int(endpoint.rpartition(":")[2])
    with otlp_sink(sink_at) as sink, platform.running(port):
        with serving(tmp_path / "data", *targets) as here:
            send_as(here, "b", "two")
            until(lambda: len(sink.metadata) == 1 and len(platform.accepted) == 1)
            assert here.end() == 7
            log = here.log.read_text()
        assert "their tenants are not known" in log
        assert "is not sent, because its tenant is not known" in log
        assert sink.metadata[0][0]["x-scope-orgid"] == "b"
        assert owned_rows(url) == {("b", "two")}
        held = state / HELD_NAME
        assert len(held.read_text().splitlines()) == 1
        with serving(tmp_path / "data", *targets) as here:  # they stay held
            assert here.end() == 7
        held.unlink()
        with serving(tmp_path / "data", *targets) as here:
            until(lambda: len(sink.metadata) == 2 and len(platform.accepted) == 2)
            assert here.end() == 0
    assert sink.metadata[1][0]["x-scope-orgid"] == "nobody"
    assert owned_rows(url) == {("b", "two"), ("default", "one")}


def send_as(here: Serving, tenant: str, name: str) -> None:
    headers = {"Content-Type": "application/x-protobuf", "X-Scope-OrgID": tenant}
    sent = urllib.request.Request(f"{here.http}/v1/traces", request(name), headers)
    with urllib.request.urlopen(sent, timeout=30) as answer:
        assert answer.status == 200


def owned_rows(url: str) -> set[tuple[str, str]]:
    with Storage.open(url, create=False) as storage:
        rows = storage.database.rows('SELECT "workspaceId", "name" FROM "TraceSpan"')
    return {(str(owner), str(name)) for owner, name in rows}


def test_loss_of_the_file_holds_the_present_batches_only(tmp_path: Path) -> None:
    path, mine = tmp_path / FILE_NAME, (("x-scope-orgid", "a"),)
    present = ["1.json", "2.json"]

    def opened() -> TenantStore:
        return TenantStore(path, lambda: present)

    owners = opened()
    owners.close()
    path.unlink()
    owners = opened()  # no batch has had a tenant: nothing is lost
    assert owners.of("1.json") == ()
    assert owners.claim("2.json", mine, is_there=False)
    owners.close()
    damage(path)
    owners = opened()
    for name in present:
        with pytest.raises(UnknownTenantError, match="stop the collector"):
            owners.of(name)
        assert not owners.claim(name, mine, is_there=True)
    assert owners.claim("3.json", mine, is_there=False)
    owners.close()
    owners = opened()
    assert owners.of("3.json") == mine
    owners.retain(["2.json", "3.json"])
    assert [owners.is_held(name) for name in present] == [False, True]
    owners.retain(["3.json"])
    assert not (tmp_path / HELD_NAME).exists()
    owners.close()
