"""Batches as protobuf in files: each comes back equal, or the loss is reported."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cirron_otel import exactjson
from cirron_otel._proto.cirron.v1 import trace_pb2 as pb
from cirron_otel.core.otlp.wire import encode_varint
from cirron_otel.core.records.check import check_batch
from cirron_otel.core.translator.own.batch_fields import file_name
from cirron_otel.core.translator.own.wire_proto import from_proto, to_proto
from cirron_otel.errors import InputError
from cirron_otel.tools.convert.convert import ConvertRequest, convert
from cirron_otel.tools.convert.export import ExportRequest, export
from cirron_otel.tools.convert.messages import SizeLimits
from cirron_otel.tools.convert.report import Report
from tests.core.translator.test_lossless import PHASES, SLOW
from tests.kit.examples import examples
from tests.kit.generators import strategies as gen
from tests.kit.servers.servers import http_receiver
from tests.kit.spools.comparing import RECORDED, assert_same, batches
from tests.kit.spools.made import made, span
from tests.kit.spools.mutations import batches as changed

WIRE = "cirron-proto"
SPOOL = RECORDED / "01_torch_basic"
_FILE_NAME = "the file name of a batch"


def write(source: Path | str, target: Path, **options: Any) -> Report:
    return convert(ConvertRequest(str(source), str(target), target_format=WIRE, **options))


def read(source: Path, target: Path, **options: Any) -> Report:
    return convert(ConvertRequest(str(source), str(target), source_format=WIRE, **options))


def spool_of(folder: Path, contents: dict[str, bytes]) -> Path:
    (folder / "spool").mkdir(parents=True)
    for name, data in contents.items():
        (folder / "spool" / name).write_bytes(data)
    return folder


def framed(*messages: bytes) -> bytes:
    return b"".join(encode_varint(len(each)) + each for each in messages)


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("name", sorted(path.name for path in RECORDED.iterdir() if path.is_dir()))
def test_a_recording_comes_back(name: str, suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"batches{suffix}"
    written = write(RECORDED / name, file)
    back = read(file, tmp_path / "back")
    assert back.exit_code == 0
    assert written.batches == back.batches == written.written
    assert_same(batches(tmp_path / "back"), batches(RECORDED / name))


@settings(max_examples=examples(150), deadline=None, suppress_health_check=SLOW, phases=PHASES)
@given(batch=gen.batches | gen.crowded_batches() | changed(), is_odd=st.booleans())
def test_any_batch_comes_back_or_its_name_is_reported(batch: Any, is_odd: bool) -> None:
    assume(check_batch(exactjson.dumps(batch)) is None)  # a file without a batch is skipped
    name = None if is_odd else file_name(batch)
    with tempfile.TemporaryDirectory() as place:
        folder, file = Path(place), Path(place) / "batches"
        name = name or "odd name.json"
        try:
            spool_of(folder / "in", {name: exactjson.dumps(batch)})
        except (OSError, ValueError):
            return  # no file can have this name
        report = write(folder / "in", file)
        assert report.batches == 1
        is_kept = name == file_name(batch) and "\\" not in name  # we write no name with a backslash
        assert [each for each in report.losses if _FILE_NAME in each] == [
            each for each in report.losses if not is_kept
        ]
        assert report.exit_code == int(not is_kept)
        back = read(file, folder / "back")
        assert back.exit_code == 0
        (stored,) = (folder / "back" / "spool").iterdir()
        assert exactjson.equal(exactjson.loads(stored.read_bytes()), batch)
        assert not is_kept or stored.name == name


def test_otlp_and_batches_as_protobuf_convert_to_each_other(tmp_path: Path) -> None:
    otlp, file = tmp_path / "traces.binpb", tmp_path / "batches"
    convert(ConvertRequest(str(SPOOL), str(otlp)))
    write(otlp, file)
    again = tmp_path / "again.binpb"
    read(file, again)
    assert again.read_bytes() == otlp.read_bytes()
    other = tmp_path / "other"
    read(file, other, target_format=WIRE)
    assert other.read_bytes() == file.read_bytes()


def test_only_selected_spans_are_written(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cirron_otel", "convert", str(SPOOL), "-", "--to", WIRE]
    done = subprocess.run([*command, "--select", "name=step"], capture_output=True, check=True)
    command = [sys.executable, "-m", "cirron_otel", "report", "-", "--from", WIRE, "--json"]
    report = subprocess.run(command, input=done.stdout, capture_output=True, check=True)
    assert json.loads(report.stdout)["ranks"][0]["spans"] > 0
    read_all = tmp_path / "all"
    (tmp_path / "selected").write_bytes(done.stdout)
    read(tmp_path / "selected", read_all)
    names = {each["name"] for batch in batches(read_all).values() for each in batch["spans"]}
    assert "step" in names
    assert "epoch" not in names


def test_invalid_message_is_skipped_and_the_others_are_read(tmp_path: Path) -> None:
    good = to_proto(made(1, spans=[span(1)])).SerializeToString()
    file = tmp_path / "batches"
    file.write_bytes(framed(good, b"\xff" * 9, to_proto(made(2)).SerializeToString()))
    report = read(file, tmp_path / "back")
    assert (report.batches, report.exit_code) == (2, 1)
    (finding,) = report.skipped
    assert (finding.code, finding.path) == ("unreadable", "2")


def test_truncated_file_yields_its_complete_messages(tmp_path: Path) -> None:
    messages = framed(*(to_proto(made(number)).SerializeToString() for number in (1, 2, 3)))
    file = tmp_path / "batches"
    for size in range(1, len(messages)):
        file.write_bytes(messages[:size])
        try:
            report = read(file, tmp_path / f"back{size}")
        except InputError as error:
            assert "the file is cut off" in str(error)  # noqa: PT017
            assert size < len(messages) / 3
            continue
        is_whole = size % (len(messages) // 3) == 0
        assert report.exit_code == int(not is_whole)
        assert report.batches == size // (len(messages) // 3)


@pytest.mark.parametrize(
    "data", [b"\x03abc", b"{}", b"\x1f\x8b", framed(b"\xff\xff"), b"PK\x03\x04" + bytes(60)]
)
def test_another_file_is_refused(data: bytes, tmp_path: Path) -> None:
    file = tmp_path / "batches"
    file.write_bytes(data)
    with pytest.raises(InputError, match="batches"):
        read(file, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_an_empty_file_is_an_empty_spool(tmp_path: Path) -> None:
    source = spool_of(tmp_path / "in", {})
    assert write(source, tmp_path / "batches").written == 0
    assert read(tmp_path / "batches", tmp_path / "back").batches == 0


def test_unknown_fields_are_reported(tmp_path: Path) -> None:
    message = to_proto(made(1, spans=[span(1)]))
    inner = pb.Span.FromString(message.spans[0].SerializeToString() + b"\xa2\x06\x01x")
    message.spans[0].CopyFrom(inner)
    file = tmp_path / "batches"
    file.write_bytes(framed(message.SerializeToString()))
    report = read(file, tmp_path / "back")
    assert report.losses == {"unknown protobuf fields of a batch": 1}
    assert (report.batches, report.exit_code) == (1, 1)


def test_export_reports_unreadable_messages_and_unknown_fields(tmp_path: Path) -> None:
    message = to_proto(made(1, spans=[span(1)])).SerializeToString()
    file = tmp_path / "batches"
    with http_receiver() as server:
        environ = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": server.url}
        environ["OTEL_EXPORTER_OTLP_PROTOCOL"] = "http/protobuf"
        request, stop = ExportRequest(str(file), WIRE), threading.Event()
        file.write_bytes(framed(message, b"\xff" * 9))
        report = export(request, environ=environ, stop=stop)
        assert [(each.code, each.path) for each in report.skipped] == [("unreadable", "2")]
        assert (report.batches, report.exit_code) == (1, 1)
        file.write_bytes(framed(message + b"\xa2\x06\x01x"))
        report = export(request, environ=environ, stop=stop)
        assert report.losses == {"unknown protobuf fields of a batch": 1}
        assert (report.batches, report.exit_code) == (1, 1)


def test_a_message_of_empty_records_is_refused(tmp_path: Path) -> None:
    """Each record takes two bytes in the file, and kilobytes in memory."""
    message = pb.Batch(schema_version=1)
    for _ in range(30_000):
        message.spans.add()
    file = tmp_path / "batches"
    file.write_bytes(framed(message.SerializeToString()))
    with pytest.raises(InputError, match="30000 records in 60002 bytes"):
        read(file, tmp_path / "back")


def test_a_batch_of_empty_records_is_reported_when_it_is_written(tmp_path: Path) -> None:
    message = pb.Batch(schema_version=1, batch_id="b")
    for _ in range(30_000):
        message.spans.add()
    batch = from_proto(message)
    source = spool_of(tmp_path / "in", {str(file_name(batch)): exactjson.dumps(batch)})
    report = write(source, tmp_path / "batches")
    assert [each.code for each in report.skipped] == ["untranslatable"]
    assert (report.written, report.exit_code) == (0, 1)


def test_a_batch_that_readers_would_refuse_is_reported(tmp_path: Path) -> None:
    small, large = made(1), made(2, padding=5_000)
    contents = {str(file_name(each)): exactjson.dumps(each) for each in (small, large)}
    source = spool_of(tmp_path / "in", contents)
    report = write(source, tmp_path / "batches", limits=SizeLimits(batch_bytes=4_000))
    assert [each.code for each in report.skipped] == ["too-large"]
    assert report.exit_code == 1
    assert read(tmp_path / "batches", tmp_path / "back").batches == 1


def test_an_invalid_batch_does_not_take_the_name_of_a_valid_one(tmp_path: Path) -> None:
    bad, good = made(1, schema_version=99), made(1, spans=[span(1)])
    file = tmp_path / "batches"
    file.write_bytes(framed(*(to_proto(each).SerializeToString() for each in (bad, good))))
    report = read(file, tmp_path / "back")
    (finding,) = report.skipped
    assert (finding.name, finding.code, finding.path) == (str(file), "unreadable", "1")
    assert (report.batches, report.exit_code) == (1, 1)


def test_two_batches_of_one_name_are_both_reported(tmp_path: Path) -> None:
    first, second = made(1), made(1, spans=[span(1)])
    file = tmp_path / "batches"
    file.write_bytes(framed(*(to_proto(each).SerializeToString() for each in (first, second))))
    report = read(file, tmp_path / "back")
    assert [each.code for each in report.skipped] == ["refused"]
    assert (report.batches, report.exit_code) == (1, 1)
