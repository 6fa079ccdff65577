"""Reading recordings: exactly, once each, in bounded memory, and nothing outside of them."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from cirron_otel import exactjson
from cirron_otel.core.importers.stormlog import pieces
from cirron_otel.core.importers.stormlog.exact import parse_record
from cirron_otel.core.importers.stormlog.pieces import Piece, array, events_of, lines
from cirron_otel.core.importers.stormlog.reading import StormlogReader, StormlogRecord
from cirron_otel.core.records.problems import ReadingProblem
from cirron_otel.errors import InputError

from .conftest import (
    EVENTS,
    RECORDINGS,
    SEGMENT,
    SIMULATED,
)

ESCAPES = b'{"a":"]}\\"[\\\\"}'
ARRAYS = (
    b"[]", b" [ ] \n", b'[{"a":1}]', b'[{"a":1} , {"b":[{"c":2},{"d":"}"}]}]', b"[1,2 ,null]",
    b"[" + ESCAPES + b"," + ESCAPES + b"]", b'["a\\\\",{"x":{"y":[]}}]\n', b'[[1],[{"a":[]}]]',
    json.dumps([json.loads(line) for line in EVENTS[:5]], indent=2).encode(),
)  # fmt: skip
BROKEN = (
    b"[", b"[1", b"[1,", b"[1 2]", b"[1,]", b'[{"a":1', b'[{"a":"', b'[{"a":"\\', b'[{"a":1}{}]',
    b'{"a":1}', b"x",
)  # fmt: skip
VERSION_3 = json.loads(EVENTS[10])


def read(path: Path) -> tuple[list[StormlogRecord], list[ReadingProblem]]:
    """Return the events of a recording, and the findings."""
    findings: list[ReadingProblem] = []
    return list(StormlogReader(path, on_finding=findings.append).records()), findings


def written(path: Path, *records: dict[str, Any] | bytes) -> Path:
    """Write a segment; a record in bytes is written unchanged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in records]
    path.write_bytes(b"".join(text + b"\n" for text in texts))
    return path


@pytest.fixture(params=[1, 2, 7, pieces._CHUNK])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of bytes that are read at once."""
    monkeypatch.setattr(pieces, "_CHUNK", request.param)
    return int(request.param)


def joined(found: list[Piece]) -> bytes:
    return b"".join(piece.before + piece.raw for piece in found)


@pytest.mark.parametrize("text", ARRAYS)
def test_an_array_is_cut_into_its_elements(chunk: int, text: bytes) -> None:
    found = list(array(io.BytesIO(text)))
    assert joined(found) == text
    assert [json.loads(piece.raw) for piece in found if piece.is_record] == json.loads(text)
    assert not any(piece.problem for piece in found)


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_array_keeps_its_bytes(chunk: int, text: bytes) -> None:
    found = list(array(io.BytesIO(text)))
    assert joined(found) == text
    assert found[-1].problem


def test_an_array_within_an_object(chunk: int) -> None:
    text = b'{"a":{"events":[9]}, "b":"events", "events" : [{"q":1},{"w":2}] ,"z":[1]}'
    found = list(events_of(io.BytesIO(text), "events"))
    assert joined(found) == text
    assert [piece.raw for piece in found if piece.is_record] == [b'{"q":1}', b'{"w":2}']


@pytest.mark.parametrize(
    "text", [b"", b"\n", b'{"a":1}\n', b'{"a":1}', b' {"a":1}\r\n\n\n{"b":2}\n\n', b"x\n\x85y\n"]
)
def test_lines_keep_their_bytes(text: bytes) -> None:
    assert joined(list(lines(io.BytesIO(text)))) == text


@pytest.mark.parametrize("path", sorted(RECORDINGS.rglob("*.json*")), ids=lambda path: path.name)
@pytest.mark.parametrize("cut", [lines, array])
def test_every_file_is_the_sum_of_its_pieces(
    cut: Callable[[BinaryIO], Iterator[Piece]], path: Path
) -> None:
    content = path.read_bytes()
    assert joined(list(cut(io.BytesIO(content)))) == content


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b'{"a":1,"a":2}', "repeated-key"),
        (b'{"a":[{"b":1,"b":1}]}', "repeated-key"),
        (b'{"a":NaN}', "not-finite"),
        (b'{"a":-Infinity}', "not-finite"),
        (b'{"a":1180591620717411303424}', "large-integer"),
        (b'{"a":"\\ud800"}', "lone-surrogate"),
        (b'{"\\udc00":1}', "lone-surrogate"),
        (b'{"a":}', "not-json"),
        (b"\xff", "not-json"),
        (b"[1]", "not-an-object"),
        (b"[" * 600 + b"]" * 600, "not-json"),
    ],
)
def test_problems_of_the_text(text: bytes, code: str) -> None:
    assert [problem.code for problem in parse_record(text).problems] == [code]


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1e400}', b'{"a":-0}', b'{"a":1.00000000000000000001}', b'{"a":18446744073709551616}',
        b'{"a":"\\ud800"}', b'{"a":0.1,"b":1e3,"c":[1.0,"\\u00e9"]}', b'{"a" : "x  y" }',
    ],
)  # fmt: skip
def test_values_are_not_changed(text: bytes) -> None:
    data = parse_record(text).data
    assert exactjson.equal(data, exactjson.loads(text))


def test_a_record_keeps_its_text_and_its_version() -> None:
    records, findings = read(RECORDINGS / "v043" / "distributed" / "sink_rank0")
    assert not findings
    source = (RECORDINGS / "v043/distributed/sink_rank0" / SEGMENT).read_bytes()
    assert b"".join(record.raw + b"\n" for record in records) == source
    assert {record.version for record in records} == {4}
    assert [record.position for record in records] == list(range(1, 42))
    for record in records:
        assert record.event == {**json.loads(record.raw), "schema_version": 4}


@pytest.mark.parametrize("cut", range(1, len(EVENTS[1]) - 1, 37))
def test_a_torn_last_line_is_ignored(tmp_path: Path, cut: int) -> None:
    path = tmp_path / SEGMENT
    path.write_bytes(EVENTS[0] + EVENTS[1][:cut])
    records, findings = read(path)
    assert [record.raw for record in records] == [EVENTS[0].rstrip()]
    assert not findings


def test_a_line_that_is_torn_inside_a_character(tmp_path: Path) -> None:
    text = json.dumps({**VERSION_3, "host": "é"}, ensure_ascii=False).encode()
    path = tmp_path / SEGMENT
    path.write_bytes(EVENTS[0] + text[: text.index(b"\xa9")])
    records, findings = read(path)
    assert len(records) == 1
    assert not findings


def test_a_complete_last_line_needs_no_line_break(tmp_path: Path) -> None:
    path = tmp_path / SEGMENT
    path.write_bytes(EVENTS[0] + EVENTS[1].rstrip())
    assert len(read(path)[0]) == 2


@pytest.mark.parametrize(
    ("damage", "code"), [(b"{bad}", "not-json"), (b"5", "not-an-object"), (b"\xc3", "not-json")]
)
def test_a_damaged_line_elsewhere_is_skipped_and_reported(
    tmp_path: Path, damage: bytes, code: str
) -> None:
    path = written(tmp_path / SEGMENT, VERSION_3, damage, VERSION_3)
    records, findings = read(path)
    assert [record.position for record in records] == [1, 3]
    assert [(each.code, each.path, each.severity) for each in findings] == [
        (code, "line 2", "error")
    ]


@pytest.mark.parametrize(
    ("record", "code"),
    [
        ({**VERSION_3, "schema_version": 99}, "invalid"),
        ({**VERSION_3, "schema_version": 3.0}, "invalid"),
        ({**VERSION_3, "schema_version": None}, "invalid"),
        ({**VERSION_3, "pid": "1"}, "invalid"),
        ({"event_type": "sample"}, "invalid"),
    ],
)
def test_an_invalid_record_is_skipped_and_reported(
    tmp_path: Path, record: dict[str, Any], code: str
) -> None:
    records, findings = read(written(tmp_path / SEGMENT, record, VERSION_3))
    assert [each.position for each in records] == [2]
    assert [each.code for each in findings] == [code]


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (b'NaN', "not-finite"), (b'1180591620717411303424', "large-integer"),
        (b'"\\ud800"', "lone-surrogate"), (b'{"a":1,"a":2}', "repeated-key"),
    ],
)  # fmt: skip
def test_ambiguous_json_values_are_preserved_and_reported(
    tmp_path: Path, value: bytes, code: str
) -> None:
    text = json.dumps({**VERSION_3, "metadata": {"x": "VALUE"}}).encode()
    text = text.replace(b'"VALUE"', value)
    records, findings = read(written(tmp_path / SEGMENT, text))
    assert [record.raw for record in records] == [text]
    assert [each.code for each in findings] == [code]


def test_too_long_line_is_not_held_in_memory(tmp_path: Path) -> None:
    path = tmp_path / SEGMENT
    with path.open("wb") as file:
        file.write(EVENTS[0] + b'{"a":"')
        for _ in range(300):
            file.write(b"x" * 2**20)
        file.write(b'"}\n' + EVENTS[1])
    records, findings, peak = read_in_process(path)
    assert (records, findings) == (2, ["too-long"])
    assert peak < 150


def test_an_array_of_any_size_is_read_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "export.json"
    event = json.dumps(VERSION_3, indent=2).encode()
    with path.open("wb") as file:
        file.write(b'{"events": [')
        file.write(b",".join([event] * 50_000))
        for _ in range(3):
            file.write(b"," + event.replace(b'"host"', b'"a": [{"b": {}}, {"c": {}}], "host"'))
        file.write(b"]}")
    assert path.stat().st_size > 50_000_000
    records, findings, peak = read_in_process(path)
    assert records == 50_000
    assert findings == ["invalid"] * 3
    assert peak < 100


def test_an_array_element_that_is_too_long(tmp_path: Path) -> None:
    path = tmp_path / "export.json"
    with path.open("wb") as file:
        file.write(b"[" + EVENTS[0] + b',{"a":"')
        file.seek(300_000_000, 1)
        file.write(b'"},' + EVENTS[1] + b"]")
    records, findings, peak = read_in_process(path)
    assert (records, findings) == (2, ["too-long"])
    assert peak < 200


def read_in_process(path: Path) -> tuple[int, list[str], float]:
    """Return the number of events, the codes of the findings, and the peak memory in MB."""
    program = (
        "import json, pathlib, sys\n"
        "from cirron_otel.core.importers.stormlog.reading import StormlogReader\n"
        "found = []\n"
        "reader = StormlogReader(sys.argv[1], on_finding=found.append)\n"
        "count = sum(1 for _ in reader.records())\n"
        "status = pathlib.Path('/proc/self/status').read_text()\n"
        "peak = int(status.split('VmHWM:')[1].split()[0]) / 1024\n"
        "print(json.dumps([count, [each.code for each in found], peak]))\n"
    )
    command = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    count, codes, peak = json.loads(done.stdout)
    return count, codes, peak


def kinds(path: Path) -> list[str]:
    reader = StormlogReader(path, on_finding=lambda _: None)
    return [f"{each.kind} {each.name}".strip() for each in reader.artifacts]


def test_every_kind_of_recording_is_recognised() -> None:
    base = RECORDINGS / "v039"
    bundle = next((SIMULATED / "oom_dumps").iterdir())
    assert kinds(SIMULATED / "sink") == ["sink"]
    assert kinds(SIMULATED / "sink" / "manifest.json") == ["sink"]
    assert kinds(SIMULATED / "sink" / SEGMENT) == [f"segment {SEGMENT}"]
    assert kinds(base / "cli_track" / "track.json") == ["file track.json"]
    assert kinds(base / "legacy_records.json") == ["file legacy_records.json"]
    assert kinds(bundle) == ["oom"]
    assert kinds(bundle / "manifest.json") == ["oom"]
    assert kinds(base / "diagnose") == ["diagnose bundle"]
    assert kinds(SIMULATED) == ["sink sink", f"oom oom_dumps/{bundle.name}"]
    assert len(kinds(RECORDINGS)) == 9


def test_other_files_of_a_directory_are_not_recordings(tmp_path: Path) -> None:
    shutil.copytree(RECORDINGS / "v039" / "answers", tmp_path / "answers")
    (tmp_path / "spool.json").write_text('{"schema_version": 1, "spans": []}')
    (tmp_path / "list.json").write_text("[1, 2]")
    with pytest.raises(InputError, match="contains no recording of Stormlog"):
        read(tmp_path)


def test_an_empty_directory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="contains no recording of Stormlog"):
        read(tmp_path)


def test_event_recorded_twice_counts_once(tmp_path: Path) -> None:
    once, _ = read(SIMULATED / "sink")
    twice, findings = read(SIMULATED)
    assert len(once) == len(twice) == len(EVENTS)
    assert not findings
    export, _ = read(RECORDINGS / "v039" / "cli_track")
    assert len(export) == 21


def test_equal_events_of_one_recording_are_different_events(tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl", VERSION_3, VERSION_3)
    written(tmp_path / "b.jsonl", VERSION_3, VERSION_3, VERSION_3)
    written(tmp_path / "c.jsonl", VERSION_3)
    assert len(read(tmp_path)[0]) == 3


def test_a_bundle_belongs_to_the_session_that_it_names() -> None:
    bundle = next((SIMULATED / "oom_dumps").iterdir())
    records, _ = read(bundle)
    assert {record.session_id for record in records} == {VERSION_3["session_id"]}


def test_the_timeline_of_a_diagnose_bundle() -> None:
    records, findings = read(RECORDINGS / "v039" / "diagnose" / "bundle")
    assert not findings
    events = [record.event or {} for record in records]
    assert len(events) == 9
    assert {event["session_id"] for event in events} == {"754cb50c-0690-4ea5-b42d-3f193ac3af4d"}
    assert events[-1]["allocator_allocated_bytes"] == 232402944
    assert events[0]["timestamp_ns"] == 1795197923497574912


def sink(folder: Path, manifest: object) -> Path:
    written(folder / SEGMENT, VERSION_3)
    text = manifest if isinstance(manifest, str) else json.dumps(manifest)
    (folder / "manifest.json").write_text(text)
    return folder


@pytest.mark.parametrize("name", ["../evil.jsonl", "/etc/passwd", "..", "../..", "sub/x.jsonl"])
def test_nothing_outside_a_sink_is_opened(tmp_path: Path, name: str) -> None:
    written(tmp_path / "evil.jsonl", {**VERSION_3, "session_id": "evil"})
    folder = sink(tmp_path / "sink", {"segments": [{"filename": SEGMENT}, {"filename": name}]})
    opened: list[str] = []
    records, findings = watched(lambda: read(folder), opened)
    assert {record.session_id for record in records} == {VERSION_3["session_id"]}
    assert [each.code for each in findings] == ["outside"]
    inside = str(folder)
    assert all(
        each.startswith(inside) for each in opened if each.startswith((str(tmp_path), "/etc"))
    )
    assert opened


def watched(call: Callable[[], Any], opened: list[str]) -> Any:
    """Call a function, and append the paths that it opens."""
    active = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if active and event == "open" and isinstance(arguments[0], str | os.PathLike):
            opened.append(os.fspath(arguments[0]))

    sys.addaudithook(hook)
    try:
        return call()
    finally:
        active = False


def test_links_in_a_recording_are_not_followed(tmp_path: Path) -> None:
    written(tmp_path / "outside.jsonl", {**VERSION_3, "session_id": "evil"})
    folder = tmp_path / "folder"
    sink(folder / "sink", {"segments": [{"filename": SEGMENT}]})
    (folder / "sink" / "segment-000002.jsonl").symlink_to(tmp_path / "outside.jsonl")
    (folder / "link.jsonl").symlink_to(tmp_path / "outside.jsonl")
    (folder / "linked").symlink_to(tmp_path)
    records, findings = read(folder)
    assert {record.session_id for record in records} == {VERSION_3["session_id"]}
    assert {each.code for each in findings} == {"link", "unreadable"}
    assert len(read(folder / "link.jsonl")[0]) == 1  # the user named it


def test_a_pipe_in_a_recording_does_not_block(tmp_path: Path) -> None:
    folder = sink(tmp_path / "sink", {"segments": []})
    os.mkfifo(folder / "segment-000002.jsonl")
    records, findings = read(folder)
    assert len(records) == 1
    assert [each.code for each in findings] == ["unreadable"]


def test_pruned_segments_are_normal(tmp_path: Path) -> None:
    names = ["segment-000001.jsonl", "segment-000000.jsonl"]
    folder = sink(tmp_path / "sink", {"segments": [{"filename": name} for name in names]})
    records, findings = read(folder)
    assert len(records) == 1
    assert not findings


@pytest.mark.parametrize(
    ("manifest", "codes"), [("{broken", ["manifest-damaged"]), ("[]", ["manifest-damaged"]),
                            ({"schema_version": 1, "segments": []}, []), ({}, [])]
)  # fmt: skip
def test_manifests_that_are_damaged_or_old(
    tmp_path: Path, manifest: object, codes: list[str]
) -> None:
    records, findings = read(sink(tmp_path / "sink", manifest))
    assert len(records) == 1
    assert [each.code for each in findings] == codes


def test_a_missing_manifest(tmp_path: Path) -> None:
    written(tmp_path / "sink" / SEGMENT, VERSION_3)
    records, findings = read(tmp_path / "sink")
    assert len(records) == 1
    assert not findings


def test_the_source_is_not_written_to(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(RECORDINGS, tmp_path / "recordings"))
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")}
    read(folder)
    assert before == {
        path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")
    }
