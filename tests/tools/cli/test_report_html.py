"""`report --html`: one page, valid and safe for any recording, with the figures of `--json`."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cirron_otel.core.analysis.breakdown import PERCENTILES
from cirron_otel.core.run.figures.trainings import TrainingFigures
from cirron_otel.core.run.load.scopes import Scopes
from cirron_otel.core.run.opening import open_run
from cirron_otel.core.spool.reader import BatchFile, SpoolReader
from cirron_otel.tools.cli.demo import RECORDING
from cirron_otel.tools.cli.page.content import RunContent, gather
from cirron_otel.tools.cli.page.document import document
from cirron_otel.tools.cli.page.element import Element, Stylesheet
from cirron_otel.tools.cli.sources import shown_source
from cirron_otel.tools.present.conclude import document_of_run
from cirron_otel.tools.present.ledger_rows import account_name, percentages
from tests.core.spool.test_run_report import mark, span
from tests.kit.generators.trees import training
from tests.kit.html_page import Page
from tests.tools.conftest import SPOOLS, Run, one_line
from tests.tools.present.test_trainings import reader_of

from .test_report import store, write_files

SPREAD = ("median_ns", *(f"{name}_ns" for name in PERCENTILES), "max_ns")
SOURCES = [RECORDING, *(path for path in sorted(SPOOLS.iterdir()) if path.is_dir())]


class Batches:
    """Batches in memory, which replace a spool's reader."""

    def __init__(self, *batches: dict[str, Any]) -> None:
        self.files = [
            BatchFile(f"{number}.json", Path(f"{number}.json"), json.dumps(batch).encode())
            for number, batch in enumerate(batches)
        ]

    def __iter__(self) -> Iterator[BatchFile]:
        return iter(self.files)

    def read_all(self, names: Iterable[str]) -> Iterator[BatchFile]:
        return (each for each in self.files if each.name in set(names))


def batch(spans: list[dict[str, Any]], marks: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"spans": spans, "marks": marks or [], "snapshots": [], "batch_id": "b"}


@contextlib.contextmanager
def gathered(reader: Any, *asked: str, warnings: list[str] | None = None) -> Iterator[RunContent]:
    scopes = Scopes(reader, once=True)
    with open_run(reader) as run:
        found = document_of_run("source", run)
        yield gather(found, run, scopes, reader, asked, warnings or [], [])


def text_of(reader: Any, *asked: str, warnings: list[str] | None = None) -> str:
    with gathered(reader, *asked, warnings=warnings) as content:
        return "".join(document(content))


def test_each_training_has_a_row(tmp_path: Path) -> None:
    page = Page(text_of(reader_of(tmp_path / "s", "fold <2>")))
    *_, last = page.tables["The trainings of the run"]
    assert last == ["2 (fold <2>)", 10, 50_000_000, 50_000_000, 500_000_000]


def test_the_page_has_some_of_many_trainings(tmp_path: Path) -> None:
    with gathered(reader_of(tmp_path / "s")) as content:
        assert content.document.units is not None
        trainings = [TrainingFigures(at, None, 20, 1, 1, 20) for at in range(1234)]
        content.document.units = replace(content.document.units, trainings=trainings)
        text = "".join(document(content))
    assert len(Page(text).tables["The trainings of the run"]) == 201
    assert "and 1,034 more" in text


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_recordings(run: Run, tmp_path: Path, source: Path) -> None:
    """The page is valid, and its figures are those of `--json`."""
    done = run("report", source, "--html", "run.html", "--json")
    assert done.returncode == (1 if source.name.startswith("23") else 0)
    page = Page((tmp_path / "run.html").read_text("utf-8"))
    said = json.loads(done.stdout)
    who = {each["rank"]: f"rank {each['rank']}" for each in said["ranks"]}
    assert [
        [row[0], *row[2:5], row[5] if row[3] else 0]
        for row in page.tables["The steps of each rank by phase"][1:]
    ] == [
        [who[r["rank"]], r["run_ns"], *(r["steps"][key] for key in ("times", "total_ns",
                                                                    "median_ns"))]
        for r in said["ranks"]
    ]  # fmt: skip
    for rank in said["ranks"]:
        if rank["steps"]["times"]:
            rows = page.tables[f"The phases of the steps of {who[rank['rank']]}"][1:]
            parts = [*rank["phases"], {"name": "unattributed", **rank["unattributed"]},
                     {"name": "step", **rank["steps"]}]  # fmt: skip
            assert rows == [
                [p["name"], p["times"], p["total_ns"], f"{100 * p['share']:.1f} %",
                 *(p[key] for key in SPREAD)]
                for p in parts
            ]  # fmt: skip
    slowest = page.tables.get("The slowest steps", [[]])[1:]
    assert [(row[1], row[6]) for row in slowest] == [
        (each["duration_ns"], each["span_id"]) for each in said["slowest"]
    ]
    marks = page.tables.get("The marks of each name and rank", [[]])[1:]
    assert [row[2] for row in marks] == [each["count"] for each in said["marks"]]
    assert len(page.ids & {"run", "steps"}) == (2 if slowest else 1)


def test_the_ledger_has_the_time_and_the_share_of_each_account(run: Run, tmp_path: Path) -> None:
    """For several ranks, the share of each rank has its own line, so that all columns fit."""
    write_files(tmp_path, training(3, 40))
    done = run("report", ".", "--html", "run.html", "--json")
    text = (tmp_path / "run.html").read_text("utf-8")
    ledger = json.loads(done.stdout)["ledger"]
    shares = percentages([each["ns"] for each in ledger["accounts"]])
    [_, *rows, total] = Page(text).tables["The time by account, as the mean of all ranks"]
    ranks = len(ledger["ranks"])
    assert [row[:3] for row in rows] == [
        [account_name(each["account"]), round(each["ns"] / ranks), f"{share} %"]
        for each, share in zip(ledger["accounts"], shares, strict=True)
    ]
    assert total[:3] == ["total", ledger["total_ns"] // ranks, "100.0 %"]
    [heads, *of_ranks] = Page(text).tables["The time of each rank by account"]
    assert len(of_ranks) == len(ledger["ranks"])
    for row, rank in zip(of_ranks, ledger["ranks"], strict=True):
        assert len(heads) == len(row) == 2 + len(ledger["accounts"])
        assert [cell.rpartition("s")[2] for cell in row[2:]] == [
            f"{100 * rank['accounts'].get(each['account'], 0) / rank['total_ns']:.1f} %"
            for each in ledger["accounts"]
        ]
    assert '<table class="wall">' in text


def test_launcher_process_is_not_counted_as_a_rank() -> None:
    """The process has no steps, so it is in none of their tables."""
    reader = Batches(batch([
        span("cirron.session", 9000, rank=None, id="job"),
        span("cirron.session", 8000, "job", id="s"),
        *(span("step", 1000, "s", id=f"{each}", at=1000 * each) for each in range(3)),
    ]))  # fmt: skip
    page = Page(text_of(reader))
    assert [row[0] for row in page.tables["The steps of each rank by phase"][1:]] == ["rank 0"]
    assert page.texts[page.texts.index("rank") + 1] == "0", "and not `ranks 0`, which reads as none"


def test_a_run_with_a_name_is_shown_by_it(run: Run, spool: Path, tmp_path: Path) -> None:
    done = run("report", "--html", "run.html", "--json")
    name = json.loads(done.stdout)["run"]["name"]
    page = Page((tmp_path / "run.html").read_text("utf-8"))
    assert page.texts[1:4] == [
        f"{name}: report of cirron-otel", "cirron-otel report of a run in .cirron", name
    ]  # fmt: skip


def test_report_lists_missing_data(run: Run, tmp_path: Path) -> None:
    run("report", SPOOLS / "23_sigkill_plus_stray_tmp", "--html", "run.html")
    text = " ".join(Page((tmp_path / "run.html").read_text()).texts)
    assert "What is missing" in text
    assert "never finished: its writer stopped halfway" in text
    assert "1 session without an end: still running, or killed" in text
    assert "What is missing" not in text_of(SpoolReader(RECORDING))


def test_the_page_of_a_step_has_its_scopes_attributes_and_marks() -> None:
    spans = [
        span("step", 1000, "e", id="s", index=4, attrs={"mode": "train", "deep": {"a": [1]}},
             cpu_ns=2_000_000),
        span("forward", 400, "s", id="f", at=span("x", 1)["start_ns"] + 100, attrs={"n": 1}),
        span("inner", 40, "f", id="i", otel={"status": {"code": 2, "message": "no <b>"}}),
        span("epoch", 2000, id="e", index=2),
    ]  # fmt: skip
    text = text_of(Batches(batch(spans, [mark("loss", 0.25, 900, "s")])))
    page = Page(text)
    [rows] = [rows for caption, rows in page.tables.items() if "the slowest step of" in caption]
    assert [row[1] for row in rows[1:]] == [1000, 400, 40]
    assert "epoch 2 › step 4" in page.texts
    told = rows[1][0]
    for part in ("step 4", "modetrain", 'deep{"a":[1]}', "cpu_ns2 ms", "● loss0.25"):
        assert part in told
    assert "no <b>" in rows[3][0]
    assert rows[2][0].startswith("forward")


def test_a_scope_that_is_asked_for(run: Run, spool: Path, tmp_path: Path) -> None:
    steps = json.loads(run("report", "--json").stdout)["slowest"]
    third, fourth = steps[2]["span_id"], steps[3]["span_id"]
    done = run("report", "--html", "run.html", "--span", third, "--span", fourth[:16].upper())
    assert done.returncode == 0
    page = Page((tmp_path / "run.html").read_text())
    asked = [caption for caption in page.tables if "asked for" in caption]
    assert len(asked) == 2
    assert {third, fourth} <= set(page.texts)
    before = (tmp_path / "run.html").read_bytes()
    assert "no scope" in one_line(run("report", "--html", "run.html", "--span", "a" * 32), 3)
    assert (tmp_path / "run.html").read_bytes() == before
    assert "--html" in one_line(run("report", "--span", third), 2)


_HOSTILE = st.one_of(
    st.text(st.characters(codec=None), max_size=30),
    st.sampled_from(
        [
            "<script>alert(1)</script>",
            '"><img src=x onerror=alert(1)>',
            "</style><script>",
            "]]>",
            "<!--",
            "&lt;&#0;",
            "\x00\x1b[31m\x85",
            "\ud800\udfff",
            "\u202eabc",
            "'",
            "a" * 600,
        ]
    ),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(_HOSTILE, min_size=6, max_size=6), st.integers(0, 3))
def test_names_and_values_of_any_kind(words: list[str], nested: int) -> None:
    name, phase, key, value, marked, index = words
    attrs: Any = value
    for _ in range(nested):
        attrs = {key: [attrs]}
    spans = [
        span("step", 90, "e", id="s", index=index, attrs={key: attrs}),
        span(phase, 40, "s", id="p", otel={"status": {"code": 2, "message": value}}),
        span(name, 100, id="e", index=value),
        span("step", 0, id="t"),
    ]
    values = [1, value, 2, -1e308, 1e308]
    marks = [{**mark("m", each, at, "s"), "name": marked} for at, each in enumerate(values)]
    page = Page(text_of(Batches(batch(spans, marks)), warnings=[value]))
    assert not {"script", "img"} & set(page.open)
    assert len(page.tables["The slowest steps"]) == 3


def test_a_page_is_small_however_much_there_is() -> None:
    """The names need six characters for each one, and there is more of everything than is shown."""
    spans, marks = [], []
    long = '"' * 480
    for rank in range(140):
        attrs = {f"{n}{long}": long for n in range(20)} if rank in (1, 2) else {}
        own: dict[str, Any] = {"rank": rank, "attrs": attrs}
        for step in range(2):
            key = f"{rank}.{step}"
            spans.append(span("step", 10_000, f"e{rank}", id=key, index=step, **own))
            spans += [
                span(f"{phase}{long}", 100, key, id=f"{key}.{phase}", **own) for phase in range(30)
            ]
    for series in range(300):
        named = {"name": f"{series}{long}"}
        marks += [{**mark(f"{series}", at, at, "0.0"), **named} for at in range(3)]
    text = text_of(Batches(batch(spans, marks)))
    Page(text)
    assert len(text) < 2_500_000


def test_the_page_names_the_command_that_lists_the_sessions_it_leaves_out() -> None:
    recording = SpoolReader(RECORDING)
    with gathered(recording) as content:
        many = replace(content, sessions=content.sessions[:1] * 53)
        page = Page("".join(document(many)))
    assert len(page.tables["The sessions of the run"]) == 1 + 50
    note = page.texts.index("and 3 more: ")
    assert page.texts[note + 1 : note + 3] == ["spool ls", " lists them"]


def test_a_step_without_a_process_and_a_thread() -> None:
    text = text_of(Batches(batch([span("step", 90, pid=None, thread_id=None)])))
    assert "<dt>process, thread</dt><dd>?, ?</dd>" in text


def test_a_longer_run_makes_no_larger_page() -> None:
    sizes = []
    for steps in (2_000, 6_000):
        spans = [span("step", 1000 + n % 97, "e", id=f"{n}", at=n * 2000) for n in range(steps)]
        marks = [mark("loss", n / 7, n * 2000, f"{n}") for n in range(steps)]
        sizes.append(len(text_of(Batches(batch(spans, marks)))))
    assert max(sizes) < 1.02 * min(sizes)
    assert max(sizes) < 100_000


def test_times_on_the_gpu(run: Run, tmp_path: Path) -> None:
    (tmp_path / "gpu").mkdir()
    spans = [
        span("step", 90, id="s", gpu_ns=70, rank=1),
        span("forward", 40, "s", id="f", gpu_ns=30, rank=1),
        span("forward", 20, "s", id="g", gpu_ns=35, rank=1),
        span("loss", 5, "s", id="l", rank=1),
    ]
    whole = {"schema_version": 1, "sdk_version": "0.3.0", "created_ns": 1, **batch(spans)}
    whole["batch_id"] = "0" * 32
    (tmp_path / "gpu" / f"{1:020d}-{'0' * 32}.json").write_text(json.dumps(whole))
    (tmp_path / "spool").mkdir()
    shutil.move(tmp_path / "gpu" / f"{1:020d}-{'0' * 32}.json", tmp_path / "spool")
    done = run("report", ".", "--html", "run.html", "--json")
    assert json.loads(done.stdout)["gpu"] == [
        {"rank": 1, "name": "step", "count": 1, "gpu_ns": 70, "wall_ns": 90},
        {"rank": 1, "name": "forward", "count": 2, "gpu_ns": 65, "wall_ns": 60},
    ]
    page = Page((tmp_path / "run.html").read_text())
    assert page.tables["The time of scopes on the device"][1:] == [
        ["step", "1", 1, 70, 90], ["forward", "1", 2, 65, 60],
    ]  # fmt: skip
    assert "On the GPU:" in run("report", ".", "--full").stdout


def test_html_is_written_completely_and_never_over_its_input(
    run: Run, spool: Path, tmp_path: Path
) -> None:
    assert run("convert", ".cirron", "run.jsonl").returncode == 0
    assert "SRC itself" in one_line(run("report", "run.jsonl", "--html", "run.jsonl"), 2)
    batch_file = sorted((tmp_path / ".cirron" / "spool").iterdir())[0]
    told = one_line(run("report", "--html", batch_file.with_name("x.html")), 2)
    assert "--html" in told
    assert "among the batches" in told
    assert "name of a file" in one_line(run("report", "--html", "-"), 2)
    same = run("report", "--html", "one", "--perfetto", "./one")
    assert "same file" in one_line(same, 2)
    assert "no/run.html" in one_line(run("report", "--html", "no/run.html"), 4)
    done = run("report", "run.jsonl", "--html", "run.html", "--perfetto", "run.json")
    assert done.returncode == 0
    assert "run.html is written" in done.stderr
    assert (tmp_path / "run.html").stat().st_mode & 0o777 == 0o600
    assert run("spool", "verify").returncode == 0


def test_whatever_form_the_run_has(run: Run, spool: Path, tmp_path: Path) -> None:
    """A storage's page equals the spool's except for its name, with the scopes' attributes."""
    store(tmp_path)
    pages = []
    for source in (".cirron", f"sqlite:///{tmp_path}/run.db"):
        assert run("report", source, "--html", "run.html").returncode == 0
        pages.append(Page((tmp_path / "run.html").read_text()).tables)
    assert pages[0] == pages[1]


def test_an_empty_spool(run: Run, tmp_path: Path) -> None:
    (tmp_path / ".cirron" / "spool").mkdir(parents=True)
    assert run("report", "--html", "run.html").returncode == 0
    assert Page((tmp_path / "run.html").read_text()).sections == []


def test_no_password_is_shown() -> None:
    source = "postgresql://me:s3cret@host/runs?sslpassword=other"
    assert shown_source(source) == "postgresql://host/runs"
    assert shown_source(".cirron") == ".cirron"


@pytest.mark.parametrize(
    ("tag", "attributes"),
    [
        ("script", {}), ("img", {}), ("p", {"onclick": "x"}), ("p", {"style": "x"}),
        ("a", {"href": "https://example.org"}), ("a", {"href": "javascript:x"}),
        ("svg", {"src": "x"}), ("p", {"x y": "1"}),
    ],
)  # fmt: skip
def test_elements_not_allowed_on_a_page_are_refused(tag: str, attributes: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="page"):
        Element(tag, **attributes)
    with pytest.raises(ValueError, match="style"):
        Stylesheet("a { background: url(x) }")


_COLOUR = re.compile(r"--([a-z0-9-]+): #([0-9a-f]{6});")


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_everything_can_be_seen_in_light_in_dark_and_on_paper() -> None:
    """WCAG 2.2: 4.5 to 1 for text (1.4.3), 3 to 1 for what is drawn (1.4.11)."""
    css = resources.files("cirron_otel.tools.cli.page").joinpath("style.css").read_text()
    schemes = [dict(_COLOUR.findall(block)) for block in re.findall(r":root \{(.*?)\}", css, re.S)]
    assert len(schemes) == 3
    for scheme in schemes:
        for ground in ("back", "soft", "warn-back"):
            for ink in ("text", "dim", "link", "bad"):
                assert contrast(scheme[ink], scheme[ground]) >= 4.5, (ink, ground, scheme)
        for drawn in (f"k{number}" for number in range(9)):
            assert contrast(scheme[drawn], scheme["back"]) >= 3, (drawn, scheme)
    for query in ("prefers-color-scheme: dark", "prefers-reduced-motion", "print", "max-width"):
        assert query in css
