"""Snapshot files of several tenants: a tenant neither reads nor replaces another's."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from pathlib import Path

import msgspec
import pytest

from cirron_otel.collector.receiver.journal.files import PARTS, intake_directory
from cirron_otel.collector.receiver.tenancy import tenant_of
from cirron_otel.collector.service.header_forwarding import ForwardingCirronTarget
from cirron_otel.collector.service.logs import Logging
from cirron_otel.collector.service.worker import Worker
from cirron_otel.core.delivery.errors import RefusedError
from cirron_otel.core.spool.blobs import BlobKey, tenant_key
from cirron_otel.core.spool.eviction import CollectorFiles
from cirron_otel.core.spool.paths import SpoolPaths, file_name, target_spool
from cirron_otel.core.spool.writer import SpoolWriter
from cirron_otel.tools.cli import main
from cirron_otel.tools.cli.pruning import plan
from tests.core.targets.objects.made import file_of
from tests.kit.backends.process import free_endpoints
from tests.kit.servers.cirron_server import CirronServer
from tests.kit.servers.serving import Serving, serving
from tests.kit.spools.deliveries import KEY, until
from tests.kit.spools.made import (
    encoded,
    made,
    snapshot,
    span,
    span_id,
)

from .configs import options as collector_options
from .test_handing_on import configuration

FILE = "weights.safetensors"
URI = f"file:///x/snapshots/{span_id(1)}/{FILE}"
TENANTS = {"a": b"aaaa", "b": b"bbbb", "": b"none"}


def ask(here: Serving, method: str, path: str, body: bytes | None, tenant: str) -> int:
    """With each of the two headers that name a tenant, in turn."""
    headers = {"Content-Type": "application/json"}
    if tenant:
        headers["X-Scope-OrgID" if tenant == "a" else "X-Cirron-Workspace-Id"] = tenant
    request = urllib.request.Request(f"{here.http}{path}", body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def put(here: Serving, tenant: str) -> int:
    content = file_of({"weight": ("U8", [4], TENANTS[tenant])})
    path = f"/v1/traces/blobs/snapshots/{span_id(1)}/{FILE}"
    return ask(here, "PUT", path, content, tenant)


def batch(number: int, uri: str = URI) -> bytes:
    """Of one span, whose snapshot names the file of span 1."""
    snapshots = [snapshot(number, 1, mode="full", blob_uri=uri)]
    return encoded(made(number, spans=[span(1)], snapshots=snapshots))


def test_a_file_is_not_sent_without_the_headers_of_its_tenant(tmp_path: Path) -> None:
    """All batches of tenant b left the spool while its file waited: no other tenant gets it."""
    headers = {each: (("x-scope-orgid", each),) for each in ("a", "b")}
    keys = [tenant_key(BlobKey(span_id(1), FILE), tenant_of(headers[each])) for each in "ab"]
    for key in (*keys, BlobKey(span_id(1), FILE)):
        (tmp_path / key.directory).mkdir()
        (tmp_path / key.directory / key.file).write_bytes(b"values")
    with CirronServer().running() as server:
        target = ForwardingCirronTarget(server.url, "/v1/traces", KEY, "test", timeout=20.0)
        target.tenants = lambda: {tenant_of(headers["a"]): headers["a"]}
        assert target.blobs.upload(tmp_path, keys[1])  # nothing is forwarded
        target.pass_on(("x-scope-orgid",), lambda _: headers["a"])
        assert target.blobs.upload(tmp_path, keys[0])
        with pytest.raises(RefusedError, match="no batch of its tenant is left in the spool"):
            target.blobs.upload(tmp_path, keys[1])
        assert target.blobs.upload(tmp_path, BlobKey(span_id(1), FILE))
        target.close()


def objects(folder: Path) -> dict[str, list[bytes]]:
    """The values of the tensors in the store, by workspace."""
    found: dict[str, list[bytes]] = {}
    for path in sorted(folder.rglob("*.safetensors")):
        found.setdefault(path.relative_to(folder).parts[1], []).append(path.read_bytes()[-4:])
    return found


def test_who_names_anothers_span_gets_nothing_and_replaces_nothing(tmp_path: Path) -> None:
    """Also not through a URI that is made up of another's directory, or through the next hop."""
    store, behind = tmp_path / "objects", tmp_path / "behind"
    [http] = free_endpoints(1)
    names = "[x-scope-orgid, x-cirron-workspace-id]"
    config = configuration(
        tmp_path, f"{{type: cirron, endpoint: 'http://{http}', api_key: k, headers_from: {names}}}"
    )
    stolen = tenant_key(BlobKey(span_id(1), FILE), tenant_of((("x-scope-orgid", "a"),)))
    with (
        serving(behind, "--http", http),
        serving(tmp_path / "data", "--blobs", str(store), "--config", config) as here,
    ):
        assert put(here, "a") == 201
        for number, tenant in enumerate(("b", ""), start=1):
            assert ask(here, "HEAD", f"/v1/traces/blobs/snapshots/{span_id(1)}/{FILE}", None,
                       tenant) == 404  # fmt: skip
            for at, uri in enumerate((URI, f"file:///snapshots/{stolen.directory}/{FILE}")):
                body = batch(10 * number + at, uri)
                assert ask(here, "POST", "/v1/traces", body, tenant) < 300
        for tenant in ("b", ""):
            assert put(here, tenant) == 201
        assert ask(here, "POST", "/v1/traces", batch(1), "a") < 300
        expected = {"a": [b"aaaa"], "b": [b"bbbb"], "default": [b"none"]}
        until(lambda: objects(store) == expected)
        # The next collector keeps them apart, too.
        files = behind / "snapshots"
        until(lambda: len(list(files.glob(f"*/{FILE}"))) == 3)
        assert sorted(path.read_bytes()[-4:] for path in files.glob(f"*/{FILE}")) == sorted(
            TENANTS.values()
        )
        assert here.end() == 0
    assert objects(store) == expected


def test_a_readers_tools_find_the_files_of_tenants(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(tmp_path / "data") as here:
        assert put(here, "a") == 201
        assert ask(here, "POST", "/v1/traces", batch(1), "a") < 300
        until(lambda: list((tmp_path / "data/spool").glob("*.json")))
        assert here.end() == 0
    with pytest.raises(SystemExit):
        main(["spool", "verify", "--json", str(tmp_path / "data")])
    codes = {each["code"] for each in json.loads(capsys.readouterr().out)["findings"]}
    assert not codes & {"blob-missing", "blob-extra"}
    [removal] = plan(SpoolPaths.under(tmp_path / "data"), max_bytes=1, before_ns=None).removals
    assert len(removal.files) == 2


def test_a_file_of_a_tenant_stays_as_long_as_its_batch(tmp_path: Path) -> None:
    """Both files are older than every batch; unfinished uploads count towards the cap."""
    mine, other = (tmp_path / "snapshots" / f"{span_id(1)}~{t}" / FILE for t in ("aa", "bb"))
    for path in (mine, other):
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(1000))
        os.utime(path, (1, 1))
    unfinished = [0]
    beside = CollectorFiles(lambda _, key: tenant_key(key, "aa"), lambda: unfinished[0])
    data = batch(1)
    SpoolWriter(tmp_path, 10_000, beside=beside).write(data)
    assert mine.exists()
    assert other.exists()
    small = encoded(made(2))
    unfinished[0] = 10_000 - 1000 - len(data) - len(small)
    SpoolWriter(tmp_path, 10_000, beside=beside).write(small)
    assert mine.exists()
    assert not other.exists()
    unfinished[0] += 1
    SpoolWriter(tmp_path, 10_000, beside=beside).write(encoded(made(3)))
    assert not mine.exists()


def test_a_collector_keeps_the_files_of_each_tenant_as_long_as_their_batch(tmp_path: Path) -> None:
    """Its process that writes the spool knows the tenants, and counts unfinished uploads."""
    options = collector_options(tmp_path, {"spool": {"directory": str(tmp_path / "data")}})
    # Less than a configuration may have.
    options = msgspec.structs.replace(
        options, spool=msgspec.structs.replace(options.spool, max_bytes=10_000)
    )
    headers = (("x-scope-orgid", "a"),)
    keys = [tenant_key(BlobKey(span_id(1), FILE), tenant_of(each)) for each in (headers, ())]
    mine, other = (tmp_path / "data/snapshots" / key.directory / FILE for key in keys)
    for path in (mine, other):
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(1000))
        os.utime(path, (1, 1))
    data, small = batch(1), encoded(made(2))
    with Logging(options.logs, []) as logs:
        worker = Worker(options, logs)
        value = json.loads(data)
        name = file_name(value["created_ns"], value["batch_id"])
        worker._owners.claim(name, headers, is_there=False)
        worker._writer.write(data, name)
        assert mine.exists()
        parts = intake_directory(target_spool(tmp_path / "data").state) / PARTS
        parts.mkdir(parents=True)
        (parts / "unfinished").write_bytes(bytes(10_000 - 1000 - len(data) - len(small)))
        worker._writer.write(small)
        assert (mine.exists(), other.exists()) == (True, False)
        (parts / "unfinished").write_bytes(bytes(10_000 - 1000 - len(data)))
        worker._writer.write(encoded(made(3)))
        assert not mine.exists()
