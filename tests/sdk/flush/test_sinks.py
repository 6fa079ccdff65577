"""output="log" and output="stdout": a line for each scope that has ended."""

from __future__ import annotations

import logging
import re
import sys
from typing import Any

import pytest

from cirron_otel.sdk.flush.flush_result import FlushResult
from cirron_otel.sdk.flush.pipeline import Pipeline
from cirron_otel.sdk.flush.sinks import MOST_WAITING, Lines, sinks_of
from cirron_otel.sdk.tracing.mark import mark
from cirron_otel.sdk.tracing.scope import Scope
from tests.sdk.conftest import OpenSession

LENGTH = re.compile(r"— \d+(us|\.\dms|\.\d\ds)")


def bare(text: str) -> list[str]:
    """The lines without what the clock decides."""
    return [LENGTH.sub("— t", line) for line in text.splitlines()]


def test_stdout_shows_ended_scopes_children_first(
    session: OpenSession, capsys: pytest.CaptureFixture[str]
) -> None:
    (sink,) = sinks_of(("spool", "stdout"))
    with Scope("epoch", 0):
        mark("acc", float("nan"), kind="summary")
        with Scope("forward"):
            mark("loss", 0.5, tag="a")
            mark("lr", 1e-5)
        sink(session.collect())
        first = bare(capsys.readouterr().out)
    mark("outside", True)
    sink(session.collect())
    second = bare(capsys.readouterr().out)
    sink(session.collect(is_last=True))
    third = bare(capsys.readouterr().out)
    assert first == ["[cirron] forward — t {loss=0.5000, lr=1e-05}"]
    assert second == ["[cirron] epoch[0] — t {acc=nan}"], "its mark came with an earlier flush"
    assert third == ["[cirron] cirron.session — t {outside=True}"]


def test_log_makes_a_record_at_info_for_each_scope(
    session: OpenSession, caplog: pytest.LogCaptureFixture
) -> None:
    (sink,) = sinks_of(["log"])
    with caplog.at_level(logging.INFO, logger="cirron_otel.trace"):
        with Scope("100%"), Scope("b"):
            pass
        sink(session.collect())
        sink(session.collect())
    assert [LENGTH.sub("— t", record.message) for record in caplog.records] == [
        "[cirron] b — t",
        "[cirron] 100% — t",
    ]
    assert {record.name for record in caplog.records} == {"cirron_otel.trace"}


def test_only_log_and_stdout_are_sinks() -> None:
    assert sinks_of(("spool", "none")) == ()
    assert len(sinks_of(("log", "stdout", "log"))) == 2


def test_nothing_of_a_name_or_value_breaks_a_line(
    session: OpenSession, capsys: pytest.CaptureFixture[str]
) -> None:
    (sink,) = sinks_of(["stdout"])
    with Scope("a\nb\x1b[31m"):
        mark("text", "x\ny")
        mark("long", "z" * 200)
        mark("big", 10**30)
    with Scope("\ud800"):
        pass
    with Scope("many"):
        for number in range(30):
            mark("loss", number)
    sink(session.collect())
    odd, surrogate, many = bare(capsys.readouterr().out)
    assert odd.startswith(r"[cirron] a\nb\x1b[31m — t {text=x\ny, long=zzz")
    assert odd.endswith("…, big=1000000000000000000000000000000}")
    assert surrogate == r"[cirron] \ud800 — t"
    assert many.endswith("loss=19, … 10 more}")


def test_records_that_were_hard_to_encode_are_shown(
    session: OpenSession, capsys: pytest.CaptureFixture[str]
) -> None:
    (sink,) = sinks_of(["stdout"])
    with Scope("\udc80"):
        mark("big", 10**30)
        mark("inf", float("-inf"))
    sink(session.collect())
    assert bare(capsys.readouterr().out) == [
        r"[cirron] \udc80 — t {big=1000000000000000000000000000000, inf=-inf}"
    ]


def test_a_terminal_that_knows_ascii_alone_is_written_to(
    session: OpenSession, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path_factory.mktemp("out") / "terminal"
    (sink,) = sinks_of(["stdout"])
    with Scope("a"):
        pass
    with path.open("w", encoding="ascii") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        sink(session.collect())
    assert path.read_text().startswith(r"[cirron] a \u2014 ")


def test_lines_of_a_failed_seal_are_shown_once_it_succeeds(session: OpenSession) -> None:
    class Full:
        """A sealer whose disk is full the first time."""

        is_full = True

        def seal(self, found: FlushResult, _: object) -> None:
            if self.is_full:
                self.is_full = False
                raise OSError("no space")
            found.is_sealed = True

    shown: list[str] = []
    sealer: Any = Full()
    pipeline = Pipeline(session.collector, sealer, 1.0, (Lines(shown.extend),))
    with Scope("a"):
        pass
    with pytest.raises(OSError, match="no space"):
        pipeline._tick()
    with Scope("b"):
        pass
    pipeline._tick()
    pipeline._tick()
    assert [LENGTH.sub("— t", line) for line in shown] == ["[cirron] a — t", "[cirron] b — t"]


def test_marks_of_scopes_that_never_end_are_bounded(session: OpenSession) -> None:
    shown: list[str] = []
    lines = Lines(shown.extend)
    with Scope("open"):
        for _ in range(MOST_WAITING + 5):
            mark("loss", 1)
        lines(session.collect())
        assert lines._waiting <= MOST_WAITING
    lines(session.collect())
    assert len(shown) == 1
    assert lines._waiting == 0
