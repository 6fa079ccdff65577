"""The command `convert`, as users call it."""

from __future__ import annotations

import gzip
import json
import stat
from pathlib import Path

import pytest

from cirron_otel import exactjson
from tests.tools.conftest import Run, same_batches


@pytest.mark.parametrize("name", ["t.jsonl", "t.json.gz", "t.binpb", "t.binpb.zst"])
@pytest.mark.parametrize("layout", ["segmented", "session"])
def test_there_and_back(run: Run, spool: Path, tmp_path: Path, name: str, layout: str) -> None:
    there = run("convert", ".cirron", name, "--trace-layout", layout)
    assert (there.returncode, there.stderr) == (0, "")
    assert there.stdout.startswith("5 batches (173 spans, 105 marks, 24 snapshots), 98.6 kB read")
    back = run("convert", name, "restored", "--json")
    report = json.loads(back.stdout)
    assert (report["batches"], report["written"], report["spans"]) == (5, 5, 173)
    assert (back.returncode, back.stderr) == (0, "")
    assert same_batches(spool / "spool", tmp_path / "restored" / "spool")
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_stdin_and_stdout(run: Run, spool: Path, tmp_path: Path) -> None:
    there = run("convert", ".cirron", "-")
    assert there.returncode == 0
    assert there.stderr.startswith("cirron-otel: 5 batches")
    assert all(json.loads(line)["resourceSpans"] for line in there.stdout.splitlines())
    data = there.stdout.encode()
    back = run("convert", "-", "restored", "--from", "otlp-json", stdin=data)
    assert back.returncode == 0
    assert same_batches(spool / "spool", tmp_path / "restored" / "spool")


def test_the_formats_that_are_said_overrule_the_suffix(run: Run, spool: Path) -> None:
    first = next((spool / "spool").iterdir())
    assert run("convert", first, "x.data", "--to", "otlp-json").returncode == 0
    result = run("convert", "x.data", "one.json", "--from", "otlp-json", "--to", "batch")
    assert result.returncode == 0, result.stderr
    one = exactjson.loads((spool.parent / "one.json").read_bytes())
    assert exactjson.equal(one, exactjson.loads(first.read_bytes()))


def test_other_content_under_the_same_name_is_refused(run: Run, spool: Path) -> None:
    assert run("convert", ".cirron", "t.jsonl").returncode == 0
    assert run("convert", "t.jsonl", "other").returncode == 0
    victim = min((spool.parent / "other" / "spool").iterdir())
    changed = victim.read_bytes().replace(b'"epoch"', b'"epuch"').replace(b"step", b"stop")
    assert changed != victim.read_bytes()
    victim.write_bytes(changed)
    result = run("convert", "t.jsonl", "other", "--json")
    assert result.returncode == 1
    report = json.loads(result.stdout)
    assert (report["unchanged"], report["skipped_count"]) == (4, 1)
    assert f"cirron-otel: skipped: {victim.name}: " in result.stderr
    assert victim.read_bytes() == changed


def test_a_repeated_key_in_otlp_json_is_reported_with_its_line_and_path(
    run: Run, spool: Path, tmp_path: Path
) -> None:
    assert run("convert", ".cirron", "t.jsonl").returncode == 0
    lines = (tmp_path / "t.jsonl").read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b'"name"', b'"name":"another","name"', 2)
    (tmp_path / "odd.jsonl").write_bytes(b"".join(lines))
    result = run("convert", "odd.jsonl", "restored", "--json")
    report = json.loads(result.stdout)
    assert (result.returncode, report["batches"], report["skipped_count"]) == (1, 4, 1)
    path = "resourceSpans[0].scopeSpans[0].scope.name"
    assert result.stderr.startswith(
        f"cirron-otel: skipped: odd.jsonl 2: {path}: the key occurs twice"
    )
    (tmp_path / "all.json").write_text('{"resourceSpans":[{}],\n"resourceSpans":[]}')
    result = run("convert", "all.json", "nothing")
    assert result.returncode == 1
    assert "skipped: all.json 1: resourceSpans: the key occurs twice" in result.stderr


def test_select(run: Run, spool: Path) -> None:
    arguments = ("--select", "epoch=1..2", "--select", "name=step", "--select", "rank=0")
    result = run("convert", ".cirron", "t.jsonl", "--json", *arguments)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["spans"] == 16 * 7
    nothing = run("convert", ".cirron", "none.jsonl", "--json", "--select", "rank=7")
    assert json.loads(nothing.stdout)["spans"] == 0


def test_a_torn_file_is_skipped_and_reported(run: Run, spool: Path) -> None:
    torn = min((spool / "spool").iterdir())
    torn.write_bytes(torn.read_bytes()[:-20])
    result = run("convert", ".cirron", "t.jsonl.gz", "--json")
    report = json.loads(result.stdout)
    assert result.returncode == 1
    assert (report["batches"], report["skipped_count"]) == (4, 1)
    assert report["skipped"][0]["name"] == torn.name
    assert result.stderr.startswith(f"cirron-otel: skipped: {torn.name}: ")
    assert len(gzip.decompress((spool.parent / "t.jsonl.gz").read_bytes()).splitlines()) == 4
