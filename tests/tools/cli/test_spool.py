"""`spool ls`, `show`, `verify` and `prune`."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from tests.tools.conftest import SPOOLS, Run, one_line

KILLED = SPOOLS / "23_sigkill_plus_stray_tmp"


def test_ls(run: Run, spool: Path) -> None:
    result = run("spool", "ls")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(".cirron/spool: 5 files (98.6 kB), all of them readable\n")
    assert "1 session, 173 spans, 105 marks, 24 snapshots\n" in result.stdout
    assert "\n42524f40b891ddc8b133ac13f87256d8  closed  rank 0, pid " in result.stdout


def test_times_are_local_and_have_their_zone(run: Run, spool: Path) -> None:
    zone = {"TZ": "Asia/Kathmandu"}
    began = "2026-11-20 23:47:13 +0545"
    listed = run("spool", "ls", env=zone).stdout.splitlines()
    assert listed[1].startswith(f"from {began}, 1.12 s; ranks: 0")
    assert listed[-1] == f"  {began}, 1.12 s; 173 spans, 105 marks, 24 snapshots"
    for options in ([], ["--fold"]):
        shown = run("spool", "show", *options, env=zone).stdout
        assert shown.startswith(f"cirron.session  1.12 s  {began}  rank 0\n")


@pytest.mark.parametrize("name", ["07_ranks", "23_sigkill_plus_stray_tmp"])
def test_ls_fits_a_terminal_of_80_columns_and_breaks_no_id(run: Run, name: str) -> None:
    result = run("spool", "ls", SPOOLS / name, env={"TZ": "Asia/Kathmandu"})
    ids = [
        session["id"]
        for session in json.loads(run("spool", "ls", SPOOLS / name, "--json").stdout)["sessions"]
    ]
    path, *lines = result.stdout.splitlines()
    assert path.startswith(str(SPOOLS / name))
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if line[:32].isalnum()] == ids


def test_ls_of_ranks(run: Run) -> None:
    result = run("spool", "ls", SPOOLS / "07_ranks")
    assert "8 sessions, 104 spans" in result.stdout
    assert len([line for line in result.stdout.splitlines() if " closed " in line]) == 8


def test_ls_reports_a_killed_run_as_unfinished(run: Run) -> None:
    result = run("spool", "ls", KILLED, "--json")
    assert result.returncode == 1
    document = json.loads(result.stdout)
    assert [session["state"] for session in document["sessions"]] == ["unfinished"]
    assert [finding["code"] for finding in document["findings"]] == ["torn"]
    assert result.stderr.count("cirron-otel: skipped: ") == 1


def test_show(run: Run, spool: Path) -> None:
    result = run("spool", "show", "--limit", "100000")
    lines = result.stdout.splitlines()
    assert (result.returncode, result.stderr) == (0, "")
    assert lines[0] == "cirron.session  1.12 s  2026-11-20 18:02:13 UTC  rank 0"
    assert len([line for line in lines if "── step " in line]) == 24
    assert "│   ├── step 1  604 µs  loss=1.41494" in lines
    assert lines[-1] == "173 spans"
    assert len(lines) == 174


def test_show_omits_spans_over_the_limits(run: Run, spool: Path) -> None:
    shallow = run("spool", "show", "--depth", "1").stdout.splitlines()
    assert shallow[0].endswith("(+ 4 inside)")
    assert shallow[1:] == ["1 of 173 spans"]
    few = run("spool", "show", "--limit", "8").stdout
    assert "… 5 more" in few
    assert few.endswith("8 of 173 spans\n")


def test_show_marks_missing_spans_as_not_recorded(run: Run) -> None:
    result = run("spool", "show", KILLED)
    assert result.stdout.startswith("(not recorded) 6be68e14fbceb75295d67298be3cf47f")


def test_show_escapes_names(run: Run) -> None:
    odd = SPOOLS / "17_lone_surrogates_and_odd_names"
    assert "na\\ud800me" in run("spool", "show", odd).stdout
    assert "ud800me" in run("spool", "show", odd, "--json").stdout


def test_show_one_session(run: Run, tmp_path: Path) -> None:
    ranks = SPOOLS / "07_ranks"
    one = run("spool", "show", ranks, "--session", "93ecb398de12d695b8fdfd2be645de86")
    assert one.stdout.endswith("\n13 spans\n")
    unknown = run("spool", "show", ranks, "--session", "0" * 32)
    assert "`spool ls` lists its sessions" in one_line(unknown, 3)


def test_verify_finds_nothing_in_a_good_spool(run: Run, spool: Path) -> None:
    result = run("spool", "verify")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == ".cirron/spool: 0 errors, 0 notes\n"


def test_verify_fails_on_errors(run: Run, spool: Path) -> None:
    first, second = sorted((spool / "spool").iterdir())[:2]
    first.write_bytes(first.read_bytes()[:-20])
    second.write_bytes(second.read_bytes().replace(b'"end_ns":', b'"end":', 1))
    result = run("spool", "verify", "--json")
    document = json.loads(result.stdout)
    assert result.returncode == 1
    assert {first.name, second.name} <= {finding["name"] for finding in document["findings"]}
    assert document["errors"] >= 2
    text = run("spool", "verify")
    assert text.returncode == 1
    assert f"error: {second.name} $.spans[0]: no end_ns [missing-key]\n" in text.stdout


def test_verify_shows_notes_and_does_not_fail(run: Run, spool: Path) -> None:
    newest = max((spool / "spool").iterdir())
    newest.unlink()  # the session's own span is in it
    result = run("spool", "verify")
    assert result.returncode == 0, result.stdout
    assert result.stdout.startswith("note: ")
    assert ": 0 errors, " in result.stdout


@pytest.fixture
def with_blobs(spool: Path) -> Path:
    """Two batches name the blob `shared`, the oldest alone names `old`; nothing names `lost`."""
    names = sorted((spool / "spool").iterdir())
    for number, (path, blobs) in enumerate(
        zip(names, [["shared", "old"], ["shared"], [], [], []], strict=True)
    ):
        batch = json.loads(path.read_bytes())
        batch["snapshots"] = [
            {"blob_uri": f"file:///anywhere/snapshots/{name}/weights.safetensors"} for name in blobs
        ]
        path.write_text(json.dumps(batch))
        assert number < 5
    for name in ("shared", "old", "lost"):
        folder = spool / "snapshots" / name
        folder.mkdir(parents=True)
        (folder / "weights.safetensors").write_bytes(bytes(1000))
    lost = spool / "snapshots" / "lost" / "weights.safetensors"
    os.utime(lost, ns=(1, 1))
    return spool


def blobs_of(spool: Path) -> list[str]:
    return sorted(folder.name for folder in (spool / "snapshots").iterdir())


def test_prune_takes_the_oldest_with_the_blobs_that_only_they_name(
    run: Run, with_blobs: Path
) -> None:
    names = sorted(path.name for path in (with_blobs / "spool").iterdir())
    sizes = {name: (with_blobs / "spool" / name).stat().st_size for name in names}
    keep = sum(sizes.values()) - sizes[names[0]] + 1000
    dry = run("spool", "prune", "--max-bytes", keep, "--dry-run", "--json")
    document = json.loads(dry.stdout)
    assert document["dropped"] == [
        "snapshots/lost/weights.safetensors",
        f"spool/{names[0]}",
        "snapshots/old/weights.safetensors",
    ]
    assert (document["kept_batches"], document["kept_bytes"]) == (4, keep)
    assert blobs_of(with_blobs) == ["lost", "old", "shared"]
    result = run("spool", "prune", "--max-bytes", keep)
    assert result.returncode == 0, result.stderr
    assert sorted(path.name for path in (with_blobs / "spool").iterdir()) == names[1:]
    assert blobs_of(with_blobs) == ["shared"]
    assert run("spool", "prune", "--max-bytes", "0").returncode == 0
    assert blobs_of(with_blobs) == []
    assert list((with_blobs / "spool").iterdir()) == []


def test_prune_by_age(run: Run, spool: Path, tmp_path: Path) -> None:
    first = min((spool / "spool").iterdir())
    now = time.time_ns()
    renamed = first.with_name(f"{now - 3600 * 10**9:020d}-{first.name.split('-', 1)[1]}")
    shutil.copy(first, tmp_path / "kept.json")
    shutil.rmtree(spool / "spool")
    (spool / "spool").mkdir()
    shutil.copy(tmp_path / "kept.json", renamed)
    assert run("spool", "prune", "--older-than", "2h").returncode == 0
    assert renamed.exists()
    result = run("spool", "prune", "--older-than", "30m")
    assert result.stdout.startswith(f"dropped spool/{renamed.name}\n")
    assert not renamed.exists()


def test_the_default_directory_is_needed_or_said(run: Run) -> None:
    assert ".cirron does not exist" in one_line(run("spool", "ls"), 3)
