"""Cirron's schemas page, of what the SDK itself writes.

docs/conformance.md says which sentence each test holds; what holds of the format as such is tested
in tests/core/spool.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

import cirron_otel as ci
from cirron_otel.core.records.validate import validate_batch
from cirron_otel.core.spool.paths import parse_name
from tests.core.spool.test_format_text import PROGRAM
from tests.kit.servers.cirron_server import CirronServer, Fault
from tests.kit.sessions.opened import opened, recorded
from tests.kit.sessions.spool_trees import OVERHEAD, Spool, read_spool

BATCH = ["schema_version", "sdk_version", "batch_id", "created_ns", "spans", "marks", "snapshots"]
SPAN: dict[str, tuple[type, ...]] = {
    "id": (str,), "name": (str,), "parent_id": (str, type(None)), "index": (int, type(None)),
    "start_ns": (int,), "end_ns": (int,), "cpu_ns": (int, type(None)),
    "gpu_ns": (int, type(None)), "memory_peak_bytes": (int, type(None)), "thread_id": (int,),
    "pid": (int,), "rank": (int,), "attrs": (dict,), "mark_ids": (list,),
}  # fmt: skip
MARK: dict[str, tuple[type, ...]] = {
    "id": (str,), "span_id": (str,), "name": (str,), "value_type": (str,),
    "value": (float, int, str, bool, type(None)), "attrs": (dict,), "ts_ns": (int,), "kind": (str,),
}  # fmt: skip
HEX32 = r"[0-9a-f]{32}"


def train() -> None:
    for _ in ci.epochs(range(2)):
        for step in ci.batches(range(3)):
            with ci.scope("forward", layer="conv1", depth=step):
                ci.mark("loss", 0.5, step=step)
            ci.mark("good", step == 1)
        ci.mark("accuracy", 3, kind="summary")
        ci.mark("stage", "train")
        ci.flush()


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return recorded(tmp_path / "run", train)


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "run" / "spool").iterdir())


def test_a_file_is_named_after_its_time_and_id_and_holds_one_batch(
    spool: Spool, tmp_path: Path
) -> None:
    found = files(tmp_path)
    assert len(found) == len(spool.batches) >= 3
    for path, batch in zip(found, spool.batches, strict=True):
        assert path.suffix == ".json"
        assert path.name == f"{batch['created_ns']:020}-{batch['batch_id']}.json"
        assert parse_name(path.name) == (batch["created_ns"], batch["batch_id"])


def test_a_batch_id_is_a_uuid4_without_dashes(spool: Spool) -> None:
    ids = [batch["batch_id"] for batch in spool.batches]
    for batch_id in ids:
        assert uuid.UUID(batch_id).hex == batch_id
        assert uuid.UUID(batch_id).version == 4
    assert len(set(ids)) == len(ids)


def test_created_ns_is_the_time_of_sealing_and_orders_the_files(tmp_path: Path) -> None:
    before = time.time_ns()
    found = recorded(tmp_path, train)
    created = [batch["created_ns"] for batch in found.batches]
    assert created == sorted(set(created))
    assert before <= created[0] < created[-1] <= time.time_ns()
    for batch in found.batches:
        assert all(span["end_ns"] <= batch["created_ns"] for span in batch["spans"])


def test_a_batch_has_the_keys_of_the_page_and_otel(spool: Spool) -> None:
    for batch in spool.batches:
        assert list(batch) == [*BATCH, "otel"]
        assert batch["schema_version"] == 1
        assert batch["sdk_version"].startswith("0.3.0+cirron-otel.")
        assert batch["snapshots"] == []


def test_a_span_has_the_keys_and_types_of_the_page(spool: Spool) -> None:
    assert len(spool.spans) == 1 + 2 + 6 + 6
    for span in spool.spans:
        assert [key for key in span if key != "otel"] == list(SPAN)
        for key, types in SPAN.items():
            assert type(span[key]) in types, key
        assert span["start_ns"] <= span["end_ns"]


def test_a_mark_has_the_keys_and_types_of_the_page(spool: Spool) -> None:
    names = {"float": float, "int": int, "string": str, "bool": bool}
    assert {mark["value_type"] for mark in spool.marks} == set(names)
    for mark in spool.marks:
        assert list(mark) == list(MARK)
        for key, types in MARK.items():
            assert type(mark[key]) in types, key
        assert type(mark["value"]) is names[mark["value_type"]]
        assert mark["kind"] in ("point", "summary")


def test_ids_are_32_hex_digits_and_unique(spool: Spool) -> None:
    ids = [record["id"] for record in (*spool.spans, *spool.marks)]
    assert len(set(ids)) == len(ids)
    for found in ids:
        assert len(found) == 32
        assert int(found, 16)
        assert found == found.lower()


def test_every_batch_is_valid(spool: Spool, tmp_path: Path) -> None:
    for path in files(tmp_path):
        assert validate_batch(path.read_bytes(), path.name) == []


def test_unmeasured_span_fields_are_null(spool: Spool) -> None:
    for span in spool.spans:
        assert [span[key] for key in ("cpu_ns", "gpu_ns", "memory_peak_bytes")] == [None] * 3


def test_mark_ids_holds_every_mark_of_the_span_also_of_earlier_batches(tmp_path: Path) -> None:
    def act() -> None:
        with ci.scope("epoch"):
            for number in range(5):
                ci.mark("number", number)
                ci.flush()

    found = recorded(tmp_path, act)
    epoch = found.session.one("epoch")
    assert [value for _, value in epoch.values] == list(range(5))
    assert [mark["id"] for mark in epoch.marks] == epoch.record["mark_ids"]
    apart = [batch for batch in found.batches if batch["marks"] and not batch["spans"]]
    assert len(apart) >= 4
    for node in (found.session, *found.session.find("epoch")):
        assert {mark["id"] for mark in node.marks} == set(node.record["mark_ids"])


def test_times_are_wall_clock_nanoseconds(tmp_path: Path) -> None:
    before = time.time_ns()

    def act() -> None:
        with ci.scope("forward"):
            ci.mark("loss", 0.5)

    found = recorded(tmp_path, act)
    forward = found.session.one("forward")
    at = forward.mark("loss")["ts_ns"]
    slack = 50_000_000  # the clock is anchored when the package is imported, and may have drifted
    assert before - slack <= forward.record["start_ns"] <= at <= forward.record["end_ns"]
    assert forward.record["end_ns"] <= time.time_ns() + slack
    assert forward.mark(OVERHEAD)["ts_ns"] == forward.record["end_ns"]


def test_the_reading_program_of_the_page_reads_it(spool: Spool, tmp_path: Path) -> None:
    (tmp_path / "run").rename(tmp_path / ".cirron")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    expected = [f"{span['name']} {span['end_ns'] - span['start_ns']}" for span in spool.spans]
    assert done.stdout.splitlines() == expected


def test_a_reader_never_sees_a_part_of_a_batch(tmp_path: Path) -> None:
    """Files are read while they come, and every one of them is whole."""
    seen: set[str] = set()

    def look() -> None:
        for path in (tmp_path / "spool").glob("*.json"):
            json.loads(path.read_bytes())
            seen.add(path.name)

    number = 0
    with opened(tmp_path, flush_interval=0.005):
        while len(seen) < 20:
            for _ in range(50):
                with ci.scope("step", number, text="x" * 200):
                    number += 1
            look()
            time.sleep(0.002)
    assert len(read_spool(tmp_path).session.find("step")) == number
    assert not list((tmp_path / "spool").glob("*.tmp"))


class TestWire:
    @pytest.fixture
    def server(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.delenv("CIRRON_RUN_ID", raising=False)
        with CirronServer().running() as server:
            monkeypatch.setenv("CIRRON_API_KEY", "key")
            monkeypatch.setenv("CIRRON_API_ENDPOINT", server.url)
            yield server

    def test_request_body_is_the_spooled_batch_byte_for_byte(
        self, server: CirronServer, tmp_path: Path
    ) -> None:
        recorded(tmp_path / "run", train)
        sent = [gzip.decompress(request.body) for request in server.posts()]
        assert sorted(sent) == sorted(path.read_bytes() for path in files(tmp_path))
        for request in server.posts():
            assert request.headers["content-type"] == "application/json"
            assert request.headers["content-encoding"] == "gzip"

    def test_a_rate_limit_is_waited_for_and_nothing_is_lost(
        self, server: CirronServer, tmp_path: Path
    ) -> None:
        server.faults = [Fault(status=429, headers={"Retry-After": "1"})]
        found = recorded(tmp_path, train)
        assert set(server.accepted) == {batch["batch_id"] for batch in found.batches}
        assert len(server.accepted) == len(found.batches)

    def test_batch_with_a_lost_response_is_resent_with_the_same_id(
        self, server: CirronServer, tmp_path: Path
    ) -> None:
        server.faults = [Fault(is_lost=True)]
        found = recorded(tmp_path, train)
        assert set(server.accepted) == {batch["batch_id"] for batch in found.batches}
        assert len(server.accepted) == len(found.batches) + 1
