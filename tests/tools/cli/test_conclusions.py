"""The conclusion of `report` and `diagnose`: hosts, unreadable batches, brief spikes, tokens."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.core.analysis.verdicts.records import MS, START, Rank, write_spool
from tests.tools.conftest import Run

from .concluded import STEP, document, flat, slow, straggling


class TestHosts:
    """The resource of each session names the host."""

    @pytest.mark.parametrize("engine", ["python", "duckdb"])
    def test_ranks_and_findings_have_their_hosts(
        self, tmp_path: Path, run: Run, engine: str
    ) -> None:
        spool = straggling(tmp_path, "node-a", "node-a", "node-b")
        found = document(run, spool, "--engine", engine)
        ranks = [(each["rank"], each["host"]) for each in found["ledger"]["ranks"]]
        assert ranks == [(0, "node-a"), (1, "node-a"), (2, "node-b")]
        first = found["findings"][0]
        assert (first["kind"], first["ranks"]) == ("COMPUTE_STRAGGLER", [2])
        assert first["hosts"] == ["node-b"]
        assert first["sentence"].startswith("Rank 2 on node-b is slow in forward")
        assert first["sentence"] in flat(run("report", spool).stdout)

    def test_one_host_is_in_no_sentence(self, tmp_path: Path, run: Run) -> None:
        first = document(run, straggling(tmp_path, "node-a", "node-a"))["findings"][0]
        assert first["hosts"] == ["node-a"]
        assert first["sentence"].startswith("Rank 1 is slow")

    def test_an_unknown_host(self, tmp_path: Path, run: Run) -> None:
        found = document(run, straggling(tmp_path, "node-a", None))
        assert [each["host"] for each in found["ledger"]["ranks"]] == ["node-a", None]
        assert found["findings"][0]["hosts"] == []

    def test_a_name_with_control_characters(self, tmp_path: Path, run: Run) -> None:
        spool = straggling(tmp_path, "node-a", "b\x1b[31m\nc")
        assert "\x1b" not in run("report", spool).stdout


class TestUnreadableBatches:
    """Batches that cannot be read make the recording incomplete."""

    @pytest.mark.parametrize("engine", ["python", "duckdb"])
    @pytest.mark.parametrize("command", ["report", "diagnose"])
    def test_they_are_a_warning(self, tmp_path: Path, run: Run, command: str, engine: str) -> None:
        spool = slow(tmp_path, data_load=0.1)
        options = (command, spool, "--engine", engine)
        assert run(*options).stdout.startswith("HEALTHY: ")
        (spool / "spool" / f"{START + 9:020d}-{'a' * 32}.json").write_text('{"spans": [')
        done = run(*options)
        assert done.returncode == 1
        assert done.stdout.startswith(
            "WARNING: The recording is incomplete: 1 batch cannot be read."
        )

    def test_a_message_of_another_source(self, tmp_path: Path, run: Run) -> None:
        spool, file = slow(tmp_path / "a", data_load=0.1), tmp_path / "run.jsonl"
        assert run("convert", spool, file).returncode == 0
        with file.open("a") as lines:
            lines.write('{"resourceSpans": [\n')
        done = run("report", file)
        assert done.returncode == 1
        assert "incomplete: 1 batch cannot be read." in flat(done.stdout)

    def test_a_batch_that_was_never_finished(self, tmp_path: Path, run: Run) -> None:
        """Its records are in the journal of the process, from which they are recovered."""
        spool = slow(tmp_path, data_load=0.1)
        (spool / "spool" / f"{START + 9:020d}-{'a' * 32}.json.tmp").write_text('{"spans": [')
        assert run("report", spool).stdout.startswith("HEALTHY: ")


class TestOccurrences:
    """The time of one evaluation, checkpoint or logging call."""

    @pytest.mark.parametrize("engine", ["python", "duckdb"])
    def test_several_scopes_in_a_unit(self, tmp_path: Path, run: Run, engine: str) -> None:
        """In steps and between them; a scope inside one of its account is a part of it."""
        rank = Rank(0, pid=1)
        for step in range(20):
            saves = (
                {} if step % 5 else {"checkpoint_a": 6.0, "save": {"": 4.0, "checkpoint_b": 2.0}}
            )
            rank.step(step, STEP | saves)
            if step % 5 == 2:
                rank.scope("checkpoint", 6.0)
                rank.scope("checkpoint", 6.0)
        spool = write_spool(tmp_path, [rank], run="ef" * 16)
        [found] = [
            each for each in document(run, spool, "--engine", engine)["findings"]
            if each["kind"] == "CHECKPOINT_HEAVY"
        ]  # fmt: skip
        assert "; a checkpoint takes 6 ms" in found["sentence"]
        evidence = found["evidence"]
        assert (evidence["count"], evidence["each_ns"]) == (16, 6 * MS)
        assert (evidence["units"], evidence["per_unit_ns"]) == (8, 12 * MS)


class TestShortRuns:
    """`spikes.seconds`, `slow_interval.seconds`, `slowing_down.seconds` and `tracing.seconds`."""

    def spikes(self, rank: Rank) -> None:
        for step in range(150):
            rank.step(step, STEP | ({"forward": 203.0} if step % 40 == 20 else {}))

    def slow_interval(self, rank: Rank) -> None:
        for step in range(150):
            rank.step(step, STEP | ({"forward": 12.0} if 40 <= step < 90 else {}))

    def slowing_down(self, rank: Rank) -> None:
        for step in range(150):
            rank.step(step, STEP | ({"forward": 12.0} if step >= 60 else {}))

    def tracing(self, rank: Rank) -> None:
        for step in range(150):
            rank.step(step, STEP | {"tracing": 3.0})

    @pytest.mark.parametrize("kind", ["spikes", "slow_interval", "slowing_down", "tracing"])
    def test_costs_of_less_than_a_second_are_not_critical(
        self, tmp_path: Path, run: Run, kind: str
    ) -> None:
        rank = Rank(0, pid=1)
        getattr(self, kind)(rank)
        spool = write_spool(tmp_path, [rank], run="ef" * 16)
        first = document(run, spool)["findings"][0]
        assert (first["kind"], first["severity"]) == (kind.upper(), "warning")
        assert first["share"] > 0.1
        changed = document(run, spool, "--set", f"{kind}.seconds=0.1")["findings"][0]
        assert (changed["kind"], changed["severity"]) == (kind.upper(), "critical")


class TestTokens:
    """The tokens of requests."""

    def served(self, folder: Path, marks: dict[str, Any], **attrs: Any) -> Path:
        """A run of 20 requests with these marks and attributes."""
        rank = Rank(0, pid=1)
        for _ in range(20):
            key = rank.scope("request", 5.0, **attrs)
            for name, value in marks.items():
                rank.mark(name, value, key)
        return write_spool(folder, [rank], run="ef" * 16)

    @pytest.mark.parametrize(
        ("marks", "attrs", "tokens"),
        [
            ({"input_tokens": 8, "output_tokens": 10}, {}, 18),
            ({"input_tokens": 8, "output_tokens": 10, "total_tokens": 19}, {}, 19),
            ({"output_tokens": 10}, {"gen_ai.usage.input_tokens": 8}, 10),
            ({}, {"gen_ai.usage.input_tokens": 8, "gen_ai.usage.output_tokens": 10}, 18),
            ({}, {"llm.usage.total_tokens": 7, "llm.usage.prompt_tokens": 3}, 7),
            ({"output_tokens": 1.5}, {"gen_ai.usage.output_tokens": "10"}, None),
            ({"loss": 3}, {"gen_ai.usage.output_tokens": -10}, None),
        ],
    )
    def test_marks_or_else_attributes_count(
        self, tmp_path: Path, run: Run, marks: dict[str, Any], attrs: dict[str, Any],
        tokens: int | None,
    ) -> None:  # fmt: skip
        spool = self.served(tmp_path, marks, **attrs)
        units = document(run, spool)["units"]
        assert (units["name"], units["count"]) == ("request", 20)
        assert units["tokens"] == (None if tokens is None else 20 * tokens)
        text = run("report", spool).stdout
        assert (f"{20 * (tokens or 0):,} tokens" in text) == (tokens is not None)

    def test_steps_have_none(self, tmp_path: Path, run: Run) -> None:
        rank = Rank(0, pid=1)
        for step in range(20):
            rank.mark("input_tokens", 8, rank.step(step, STEP, **{"gen_ai.usage.input_tokens": 8}))
        spool = write_spool(tmp_path, [rank], run="ef" * 16)
        assert document(run, spool)["units"]["tokens"] is None

    def test_foreign_spans(self, tmp_path: Path, run: Run) -> None:
        """Tokens of scopes inside a unit count once, even if a scope around them repeats them."""
        spans = []
        for number in range(20):
            trace, start = f"{number + 1:032x}", 1_700_000_000_000_000_000 + number * 10_000_000

            def span(
                name: str, at: int, parent: int, tokens: int, trace: str = trace, start: int = start
            ) -> dict[str, Any]:
                attribute = {"key": "gen_ai.usage.output_tokens", "value": {"intValue": tokens}}
                return {
                    "traceId": trace, "spanId": f"{int(trace, 16) * 16 + at:016x}", "name": name,
                    "parentSpanId": f"{int(trace, 16) * 16 + parent:016x}" if parent else "",
                    "startTimeUnixNano": str(start + at), "kind": 1,
                    "endTimeUnixNano": str(start + 8_000_000 - at),
                    "attributes": [attribute] if tokens else [],
                }  # fmt: skip

            spans += [
                span("answer", 1, 0, 0), span("agent", 2, 1, 5), span("chat", 3, 2, 5),
                span("rank", 4, 1, 2),
            ]  # fmt: skip
        file = tmp_path / "spans.json"
        file.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}))
        units = document(run, file, "--unit", "answer")["units"]
        assert (units["name"], units["count"], units["tokens"]) == ("answer", 20, 140)


def test_costs_of_a_running_job_are_the_mean_of_a_rank(tmp_path: Path, run: Run) -> None:
    spool = straggling(tmp_path, "node-a", "node-a")
    [cost] = re.findall(
        r"COMPUTE_STRAGGLER: (\S+ ms) of the run's 660 ms;", run("report", spool).stdout
    )
    text = run("diagnose", spool, "--live").stdout
    assert f"COMPUTE_STRAGGLER: {cost} of the last 660 ms;" in text
