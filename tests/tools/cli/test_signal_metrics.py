"""`--signal metrics` of `convert` and `export`: one point for each reading, at its time."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from google.protobuf import json_format
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from cirron_otel.core.otlp.framing import messages as framed_messages
from cirron_otel.tools.convert import metric_source
from cirron_otel.tools.convert.metric_source import MetricSource
from cirron_otel.tools.convert.report import Report
from tests.kit.servers.metrics_sink import (
    GRPC,
    HTTP,
    SINKS,
    Sink,
    http_sink,
)
from tests.kit.spools.metric_recordings import (
    CLI_TRACK,
    RECORDINGS,
    SIM_GPU,
    SOURCES,
    Points,
    Record,
    attributes_of,
    batch_of,
    is_healthy,
    points_of,
    records_of,
    required,
    session_span,
    spool_of,
    write_batches,
)
from tests.tools.conftest import Run, one_line

NAMES = ["m.jsonl", "m.json", "m.jsonl.gz", "m.json.zst", "m.binpb", "m.binpb.gz", "m.binpb.zst"]


def read(path: Path) -> list[dict[str, Any]]:
    """The messages of a file, as OTLP/JSON."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    elif path.suffix == ".zst":
        data = zstandard.ZstdDecompressor().decompressobj().decompress(data)
    if ".binpb" in path.name:
        parsed = [
            MetricsData.FromString(each) for _, _, each in framed_messages(iter([data]), 2**30)
        ]
        return [json_format.MessageToDict(each) for each in parsed]
    return [json.loads(line) for line in data.splitlines()]


def spool_batches(records: list[Record], spool: Path) -> list[dict[str, Any]]:
    return [
        json.loads(path.read_bytes())
        for path in sorted((spool_of(records, spool) / "spool").iterdir())
    ]


def total(points: Points) -> int:
    return sum(map(len, points.values()))


class TestConvert:
    @pytest.mark.parametrize("name", RECORDINGS)
    def test_each_point_is_a_reading_at_its_time(self, name: str, run: Run, tmp_path: Path) -> None:
        records = records_of(RECORDINGS[name])
        spool_of(records, tmp_path / "run")
        result = run("convert", "run", "m.jsonl", "--signal", "metrics", "--json")
        assert (result.returncode, result.stderr) == (0, "")
        expected = required(records)
        assert points_of(read(tmp_path / "m.jsonl")) == expected
        report = json.loads(result.stdout)
        used = ("sample", "allocation", "deallocation")
        assert report["points"] == total(expected)
        assert report["marks"] == sum(
            record["event_type"] in used and is_healthy(record) for record in records
        )
        assert report["spans"] == 0
        assert report["bytes_written"] == (tmp_path / "m.jsonl").stat().st_size

    @pytest.mark.parametrize("name", SOURCES)
    def test_a_recording_of_stormlog(self, name: str, run: Run, tmp_path: Path) -> None:
        result = run("convert", SOURCES[name], "m.jsonl", "--signal", "metrics", "--json")
        assert (result.returncode, result.stderr) == (0, "")
        expected = required(records_of(RECORDINGS[name]))
        assert points_of(read(tmp_path / "m.jsonl")) == expected
        assert json.loads(result.stdout)["points"] == total(expected)

    @pytest.mark.parametrize("name", NAMES)
    def test_formats(self, name: str, run: Run, tmp_path: Path) -> None:
        records = records_of([SIM_GPU])
        spool_of(records, tmp_path / "run")
        result = run("convert", "run", name, "--signal", "metrics")
        assert (result.returncode, result.stderr) == (0, "")
        assert points_of(read(tmp_path / name)) == required(records)
        assert result.stdout.startswith(
            f"4 batches ({total(required(records))} points of 24 marks)"
        )

    def test_the_resource_is_the_sessions(self, run: Run, tmp_path: Path) -> None:
        spool_of(records_of([CLI_TRACK]), tmp_path / "run")
        for batch in (tmp_path / "run" / "spool").iterdir():
            text = batch.read_text().replace(
                '"host.name": "vm"',
                '"host.name": "vm", "vcs.ref.head.revision": "1", "cirron.config.lr": 1',
            )
            batch.write_text(text)
        run("convert", "run", "m.jsonl", "--signal", "metrics")
        (message,) = read(tmp_path / "m.jsonl")
        (group,) = message["resourceMetrics"]
        records = records_of([CLI_TRACK])
        assert attributes_of(group["resource"]) == {
            "service.name": "cirron",
            "process.pid": str(records[0]["pid"]),
            "cirron.rank": "0",
            "cirron.session.id": records[0]["session_id"].replace("-", ""),
            "host.name": "vm",
        }
        metrics = group["scopeMetrics"][0]["metrics"]
        starts = {
            point["startTimeUnixNano"]
            for metric in metrics
            if metric["name"] == "process.memory.usage"
            for point in metric["sum"]["dataPoints"]
        }
        assert starts == {str(records[0]["timestamp_ns"])}

    def test_every_source_has_the_same_points(self, run: Run, tmp_path: Path) -> None:
        records = records_of([SIM_GPU])
        spool_of(records, tmp_path / "run")
        assert run("convert", "run", "t.binpb").returncode == 0
        assert run("convert", "run", "t.jsonl").returncode == 0
        for source in ("t.binpb", "t.jsonl"):
            result = run("convert", source, "m.jsonl", "--signal", "metrics")
            assert (result.returncode, result.stderr) == (0, "")
            assert points_of(read(tmp_path / "m.jsonl")) == required(records)

    def test_to_stdout(self, run: Run, tmp_path: Path) -> None:
        records = records_of([CLI_TRACK])
        spool_of(records, tmp_path / "run")
        result = run("convert", "run", "-", "--signal", "metrics")
        assert result.returncode == 0
        assert points_of([json.loads(line) for line in result.stdout.splitlines()]) == required(
            records
        )

    def test_a_selection(self, run: Run, tmp_path: Path) -> None:
        records = records_of(RECORDINGS["distributed"])
        spool_of(records, tmp_path / "run")
        wanted = [record for record in records if record["rank"] == 1]
        session = wanted[0]["session_id"].replace("-", "")
        for selection in (f"session={session[:6]}", f"session={session}"):
            result = run("convert", "run", "m.jsonl", "--signal", "metrics", "--select", selection)
            assert result.returncode == 0, result.stderr
            assert points_of(read(tmp_path / "m.jsonl")) == required(wanted)

    def test_messages_are_bounded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        records = records_of([SIM_GPU])
        monkeypatch.setattr(metric_source, "POINTS", 25)
        spool_of(records, tmp_path / "run", marks_in_batch=1000)
        source, report = MetricSource(str(tmp_path / "run"), "cirron"), Report()
        sizes, points = [], {}
        for message in source.messages(report, None):
            document = json_format.MessageToDict(message)
            sizes.append(total(points_of([document])))
            for key, series in points_of([document]).items():
                points.setdefault(key, []).extend(series)
        assert max(sizes) < 25 + 8
        assert len(sizes) == report.messages > 5
        assert points == required(records)

    def test_a_sample_twice_is_one_point(self, run: Run, tmp_path: Path) -> None:
        records = records_of([CLI_TRACK])
        doubled = [record for each in records for record in (each, each)]
        spool_of(doubled, tmp_path / "run")
        assert run("convert", "run", "m.jsonl", "--signal", "metrics").returncode == 0
        assert points_of(read(tmp_path / "m.jsonl")) == required(records)

    def test_two_values_at_one_time_are_reported(self, run: Run, tmp_path: Path) -> None:
        records = records_of([CLI_TRACK])
        sample = next(record for record in records if record["event_type"] == "sample")
        at = records.index(sample)
        records.insert(at + 1, sample | {"allocator_allocated_bytes": 1})
        spool_of(records, tmp_path / "run")
        result = run("convert", "run", "m.jsonl", "--signal", "metrics")
        assert result.returncode == 1
        assert "another value at the same time" in result.stderr
        del records[at + 1]
        assert points_of(read(tmp_path / "m.jsonl")) == required(records)

    def test_odd_batches(self, run: Run, tmp_path: Path) -> None:
        """A batch without a session, with a NaN token, and with fields of other types."""
        session, step = "a" * 32, "b" * 32
        spans = [session_span(session, [{"timestamp_ns": 50, "pid": 3, "rank": 2}])]
        spans.append(spans[0] | {"id": step, "parent_id": session, "name": "step"})
        marks = [
            {"id": "c" * 32, "span_id": step, "name": "memory", "value_type": "int", "value": 5,
             "attrs": {"backend": "cpu", "odd": float("nan")}, "ts_ns": 70, "kind": "point"},
            {"id": "d" * 32, "span_id": step, "name": "memory", "value": 5, "attrs": []},
            {"id": 7, "span_id": None, "name": "memory", "attrs": {"backend": "cpu"},
             "value": 5, "ts_ns": "later"},
        ]  # fmt: skip
        first = batch_of(session, 1, spans, marks[:1])
        second = batch_of(session, 2, [], marks)
        for batch in (first, second):
            del batch["otel"]
        second["marks"][0] = marks[0] | {"ts_ns": 90, "value": 6}
        write_batches(tmp_path / "run", [first, second])
        result = run("convert", "run", "m.jsonl", "--signal", "metrics")
        assert (result.returncode, result.stderr) == (0, "")
        messages = read(tmp_path / "m.jsonl")
        assert points_of(messages) == {(session, "process.memory.usage", ()): [(70, 5), (90, 6)]}
        (group,) = messages[0]["resourceMetrics"]
        assert attributes_of(group["resource"])["cirron.rank"] == "2"

    def test_processes_of_one_session_have_separate_resources(
        self, run: Run, tmp_path: Path
    ) -> None:
        first = records_of([CLI_TRACK])
        second = [record | {"rank": 1, "pid": 9} for record in first]
        batches = [
            *spool_batches(first, tmp_path / "first"),
            *(
                batch | {"batch_id": batch["batch_id"][::-1]}
                for batch in spool_batches(second, tmp_path / "second")
            ),
        ]
        write_batches(tmp_path / "run", batches)
        result = run("convert", "run", "m.jsonl", "--signal", "metrics")
        assert (result.returncode, result.stderr) == (0, "")
        (message,) = read(tmp_path / "m.jsonl")
        by_rank = {
            attributes_of(group["resource"])["cirron.rank"]: points_of(
                [{"resourceMetrics": [group]}]
            )
            for group in message["resourceMetrics"]
        }
        assert by_rank == {"0": required(first), "1": required(first)}

    def test_a_torn_batch_is_reported(self, run: Run, tmp_path: Path) -> None:
        spool_of(records_of([SIM_GPU]), tmp_path / "run")
        torn = min((tmp_path / "run" / "spool").iterdir())
        torn.write_bytes(torn.read_bytes()[:-20])
        result = run("convert", "run", "m.jsonl", "--signal", "metrics")
        assert result.returncode == 1
        assert result.stderr.count("skipped") == 1
        assert torn.name in result.stderr

    @pytest.mark.usefixtures("spool")
    @pytest.mark.parametrize("select", [(), ("--select", "rank=9")])
    def test_without_samples(self, select: tuple[str, ...], run: Run, tmp_path: Path) -> None:
        (tmp_path / "m.jsonl").write_text("old")
        result = run("convert", ".cirron", "m.jsonl", "--signal", "metrics", *select)
        assert "no memory sample" in one_line(result, 1)
        assert (tmp_path / "m.jsonl").read_text() == "old"

    @pytest.mark.parametrize(
        ("arguments", "problem"),
        [(["out"], "format spool"), (["out/"], "format spool"),
         (["m.json", "--to", "batch"], "format batch"),
         (["m.pb", "--to", "cirron-proto"], "format cirron-proto"),
         (["stormlog:sink"], "format stormlog"),
         (["m.txt"], "no known suffix"),
         (["m.jsonl", "--trace-layout", "session"], "--trace-layout does not apply to metrics"),
         (["m.jsonl", "--trace-layout", "segmented"], "--trace-layout does not apply"),
         (["m.jsonl", "--jobs", "2"], "--jobs does not apply to metrics"),
         (["m.jsonl", "--run", "nothing"], "nothing"),
         (["-", "--json"], "both write to stdout")],
    )  # fmt: skip
    def test_wrong_usage(
        self, arguments: list[str], problem: str, run: Run, tmp_path: Path
    ) -> None:
        spool_of(records_of([CLI_TRACK]), tmp_path / "run")
        before = sorted(tmp_path.iterdir())
        result = run("convert", "run", *arguments, "--signal", "metrics")
        assert problem in one_line(result, 2)
        assert sorted(tmp_path.iterdir()) == before

    def test_an_unknown_signal(self, run: Run) -> None:
        assert "'traces', 'metrics'" in one_line(run("convert", "a", "b", "--signal", "logs"), 2)

    def test_a_missing_source(self, run: Run) -> None:
        assert "does not exist" in one_line(
            run("convert", "missing", "m.jsonl", "--signal", "metrics"), 3
        )


class TestExport:
    def environ(self, sink: Sink, protocol: str, own: bool = False) -> dict[str, str]:
        endpoint = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT" if own else "OTEL_EXPORTER_OTLP_ENDPOINT"
        url = f"{sink.url}/v1/metrics" if own and protocol == HTTP else sink.url
        return {endpoint: url, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}

    @pytest.mark.parametrize("own", [True, False])
    @pytest.mark.parametrize("protocol", [GRPC, HTTP])
    def test_every_point_arrives(self, protocol: str, own: bool, run: Run, tmp_path: Path) -> None:
        records = records_of([SIM_GPU])
        spool_of(records, tmp_path / "run")
        expected = required(records)
        with SINKS[protocol](Sink()) as sink:
            environ = self.environ(sink, protocol, own)
            result = run("export", "run", "--signal", "metrics", env=environ)
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout.endswith(f"{total(expected)} points accepted, 0 rejected\n")
        assert sink.spans == 0
        assert points_of([json_format.MessageToDict(each) for each in sink.metrics]) == expected

    @pytest.mark.parametrize("protocol", [GRPC, HTTP])
    def test_a_partial_success_is_reported(self, protocol: str, run: Run, tmp_path: Path) -> None:
        records = records_of([SIM_GPU])
        spool_of(records, tmp_path / "run")
        with SINKS[protocol](Sink(rejected=3)) as sink:
            environ = self.environ(sink, protocol)
            result = run("export", "run", "--signal", "metrics", "--json", env=environ)
        assert result.returncode == 1
        assert "too old" in result.stderr
        report = json.loads(result.stdout)
        assert (report["rejected"], report["synthetic"]) == (3, 0)
        assert report["accepted"] + 3 == report["points"] == total(required(records))

    def test_an_endpoint_without_metrics(self, run: Run, tmp_path: Path) -> None:
        spool_of(records_of([CLI_TRACK]), tmp_path / "run")
        with http_sink(Sink(takes_metrics=False)) as sink:
            result = run("export", "run", "--signal", "metrics", env=self.environ(sink, HTTP))
        assert "404" in one_line(result, 5)

    @pytest.mark.usefixtures("spool")
    def test_without_samples(self, run: Run) -> None:
        with http_sink(Sink()) as sink:
            result = run("export", ".cirron", "--signal", "metrics", env=self.environ(sink, HTTP))
        assert "no memory sample to make points of: nothing was sent" in one_line(result, 1)
        assert sink.metrics == []

    @pytest.mark.parametrize(
        ("option", "problem"),
        [("--follow", "cannot be combined with --follow"),
         ("--trace-layout=session", "--trace-layout does not apply to metrics")],
    )  # fmt: skip
    @pytest.mark.usefixtures("spool")
    def test_wrong_usage(self, option: str, problem: str, run: Run) -> None:
        result = run("export", ".cirron", option, "--signal", "metrics")
        assert problem in one_line(result, 2)


def test_metrics_file_is_not_a_source_of_records(run: Run, tmp_path: Path) -> None:
    spool_of(records_of([CLI_TRACK]), tmp_path / "run")
    run("convert", "run", "m.jsonl", "--signal", "metrics")
    result = run("convert", "m.jsonl", "back")
    assert result.returncode == 1
    assert "resourceMetrics" in result.stderr
