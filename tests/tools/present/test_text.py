"""A document as text: ten lines for a healthy run, and every finding once."""

from __future__ import annotations

import re

import pytest

from cirron_otel.core.run.findings.finding import Advice, Finding
from cirron_otel.tools.present.closing import Course, closing_parts
from cirron_otel.tools.present.head import head_parts
from cirron_otel.tools.present.open_scopes import OpenScope
from cirron_otel.tools.present.sparkline import sparkline
from cirron_otel.tools.present.text import document_parts, plain_lines
from tests.tools.present.made import (
    FAILED,
    FIRST_NS,
    INPUT_BOUND,
    JITTER,
    STRAGGLER,
    S,
    document,
    loss,
)
from tests.tools.present.test_document import DOCUMENTS

_HEALTHY = """\
HEALTHY: most of the time is backward
.cirron: 200 steps of 1 rank, 25 s from 2026-11-20 18:02:13 UTC

NOTICE RANK_JITTER
  The ranks differ by 3 % from step to step.

time     backward 32.0 %, forward 24.0 %, start-up 19.2 %,
         waiting for input 16.0 %, optimizer 6.4 %, unattributed in steps 1.6 %,
         between steps 0.8 %
steps    200, 9.9 per s; p50 100 ms, p95 100 ms, p99 100 ms, max 100 ms
p50      data_load 20 ms, forward 30 ms, backward 40 ms, optimizer_step 8 ms,
         unattributed 2 ms
"""
_FAILED = """\
FAILED: rank 1 failed
.cirron: 200 steps of 2 ranks, 25 s from 2026-11-20 18:02:13 UTC

FAILURE FAILED: 6 s of the run's 25 s; rank 1, step 100
  Rank 1 failed at or after step 100: ValueError: no batch.
  try: Look at the traceback of rank 1.

CRITICAL INPUT_BOUND: 2 s of the run's 25 s; data_load
  Steps wait 20 ms for each batch of data_load.
  try: Load batches in more workers: DataLoader(num_workers=4). (saves up to
    1.5 s)
  or: Decode the samples once, ahead of the training.

The time, 25 s, as the mean of 2 ranks:

account                  time    share  lowest to highest rank
──────────────────────────────────────────────────────────────
start-up                4.8 s   19.2 %                  19.2 %
waiting for input         4 s   16.0 %                  16.0 %
forward                   6 s   24.0 %                  24.0 %
backward                  8 s   32.0 %                  32.0 %
optimizer               1.6 s    6.4 %                   6.4 %
unattributed in steps  400 ms    1.6 %                   1.6 %
between steps          200 ms    0.8 %                   0.8 %
total                    25 s  100.0 %

The steps: 200, 9.9 per s; p50 100 ms, p95 100 ms, p99 100 ms, max 100 ms

phase           times     p50     p95     p99     max
─────────────────────────────────────────────────────
data_load         400   20 ms   20 ms   20 ms   20 ms
forward           400   30 ms   30 ms   30 ms   30 ms
backward          400   40 ms   40 ms   40 ms   40 ms
optimizer_step    400    8 ms    8 ms    8 ms    8 ms
unattributed      400    2 ms    2 ms    2 ms    2 ms
step              400  100 ms  100 ms  100 ms  100 ms
"""


def lines_of(name: str, *, full: bool = False) -> list[str]:
    return plain_lines(document_parts(DOCUMENTS[name], full=full))


def test_a_healthy_run() -> None:
    assert lines_of("healthy") == _HEALTHY.splitlines()
    without_notice = plain_lines(document_parts(document()))
    assert len(without_notice) <= 10
    assert without_notice == [*_HEALTHY.splitlines()[:3], *_HEALTHY.splitlines()[6:]]


def test_a_failed_run() -> None:
    assert lines_of("failed") == _FAILED.splitlines()


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_finding_appears_once_in_80_columns(name: str, full: bool) -> None:
    lines = lines_of(name, full=full)
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    for each in DOCUMENTS[name].findings:
        assert text.count(each.sentence) == 1
    assert text.count(DOCUMENTS[name].headline) == 1


@pytest.mark.parametrize("name", DOCUMENTS)
def test_shares_add_up_to_100(name: str) -> None:
    if DOCUMENTS[name].ledger is None:
        return
    rows = lines_of(name, full=True)
    first = rows.index(next(row for row in rows if row.startswith("account")))
    last = rows.index(next(row for row in rows if row.startswith("total")))
    shares = [re.findall(r"([\d.]+) %", row)[0] for row in rows[first + 2 : last]]
    assert sum(round(10 * float(share)) for share in shares) == 1000


def test_the_shares_of_a_healthy_run_add_up_to_100() -> None:
    lines = lines_of("healthy")
    first = next(place for place, line in enumerate(lines) if line.startswith("time "))
    inside = " ".join(lines[first : first + 3])
    assert sum(round(10 * float(each)) for each in re.findall(r"([\d.]+) %", inside)) == 1000


def test_the_sentence_of_a_finding_is_not_repeated_if_it_is_the_headline() -> None:
    found = document([INPUT_BOUND], "critical", INPUT_BOUND.sentence)
    for parts in (document_parts(found), closing_parts(found)):
        assert "\n".join(plain_lines(parts)).count(INPUT_BOUND.sentence) == 1


def test_a_running_run_has_its_start_and_its_open_scopes() -> None:
    scopes = [
        OpenScope(0, "epoch", "1", FIRST_NS),
        OpenScope(0, "step", "41", FIRST_NS + 20 * S),
        OpenScope(1, "epoch", "1", FIRST_NS),
    ]
    found = document(ranks=[0, 1], open_scopes=scopes, state="running")
    assert plain_lines(head_parts(found))[1:] == [
        ".cirron: running since 2026-11-20 18:02:13 UTC, 200 steps of 2 ranks",
        "  open: rank 0: epoch 1 > step 41, since 18:02:33",
        "  open: rank 1: epoch 1, since 18:02:13",
    ]


def test_a_run_that_was_interrupted_and_one_without_an_end() -> None:
    interrupted = document(state="interrupted")
    incomplete = document(state="incomplete")
    assert plain_lines(head_parts(interrupted))[1:] == [
        ".cirron: 200 steps of 1 rank, interrupted after 25 s from",
        "  2026-11-20 18:02:13 UTC",
    ]
    assert plain_lines(head_parts(incomplete))[1:] == [
        ".cirron: 200 steps of 1 rank, 25 s from 2026-11-20 18:02:13 UTC, without an end"
    ]


def test_requests_have_a_rate_and_errors() -> None:
    lines = lines_of("requests")
    assert lines[1].startswith(".cirron: 200 requests of 1 rank, ")
    assert "requests 200, 9.9 per s, 3 errors; p50 100 ms, p95 100 ms, p99 100 ms," in lines


def test_a_recording_without_units_has_its_scopes() -> None:
    assert lines_of("without units")[-4:] == [
        "",
        "scope    count  total   p50   p95",
        "─────────────────────────────────",
        "rollout      2    1 s  1 ms  2 ms",
    ]


def test_slowest_units_and_marks_are_shown_with_full_only() -> None:
    assert not [line for line in lines_of("healthy") if line.startswith("Metrics")]
    full = lines_of("healthy", full=True)
    assert "Metrics:" in full
    assert "loss        0      2      2     1     1" in full
    assert "Marks:" not in full  # the loss is a metric, and not listed twice
    assert full[-2:] == [
        "  CPU_CONTENTION: no context switches are recorded; record the configuration",
        "    with ci.config(...)",
    ]


def test_many_findings_are_counted() -> None:
    many = [
        Finding("OTHER_SCOPE", "warning", S, 0.04, f"Sentence {place}.", scope=f"s{place}")
        for place in range(12)
    ]
    found = document([*many, JITTER], "warning")
    lines = plain_lines(head_parts(found))
    assert sum(line.startswith("  Sentence ") for line in lines) == 8
    assert lines[-1] == "and 4 more findings: --full shows them"
    assert len(plain_lines(head_parts(found, full=True))) > len(lines) + 8


def test_the_ranks_and_units_of_a_finding() -> None:
    moving = Finding(
        "STRAGGLER", "warning", S, 0.04, "It moves.", ranks=[0, 1, 2, 5], moving=True,
        steps=[(n, n + 1) for n in range(0, 60, 10)], every=10, scope="rollout", epochs=["3"],
    )  # fmt: skip
    lines = plain_lines(head_parts(document([moving], "warning")))
    assert lines[3:5] == [
        "WARNING STRAGGLER: 1 s of the run's 25 s; ranks 0-2, 5 (moving), steps 0-1,",
        "  10-11, 20-21, 30-31 and 2 more, every 10, epoch 3, rollout",
    ]


def test_text_from_recordings_is_escaped() -> None:
    hostile = Finding(
        "FAILED", "failure", None, None, "a\x1b[31mb", ranks=[0], hosts=["\x07"], phase="\ud800",
        advice=[Advice("c\x9bd")],
    )  # fmt: skip
    found = document([hostile], "failed", "e\x1bf")
    for lines in (plain_lines(document_parts(found)), plain_lines(closing_parts(found))):
        text = "\n".join(lines)
        assert "a\\x1b[31mb" in text
        assert not {"\x1b", "\x07", "\x9b", "\ud800"} & set(text)


def test_the_closing_words() -> None:
    found = document(
        [FAILED, INPUT_BOUND, STRAGGLER, JITTER], "failed", "rank 1 failed", [0, 1],
        marks=[loss(2, 1)],
    )  # fmt: skip
    courses = [
        Course("step time", [1.0, 1.0, 3.0, 1.0], "{:.0f} ms".format),
        Course("loss", [2.5, 2.0, float("nan"), 1.0], "{:.4g}".format),
    ]
    lines = plain_lines(closing_parts(found, courses))
    assert lines[0] == "FAILED: rank 1 failed"
    assert lines[-3:] == [
        "step time  ▁▁█▁  1 ms to 3 ms",
        "loss       █▆?▁  1 to 2.5",
        "1 more in `cirron-otel report`",
    ]
    plain = plain_lines(closing_parts(found, courses, "ascii"))
    assert plain[-3:-1] == ["step time  __#_  1 ms to 3 ms", "loss       #*?_  1 to 2.5"]


def test_sparklines() -> None:
    assert sparkline([]) == ""
    assert sparkline([1.0, 1.0]) == "▁▁"
    assert sparkline([float("inf"), float("nan")]) == "??"
    assert sparkline([-1e308, 1e308]) == "▁█"
    long = sparkline([float(number) for number in range(1000)], "cp1252")
    assert len(long) == 40
    assert long == "".join(sorted(long, key="_.-=+*%#".index))


def test_the_plural_of_units() -> None:
    found = document(unit="batch", state="running")
    text = "\n".join(plain_lines(document_parts(found)))
    assert "200 batches of 1 rank" in text
    assert "between batches" in " ".join(text.split())
    assert "batchs" not in text
