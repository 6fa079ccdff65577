"""All recordings through processors of a real Collector, and back to a spool.

Each batch comes back equal but for the values that the processor changed. If it does not, the
conversion lists it and ends with exit code 1.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel import exactjson
from cirron_otel import semconv as sc
from cirron_otel.core.placement import segments
from cirron_otel.tools.convert import indexing
from cirron_otel.tools.convert.convert import ConvertRequest, convert
from cirron_otel.tools.convert.report import Report
from tests.kit.backends import run
from tests.kit.spools.comparing import batches, recorded

from .through import messages_of

pytestmark = [pytest.mark.backends, pytest.mark.xdist_group("otelcol processors")]

Batch = dict[str, Any]


@dataclass(frozen=True)
class Passed:
    """The recordings after the Collector."""

    directory: Path
    truth: dict[str, Batch]
    """Every batch by its file's name."""


def once(messages: list[TracesData]) -> list[TracesData]:
    return messages


def twice_and_merged(messages: list[TracesData]) -> list[TracesData]:
    """All messages twice, in any order, and three spools in one request."""
    mixed = messages * 2
    random.Random(17).shuffle(mixed)
    return [
        TracesData(resource_spans=[g for each in mixed[at : at + 9] for g in each.resource_spans])
        for at in range(0, len(mixed), 9)
    ]


@pytest.fixture(scope="module", params=[("segmented", once), ("session", twice_and_merged)],
                ids=["segmented", "session-twice"])  # fmt: skip
def passed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Passed:
    """One Collector for all processors, with segments of 20 records."""
    layout, arranged = request.param
    folder = tmp_path_factory.mktemp("processors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexing, "SEGMENT_FROM", 20)
        patch.setattr(segments, "SEGMENT_RECORDS", 20)
        messages = [m for spool in recorded() for m in as_otlp(spool, folder, layout)]
    sent = arranged(messages)
    names = [s.name for m in sent for r in m.resource_spans for c in r.scope_spans for s in c.spans]
    assert (sc.CONTINUATION_SPAN in names or sc.SEGMENT_SPAN in names) == (layout == "segmented")
    spans = len(names)
    with run.otelcol(run.PROCESSORS, folder) as collector, requests.Session() as session:
        for message in sent:
            done = session.post(
                f"{collector.otlp_http}/v1/traces", data=message.SerializeToString(),
                headers={"content-type": "application/x-protobuf"},
            )  # fmt: skip
            assert done.status_code == 200, done.text
        for name in (*EXPECTED, *LOSSY):
            run.wait_for_spans(folder / f"{name}.jsonl", spans)
    truth = {name: batch for spool in recorded() for name, batch in batches(spool).items()}
    return Passed(folder, truth)


def as_otlp(spool: Path, folder: Path, layout: str) -> list[TracesData]:
    file = folder / f"{spool.name}.binpb"
    convert(ConvertRequest(str(spool), str(file), layout=layout, jobs=1))
    return messages_of(file)


def converted(passed: Passed, name: str, target: Path) -> tuple[Report, dict[str, Batch]]:
    report = convert(ConvertRequest(str(passed.directory / f"{name}.jsonl"), f"{target}/", jobs=1))
    return report, batches(target)


# --- what the processors do ---------------------------------------------------------------------


def on_attrs(change: Callable[[Batch], object]) -> Callable[[Batch], None]:
    def on_batch(batch: Batch) -> None:
        for span in batch["spans"]:
            change(span["attrs"])

    return on_batch


def hashed(attrs: Batch) -> None:
    if "k" in attrs:
        attrs["k"] = "a hash"


def with_pod(batch: Batch) -> None:
    otel = batch.setdefault("otel", {})
    otel.setdefault("resource", {}).setdefault("attributes", {})["k8s.pod.name"] = "pod-7"


def renamed(batch: Batch) -> None:
    otel = batch.setdefault("otel", {})
    otel.setdefault("resource", {}).setdefault("attributes", {})["service.name"] = "renamed"


def unchanged(batch: Batch) -> None:
    """Apply a deletion of the service's name, which the encoder added to a batch without one."""
    batch.get("otel", {}).get("resource", {}).get("attributes", {}).pop("service.name", None)


def without_pid(batch: Batch) -> None:
    for span in batch["spans"]:
        span["pid"] = None


EXPECTED: dict[str, Callable[[Batch], object]] = {
    "insert": on_attrs(lambda attrs: attrs.setdefault("env", "prod")),
    "upsert": on_attrs(lambda attrs: attrs.update(mode="changed")),
    "update": on_attrs(lambda attrs: attrs.update({"mode": "changed"}) if "mode" in attrs else 0),
    "delete": on_attrs(lambda attrs: attrs.pop("k", None)),
    "hash": on_attrs(hashed),
    "resource-insert": with_pod,
    "resource-upsert": renamed,
    "resource-delete": unchanged,
    "pid": without_pid,
}
"""Processors that leave every record one of Cirron's."""

LOSSY = ["thread", "truncate", "group"]
"""Processors after which some spans are not as the encoder writes them, or come under others."""


@pytest.mark.parametrize("name", EXPECTED)
def test_equal_but_for_the_change(passed: Passed, name: str, tmp_path: Path) -> None:
    report, found = converted(passed, name, tmp_path)
    assert report.exit_code == 0, report.to_json()
    assert found.keys() == passed.truth.keys()
    for file, batch in passed.truth.items():
        expected = copy.deepcopy(batch)
        EXPECTED[name](expected)
        if name == "hash":
            on_attrs(hashed)(found[file])
        assert exactjson.equal(found[file], expected), file


@pytest.mark.parametrize("name", LOSSY)
def test_every_loss_is_listed(passed: Passed, name: str, tmp_path: Path) -> None:
    report, found = converted(passed, name, tmp_path)
    missing = passed.truth.keys() - found.keys()
    assert report.exit_code == (1 if missing else 0)
    parts = {
        batch["otel"]["part"].get("batch_id"): file
        for file, batch in found.items()
        if "part" in batch.get("otel", {})
    }
    for file in missing if name != "group" else ():  # it merges scopes of different batches
        part = parts.get(passed.truth[file]["batch_id"])
        is_part = part is not None and any(line.startswith(part) for line in report.incomplete)
        assert is_part or any(file in line for line in report.losses), file
    text = b"".join(map(exactjson.dumps, found.values()))
    for batch in passed.truth.values():
        for record in (*batch["spans"], *batch["marks"], *batch["snapshots"]):
            assert record["id"].encode() in text, "each record is kept, as a record or as a span"
