"""Conversions from files to files: any batch, long runs, selections, parts and names."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel import exactjson
from cirron_otel.core.otlp.files import MAX_MESSAGE_BYTES, TracesWriter
from cirron_otel.core.otlp.formats import Encoding, Format
from cirron_otel.core.placement.batch_outline import read_outline
from cirron_otel.core.placement.batch_placement import Plan
from cirron_otel.core.placement.segments import SEGMENT_RECORDS
from cirron_otel.core.placement.session_index import SessionIndex
from cirron_otel.core.translator.own.encode import encode_batch
from cirron_otel.errors import UsageError
from cirron_otel.tools.convert.convert import ConvertRequest, convert
from cirron_otel.tools.convert.messages import SizeLimits
from cirron_otel.tools.convert.report import Report
from cirron_otel.tools.convert.select import Selection
from tests.core.translator.test_lossless import PHASES, SLOW
from tests.kit.examples import examples
from tests.kit.generators import strategies as gen
from tests.kit.sessions.processes import until
from tests.kit.spools.comparing import (
    RECORDED,
    assert_same,
    batches,
    spans_of,
)
from tests.perf.bench import workload

SPOOL_01 = RECORDED / "01_torch_basic"


def spool_of(folder: Path, *contents: bytes) -> Path:
    (folder / "spool").mkdir(parents=True)
    for number, data in enumerate(contents):
        (folder / "spool" / f"{number:020d}-{'a' * 32}.json").write_bytes(data)
    return folder


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
@pytest.mark.parametrize("target", ["spool", "again.binpb"])
def test_bytes_read_of_json_is_the_size_of_the_documents(
    tmp_path: Path, indent: int | None, suffix: str, target: str
) -> None:
    document = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [{}]}]}]}, indent=indent)
    source = tmp_path / f"a.{suffix}"
    text = f"{document}\n\n{document}\n".encode()
    source.write_bytes(gzip.compress(text) if suffix.endswith("gz") else text)
    report = convert(ConvertRequest(str(source), str(tmp_path / target)))
    assert (report.spans, report.bytes_read) == (2, 2 * len(document))


def test_a_killed_conversion_leaves_nothing_after_the_next_one(tmp_path: Path) -> None:
    """A pipe that stays open keeps the first conversion at work."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    command = [sys.executable, "-m", "cirron_otel", "convert"]
    environment = {**os.environ, "TMPDIR": str(folder)}
    source = tmp_path / "a.jsonl"
    source.write_text('{"resourceSpans":[{"scopeSpans":[{"spans":[{}]}]}]}\n')
    os.mkfifo(tmp_path / "pipe.jsonl")
    for target in ("out.binpb", "steps.csv"):
        with (
            subprocess.Popen(
                [*command, tmp_path / "pipe.jsonl", tmp_path / target], env=environment
            ) as process,
            (tmp_path / "pipe.jsonl").open("wb") as pipe,
        ):
            pipe.write(source.read_bytes())
            pipe.flush()
            until(lambda: [*tmp_path.glob("*.tmp"), *folder.iterdir()] != [])
            process.kill()
        subprocess.run([*command, source, tmp_path / target], env=environment, check=False)
        assert list(tmp_path.glob("*.tmp")) == []
        assert list(folder.iterdir()) == []


@settings(max_examples=examples(150), deadline=None, suppress_health_check=SLOW, phases=PHASES)
@given(
    made=st.lists(gen.batches, min_size=1, max_size=3),
    layout=st.booleans(),
    limit=st.sampled_from([MAX_MESSAGE_BYTES, 4_000, 1_500]),
    form=st.sampled_from(["binpb", "jsonl"]),
)
def test_any_batches_through_files(made: list[Any], layout: bool, limit: int, form: str) -> None:
    """The limits are so small that many messages are split or refused."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = spool_of(folder / "in", *map(exactjson.dumps, made))
        file, limits = folder / f"traces.{form}", SizeLimits(message_bytes=limit)
        trace_layout = "session" if layout else "segmented"
        report = convert(ConvertRequest(str(source), str(file), layout=trace_layout, limits=limits))
        back = convert(ConvertRequest(str(file), str(folder / "back"), limits=limits))
        assert back.exit_code == 0
        assert limit < MAX_MESSAGE_BYTES or "too-large" not in {f.code for f in report.skipped}
        refused = {f.name for f in (*report.skipped, *back.skipped)}
        truth = {n: b for n, b in batches(source).items() if n not in refused}
        # a file is not a batch, and is reported, if a top-level key has another type than specified
        assert all(f.code not in ("untranslatable", "refused") for f in report.skipped)
        if truth:
            assert_same(batches(folder / "back"), truth)


@pytest.mark.parametrize("native", [True, False])
def test_a_long_run_is_cut_into_segments_and_comes_back(native: bool, tmp_path: Path) -> None:
    made = list(workload.batches(30, native=native))
    (tmp_path / "in" / "spool").mkdir(parents=True)
    for name, data in made:
        (tmp_path / "in" / "spool" / name).write_bytes(data)
    file = tmp_path / "traces.binpb"
    convert(ConvertRequest(str(tmp_path / "in"), str(file)))
    spans = spans_of(file)
    traces = Counter(span.trace_id for span in spans)
    assert len(traces) == 30 * 600 // SEGMENT_RECORDS + 1
    # a trace may grow by its last step beyond the limit, and by the spans that join traces
    assert max(traces.values()) <= SEGMENT_RECORDS + 20
    ids = {(span.trace_id, span.span_id) for span in spans}
    parents = {(s.trace_id, s.parent_span_id) for s in spans if s.parent_span_id}
    assert parents <= ids, "a parent is missing in its trace"
    roots = Counter(span.trace_id for span in spans if not span.parent_span_id)
    assert set(roots.values()) == {1}
    assert all((link.trace_id, link.span_id) in ids for span in spans for link in span.links)
    convert(ConvertRequest(str(file), str(tmp_path / "back")))
    assert_same(batches(tmp_path / "back"), batches(tmp_path / "in"))
    name = made[3][0]
    assert (tmp_path / "back" / "spool" / name).read_bytes() == made[3][1]


def test_counting_at_once_opens_the_same_segments_as_counting_each(tmp_path: Path) -> None:
    files = dict(workload.batches(25))
    at_once, one_by_one = SessionIndex(), SessionIndex()
    for name, data in files.items():
        at_once.observe(read_outline(data), name)
        one_by_one.observe(read_outline(data))
    at_once.count_all(lambda name: read_outline(files[name]))
    for data in files.values():
        one_by_one.count(read_outline(data))
    assert at_once._segments.by_session == one_by_one._segments.by_session
    assert at_once._segments.by_session


def test_two_parts_of_one_batch_are_not_duplicates(tmp_path: Path) -> None:
    joined = b""
    spans = 0
    for epoch in ("epoch=0", "epoch=1"):
        file = tmp_path / f"{epoch}.binpb"
        select = Selection.parse([epoch])
        spans += convert(ConvertRequest(str(SPOOL_01), str(file), select=select)).spans
        joined += file.read_bytes()
    both = tmp_path / "both.binpb"
    both.write_bytes(joined)
    report = convert(ConvertRequest(str(both), str(tmp_path / "back")))
    assert (report.spans, report.duplicates) == (spans, 0)
    found = [span for batch in batches(tmp_path / "back").values() for span in batch["spans"]]
    assert len({span["id"] for span in found}) == len(found) == spans


def test_selecting_everything_changes_nothing(tmp_path: Path) -> None:
    select = Selection.parse(["rank=0..3"])
    convert(ConvertRequest(str(SPOOL_01), str(tmp_path / "out"), select=select))
    assert_same(batches(tmp_path / "out"), batches(SPOOL_01))


@pytest.mark.parametrize("expression", ["rank", "rank=", "rank=x", "epoch=1..", "color=red"])
def test_invalid_selection_is_a_usage_error(expression: str) -> None:
    with pytest.raises(UsageError, match="cannot select by"):
        Selection.parse([expression])


def test_selecting_from_odd_records_reports_and_goes_on(tmp_path: Path) -> None:
    odd = {"schema_version": 1, "spans": [1], "marks": [{"span_id": [1]}, 5], "snapshots": []}
    strange = {"schema_version": 1, "spans": [{"id": "\ud800", "rank": [1]}], "marks": []}
    source = spool_of(tmp_path / "in", *(json.dumps(b).encode() for b in (odd, strange)))
    select = Selection.parse(["rank=0"])
    report = convert(ConvertRequest(str(source), str(tmp_path / "out.jsonl"), select=select))
    assert (report.batches, report.exit_code) == (0, 1), "nothing there has the rank 0"
    assert not (tmp_path / "out.jsonl").exists()


def test_the_report_of_a_batch_file_has_its_size(tmp_path: Path) -> None:
    data = exactjson.dumps(next(iter(batches(SPOOL_01).values())))
    source, file = spool_of(tmp_path / "in", data), tmp_path / "one.json"
    report = convert(ConvertRequest(str(source), str(file), target_format="batch"))
    assert (report.written, report.bytes_written) == (1, len(data))
    assert file.read_bytes() == data


def test_one_batch_nested_beyond_reason_does_not_stop_the_others(tmp_path: Path) -> None:
    deep = b'{"schema_version":1,"spans":[],"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    good = json.dumps({"schema_version": 1, "spans": [], "marks": [], "snapshots": []}).encode()
    source = spool_of(tmp_path / "in", deep, good)
    report = convert(ConvertRequest(str(source), str(tmp_path / "out.jsonl")))
    assert report.batches == 1
    assert [finding.name[:20] for finding in report.skipped] == ["0" * 20]


def test_a_name_that_leads_out_of_the_spool_is_refused_alone(tmp_path: Path) -> None:
    batch = {"schema_version": 1, "spans": []}
    file = tmp_path / "x.binpb"
    with file.open("wb") as stream, TracesWriter(stream, Format(Encoding.PROTO)) as writer:
        for name in ("../../evil.json", "good.json"):
            messages = encode_batch(batch, Plan("f" * 32), name)
            writer.write_message(TracesData(resource_spans=messages))
    report = convert(ConvertRequest(str(file), str(tmp_path / "back")))
    assert report.written == 1
    assert [finding.code for finding in report.skipped] == ["refused"]


def test_fields_json_cannot_express_are_reported_and_binary_preserves_them(tmp_path: Path) -> None:
    message = TracesData()
    span = message.resource_spans.add().scope_spans.add().spans.add(name="from the future")
    span.MergeFromString(b"\xc2\xb8\x02\x03new")  # field 5000, which OTLP does not have
    file, again = tmp_path / "in.binpb", tmp_path / "again.binpb"
    with file.open("wb") as stream, TracesWriter(stream, Format(Encoding.PROTO)) as writer:
        writer.write_message(message)
    convert(ConvertRequest(str(file), str(tmp_path / "spool")))
    convert(ConvertRequest(str(tmp_path / "spool"), str(again)))
    assert again.read_bytes() == file.read_bytes()
    report = convert(ConvertRequest(str(tmp_path / "spool"), str(tmp_path / "out.jsonl")))
    assert report.exit_code == 1
    assert [finding.code for finding in report.skipped] == ["json-loss"]


def test_a_report_of_losses_is_bounded() -> None:
    report, other = Report(), Report()
    report.lose(f"key {number}" for number in range(10_005))
    other.lose(f"key {number}" for number in range(10_007))
    report.add_problems(other)
    assert len(report.losses) == 10_001
    assert report.losses["other losses"] == 5 + 7
    assert sum(report.losses.values()) == 10_005 + 10_007


def test_a_batch_file_of_any_name(tmp_path: Path) -> None:
    (name, batch) = next(iter(batches(SPOOL_01).items()))
    file = tmp_path / "batch.txt"
    file.write_bytes(exactjson.dumps(batch))
    convert(ConvertRequest(str(file), str(tmp_path / "out.jsonl"), source_format="batch"))
    convert(ConvertRequest(str(tmp_path / "out.jsonl"), str(tmp_path / "back")))
    assert_same(batches(tmp_path / "back"), {name: batch})
