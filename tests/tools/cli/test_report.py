"""`report`: how a run spent its time, from every form of its records."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from cirron_otel.core.spool.writer import SpoolWriter
from cirron_otel.core.targets.sql.storage import Storage
from tests.core.targets.sql.helpers import files
from tests.kit.generators.trees import training
from tests.kit.html_page import Page
from tests.kit.spools.made import (
    EPOCH_NS,
    encoded,
    made,
    span,
)
from tests.tools.conftest import SPOOLS, Run, one_line


def test_the_phases_of_the_steps(run: Run, spool: Path) -> None:
    result = run("report", "--full", "--slowest", "2")
    lines = result.stdout.splitlines()
    assert (result.returncode, result.stderr) == (0, "")
    assert " (.cirron): 24 steps of 1 rank, 1.12 s from 2026-11-20 18:02:13 UTC" in result.stdout
    assert "The time, 1.12 s:" in lines
    assert lines[lines.index("The time, 1.12 s:") + 2].split() == ["account", "time", "share"]
    [total] = [line for line in lines if line.startswith("total ")]
    assert total.split() == ["total", "1.12", "s", "100.0", "%"]
    [backward] = [line for line in lines if re.match(r"backward +24 ", line)]
    assert backward.split()[1:] == ["24", "95.7", "µs", "44", "ms", "48", "ms", "48", "ms"]
    slowest = lines[lines.index("The slowest steps:") + 4]
    assert slowest.split()[:3] == ["0", "0", "4"]
    assert slowest.endswith("6028fd2e74322a12")
    loss = ["loss", "0", "24", "1.40496", "1.39413", "1.35657"]
    assert loss in [line.split() for line in lines]
    assert max(len(line) for line in lines) <= 80


def write_files(folder: Path, files: Iterable[tuple[str, bytes]]) -> None:
    """Write batches into the spool `.cirron` in a folder."""
    (folder / ".cirron" / "spool").mkdir(parents=True)
    for name, data in files:
        (folder / ".cirron" / "spool" / name).write_bytes(data)


def test_slowest_steps_and_marks_need_full(run: Run, spool: Path) -> None:
    short = run("report").stdout
    assert "The slowest steps:" not in short
    assert "Metrics:" not in short
    rows = run("report", "--full").stdout.splitlines()
    assert sum(row.startswith("loss  ") for row in rows) == 1


def test_it_is_the_same_whatever_form_the_run_has(run: Run, spool: Path, tmp_path: Path) -> None:
    """The forms are those that `convert` reads: OTLP, a storage's tables, standard input."""
    expected = json.loads(run("report", "--json").stdout)
    assert expected.pop("source") == ".cirron"
    for target in ("run.jsonl.gz", "run.binpb", f"sqlite:///{tmp_path}/run.db"):
        if target.startswith("sqlite"):
            store(tmp_path)
        else:
            assert run("convert", ".cirron", target).returncode == 0
        found = json.loads(run("report", target, "--json").stdout)
        assert found.pop("source") == target
        assert found == expected
    piped = run("report", "-", "--from", "otlp-proto", "--json",
                stdin=(tmp_path / "run.binpb").read_bytes())  # fmt: skip
    assert json.loads(piped.stdout) == {"source": "-", **expected}


def store(folder: Path) -> None:
    """Write the spool's batches into the tables of a collector."""
    storage = Storage.open(f"sqlite:///{folder}/run.db")
    storage.write(files(sorted((folder / ".cirron" / "spool").glob("*.json"))))
    storage.close()


def test_ranks(run: Run) -> None:
    result = run("report", SPOOLS / "07_ranks", "--json")
    document = json.loads(result.stdout)
    assert [each["rank"] for each in document["ranks"]] == [-3, 0, 1, 2, 3, 5]
    assert sum(each["spans"] for each in document["ranks"]) == document["spans"] == 104


def test_the_ledger_of_ranks_has_their_range(run: Run, tmp_path: Path) -> None:
    write_files(tmp_path, training(3, 40))
    lines = run("report", "--full").stdout.splitlines()
    [title] = [line for line in lines if line.endswith(", as the mean of 3 ranks:")]
    heads = "account time share lowest to highest rank"
    assert lines[lines.index(title) + 2].split() == heads.split()
    assert max(len(line) for line in lines) <= 80


def test_job_without_recorded_steps_is_reported_as_failed(run: Run, tmp_path: Path) -> None:
    """The process of `cirron-otel run` has no rank, and the job has no first step."""
    run("run", "--", sys.executable, "-c", "raise SystemExit(3)")
    done = run("report", "--html", "run.html")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("FAILED: ")
    assert lines[0].endswith(": exit code 3.")
    assert "(.cirron): 2 spans, " in lines[1]
    page = Page((tmp_path / "run.html").read_text("utf-8"))
    assert "rank" not in done.stdout
    assert "failed: exit code 3" in page.texts
    assert "ranks" not in page.texts
    assert run("diff", ".cirron", ".cirron").stdout.startswith("A  .cirron: 0 steps\nB")


def test_steps_without_a_rank(run: Run, tmp_path: Path) -> None:
    steps = [span(number, 1, rank=None) for number in range(2, 20)]
    session = span(1, name="cirron.session", rank=None, end_ns=EPOCH_NS + 10**6)
    writer = SpoolWriter(tmp_path / ".cirron", max_bytes=None, durable=False)
    writer.write(encoded(made(1, spans=[session, *steps])))
    lines = run("report", "--full").stdout.splitlines()
    assert ".cirron): 18 steps, " in " ".join(lines)
    assert any(line.startswith("The time, ") for line in lines)
    assert any(line.startswith("The steps: 18, ") for line in lines)
    assert run("diff", ".cirron", ".cirron").stdout.startswith("A  .cirron: 18 steps\nB")


def test_unreadable_files_are_named_and_the_rest_is_reported(run: Run) -> None:
    result = run("report", SPOOLS / "23_sigkill_plus_stray_tmp", "--json")
    assert result.returncode == 1
    document = json.loads(result.stdout)
    assert document["ranks"][0]["steps"]["times"] == 9
    assert [each["code"] for each in document["skipped"]] == ["torn"]
    assert result.stderr.count("cirron-otel: skipped: ") == 1


def test_names_and_values_of_any_kind(run: Run) -> None:
    for name in ("04_marks_edge", "17_lone_surrogates_and_odd_names", "11_diverged_nan"):
        result = run("report", SPOOLS / name)
        assert (result.returncode, result.stderr) == (0, "")
        assert "\x1b" not in result.stdout
        json.loads(run("report", SPOOLS / name, "--json").stdout)


def test_no_source(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "nowhere" in one_line(run("report", "nowhere"), 3)
    assert "empty" in one_line(run("report", "empty"), 3)
    assert "nothing.db" in one_line(run("report", f"sqlite:///{tmp_path}/nothing.db"), 3)
    assert "--slowest" in one_line(run("report", "--slowest", "-1"), 2)


def test_a_spool_without_batches(run: Run, tmp_path: Path) -> None:
    (tmp_path / ".cirron" / "spool").mkdir(parents=True)
    result = run("report")
    assert result.returncode == 0
    assert result.stdout.splitlines()[1:] == [".cirron: 0 spans"]


def test_a_file_for_perfetto(run: Run, spool: Path, tmp_path: Path) -> None:
    result = run("report", "--perfetto", "run.json", "--json")
    assert result.returncode == 0
    assert "run.json is written" in result.stderr
    found = json.loads((tmp_path / "run.json").read_bytes())["traceEvents"]
    assert len([event for event in found if event["ph"] == "X"]) == 173
    assert (tmp_path / "run.json").stat().st_mode & 0o777 == 0o600
    assert json.loads(result.stdout)["spans"] == 173
    assert "no/run.json" in one_line(run("report", "--perfetto", "no/run.json"), 4)


def test_output_file_never_overwrites_the_source(run: Run, spool: Path, tmp_path: Path) -> None:
    assert run("convert", ".cirron", "run.jsonl").returncode == 0
    before = (tmp_path / "run.jsonl").read_bytes()
    (tmp_path / "link.jsonl").symlink_to("run.jsonl")
    for name in ("run.jsonl", "./run.jsonl", "link.jsonl"):
        assert "SRC itself" in one_line(run("report", "run.jsonl", "--perfetto", name), 2)
    assert (tmp_path / "run.jsonl").read_bytes() == before
    store(tmp_path)
    url = f"sqlite:///{tmp_path}/run.db"
    assert "SRC itself" in one_line(run("report", url, "--perfetto", "run.db"), 2)
    assert json.loads(run("report", url, "--json").stdout)["spans"] == 173
    batch = sorted((tmp_path / ".cirron" / "spool").iterdir())[0]
    for source in (".cirron", ".", ".cirron/spool", batch):
        told = one_line(run("report", source, "--perfetto", batch.with_name("x.json")), 2)
        assert "among the batches" in told
    assert "SRC itself" in one_line(run("report", batch, "--perfetto", batch), 2)
    assert "name of a file" in one_line(run("report", "--perfetto", "-"), 2)
    assert run("spool", "verify").returncode == 0
