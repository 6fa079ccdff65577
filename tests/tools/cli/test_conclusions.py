"""The conclusion of `report` and `diagnose`: hosts, and the options that change it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.run.findings.rate import Rate
from cirron_otel.tools.cli.main import run as run_command
from tests.core.analysis.verdicts.records import MS, START, Rank, write_spool

Call = Callable[..., subprocess.CompletedProcess[str]]
STEP = {"data_load": 1.0, "forward": 3.0, "backward": 4.0, "optimizer_step": 1.0}


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the command line in this process."""

    def of(*words: object) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        code = run_command([*map(str, words)])
        return subprocess.CompletedProcess(words, code, *capsys.readouterr())

    return of


def document(call: Call, *words: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call("report", *words, "--json").stdout)
    return found


def flat(text: str) -> str:
    return " ".join(text.split())


def straggling(folder: Path, *hosts: str | None) -> Path:
    """A run of a rank for each host, the last of which is slow; None for an unknown host."""
    ranks = []
    for number, host in enumerate(hosts):
        named = {} if host is None else {"host_name": host}
        rank = Rank(number, pid=number + 1, **named)
        is_slow = number == len(hosts) - 1
        for step in range(60):
            wait = 2.0 * (not is_slow)
            rank.step(step, STEP | {"forward": 5.0 - wait, "backward": 4.0 + wait})
        ranks.append(rank)
    return write_spool(folder, ranks, run="ab" * 16)


class TestHosts:
    """The resource of each session names the host."""

    @pytest.mark.parametrize("engine", ["python", "duckdb"])
    def test_ranks_and_findings_have_their_hosts(
        self, tmp_path: Path, call: Call, engine: str
    ) -> None:
        spool = straggling(tmp_path, "node-a", "node-a", "node-b")
        found = document(call, spool, "--engine", engine)
        ranks = [(each["rank"], each["host"]) for each in found["ledger"]["ranks"]]
        assert ranks == [(0, "node-a"), (1, "node-a"), (2, "node-b")]
        first = found["findings"][0]
        assert (first["kind"], first["ranks"]) == ("COMPUTE_STRAGGLER", [2])
        assert first["hosts"] == ["node-b"]
        assert first["sentence"].startswith("Rank 2 on node-b is slow in forward")
        assert first["sentence"] in flat(call("report", spool).stdout)

    def test_one_host_is_in_no_sentence(self, tmp_path: Path, call: Call) -> None:
        first = document(call, straggling(tmp_path, "node-a", "node-a"))["findings"][0]
        assert first["hosts"] == ["node-a"]
        assert first["sentence"].startswith("Rank 1 is slow")

    def test_an_unknown_host(self, tmp_path: Path, call: Call) -> None:
        found = document(call, straggling(tmp_path, "node-a", None))
        assert [each["host"] for each in found["ledger"]["ranks"]] == ["node-a", None]
        assert found["findings"][0]["hosts"] == []

    def test_a_name_with_control_characters(self, tmp_path: Path, call: Call) -> None:
        spool = straggling(tmp_path, "node-a", "b\x1b[31m\nc")
        assert "\x1b" not in call("report", spool).stdout


def slow(folder: Path, **phases: float) -> Path:
    """A run of one rank whose steps have some phases, in ms; it takes 2.4 s and more."""
    rank = Rank(0, pid=1, host_name="node-a")
    for step in range(200):
        rank.step(step, STEP | phases)
    return write_spool(folder, [rank], run="cd" * 16)


class TestIgnore:
    """`--ignore KIND[:NAME]`."""

    @pytest.mark.parametrize("pattern", ["INPUT_BOUND", "input_bound:data_load"])
    @pytest.mark.parametrize("engine", ["python", "duckdb"])
    def test_ignored_findings_do_not_count(
        self, tmp_path: Path, call: Call, pattern: str, engine: str
    ) -> None:
        spool = slow(tmp_path, data_load=5.0, checkpoint_save=2.0)
        options = (spool, "--engine", engine, "--ignore", pattern)
        found, whole = document(call, *options), document(call, spool)
        assert whole["findings"][0]["kind"] == "INPUT_BOUND"
        assert found["ignored"] == whole["findings"][:1]
        assert found["findings"] == whole["findings"][1:]
        assert found["headline"] == whole["findings"][1]["sentence"]
        assert whole["ignored"] == []
        [diagnosed] = json.loads(call("diagnose", *options, "--json").stdout)["runs"]
        assert diagnosed["ignored"] == found["ignored"]
        for command in ("report", "diagnose"):
            assert "1 finding ignored: INPUT_BOUND" in call(command, *options).stdout

    def test_a_run_whose_findings_are_all_ignored_is_healthy(
        self, tmp_path: Path, call: Call
    ) -> None:
        spool = slow(tmp_path, data_load=5.0)
        done = call("diagnose", spool, "--ignore", "INPUT_BOUND", "--fail-on", "warning")
        assert done.returncode == 0
        assert done.stdout.startswith("HEALTHY: The time of 200 steps is ")

    def test_other_phases_count(self, tmp_path: Path, call: Call) -> None:
        spool = slow(tmp_path, data_load=5.0)
        found = document(call, spool, "--ignore", "INPUT_BOUND:other_load")
        assert found["findings"][0]["kind"] == "INPUT_BOUND"

    def test_the_page(self, tmp_path: Path, call: Call) -> None:
        spool = slow(tmp_path, data_load=5.0)
        call("report", spool, "--html", tmp_path / "run.html", "--ignore", "INPUT_BOUND")
        assert "1 finding ignored: INPUT_BOUND" in (tmp_path / "run.html").read_text("utf-8")

    def test_the_conclusion_is_not_stored(self, tmp_path: Path, call: Call) -> None:
        spool = slow(tmp_path, data_load=5.0)
        (spool / "state").mkdir()
        call("report", spool, "--ignore", "INPUT_BOUND")
        assert not (spool / "conclusion.json").exists()
        call("report", spool)
        assert (spool / "conclusion.json").exists()


class TestFailOn:
    """`--fail-on SEVERITY|KIND[:NAME]|new`, with `--baseline`."""

    @pytest.mark.parametrize(
        ("condition", "code"),
        [("warning", 6), ("critical", 6), ("failure", 0), ("INPUT_BOUND", 6), ("WAIT_HEAVY", 0),
         ("INPUT_BOUND:data_load", 6), ("INPUT_BOUND:h2d", 0), ("FORWARD_HEAVY", 0)],
    )  # fmt: skip
    @pytest.mark.parametrize("command", ["report", "diagnose"])
    def test_severities_and_kinds(
        self, tmp_path: Path, call: Call, command: str, condition: str, code: int
    ) -> None:
        spool = slow(tmp_path, data_load=5.0)
        assert call(command, spool, "--fail-on", condition).returncode == code

    def test_a_notice_fails_only_if_all_findings_of_its_kind_are_notices(
        self, tmp_path: Path, call: Call
    ) -> None:
        spool = slow(tmp_path, data_load=0.35, forward=9.0)
        kinds = {each["kind"]: each["severity"] for each in document(call, spool)["findings"]}
        assert kinds == {"INPUT_BOUND": "notice", "FORWARD_HEAVY": "notice"}
        assert call("diagnose", spool, "--fail-on", "INPUT_BOUND").returncode == 0
        assert call("diagnose", spool, "--fail-on", "FORWARD_HEAVY").returncode == 6

    def test_several_conditions(self, tmp_path: Path, call: Call) -> None:
        spool = slow(tmp_path, data_load=5.0)
        conditions = ("--fail-on", "NON_FINITE", "--fail-on", "critical")
        assert call("diagnose", spool, *conditions).returncode == 6

    @pytest.mark.parametrize("form", ["report", "diagnose", "recording"])
    def test_new_findings(self, tmp_path: Path, call: Call, form: str) -> None:
        earlier = slow(tmp_path / "a", data_load=5.0)
        same = slow(tmp_path / "b", data_load=6.0)
        worse = slow(tmp_path / "c", data_load=5.0, checkpoint_save=3.0)
        baseline = earlier
        if form != "recording":
            baseline = tmp_path / "baseline.json"
            baseline.write_text(call(form, earlier, "--json").stdout)
        options = ("--fail-on", "new", "--baseline", baseline)
        assert call("diagnose", same, *options).returncode == 0
        for command in ("report", "diagnose"):
            done = call(command, worse, *options)
            assert done.returncode == 6
            text = f"cirron-otel: new since {baseline}: {_checkpoints(call, worse)}\n"
            assert done.stderr == text
        ignored = ("--ignore", "CHECKPOINT_HEAVY")
        assert call("report", worse, *options, *ignored).returncode == 0

    def test_ignored_findings_of_the_baseline_are_not_new(self, tmp_path: Path, call: Call) -> None:
        spool, baseline = slow(tmp_path, data_load=5.0), tmp_path / "baseline.json"
        baseline.write_text(call("report", spool, "--json", "--ignore", "INPUT_BOUND").stdout)
        options = ("--fail-on", "new", "--baseline", baseline)
        assert call("report", spool, *options).returncode == 0

    def test_a_notice_of_the_baseline(self, tmp_path: Path, call: Call) -> None:
        """A warning may be a notice in another run by chance; a critical finding is news."""
        small = slow(tmp_path / "a", data_load=0.4)
        options = ("--fail-on", "new", "--baseline", small)
        assert document(call, small)["findings"][0]["severity"] == "notice"
        warning, critical = slow(tmp_path / "b", data_load=0.7), slow(tmp_path / "c", data_load=5.0)
        assert document(call, warning)["findings"][0]["severity"] == "warning"
        assert call("report", warning, *options).returncode == 0
        assert call("report", critical, *options).returncode == 6

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--fail-on", "new"), "--fail-on new and --baseline FILE need each other"),
            (("--baseline", "x"), "--fail-on new and --baseline FILE need each other"),
            (("--fail-on", "severe"), "'severe' is not a kind of finding"),
            (("--fail-on", "SPIKES:"), "expected the name of a phase or a scope"),
            (("--ignore", "severe"), "'severe' is not a kind of finding"),
            (("--rules", "traceml", "--ignore", "SPIKES"), "--rules cannot be combined with"),
            (("--rules", "traceml", "--fail-on", "SPIKES"), "expected warning, critical, failure"),
        ],
    )
    @pytest.mark.parametrize("command", ["report", "diagnose"])
    def test_wrong_usage(
        self, tmp_path: Path, call: Call, command: str, options: tuple[str, ...], message: str
    ) -> None:
        done = call(command, slow(tmp_path), *options)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1

    def test_bad_baselines(self, tmp_path: Path, call: Call) -> None:
        spool = slow(tmp_path / "a")
        options = ("report", spool, "--fail-on", "new", "--baseline")
        assert call(*options, tmp_path / "nothing").returncode == 3
        several = tmp_path / "several.json"
        several.write_text('{"runs": [{}, {}]}')
        done = call(*options, several)
        assert done.returncode == 2
        assert "expected the document of one run, not 2" in done.stderr
        several.write_text('{"a": 1}')
        done = call(*options, several)
        assert done.returncode == 3
        assert "it has no run; expected a recording" in done.stderr


def _checkpoints(call: Call, spool: Path) -> str:
    [found] = [e for e in document(call, spool)["findings"] if e["kind"] == "CHECKPOINT_HEAVY"]
    sentence: str = found["sentence"]
    return sentence


class TestPrice:
    """`--price`, of an hour of a rank."""

    @pytest.mark.parametrize(
        ("price", "shown", "currency"),
        [("3600/h", "≈ {}", None), ("3600", "≈ {}", None), ("3600 EUR/h", "≈ {} EUR", "EUR"),
         ("EUR3600/h", "≈ EUR {}", "EUR"), ("$3600/h", "≈ ${}", "$"), ("3600€", "≈ {}€", "€")],
    )  # fmt: skip
    def test_costs(
        self, tmp_path: Path, call: Call, price: str, shown: str, currency: str | None
    ) -> None:
        """An hour costs 3,600, so each second of a rank costs 1."""
        spool = slow(tmp_path, data_load=5.0)
        found = document(call, spool, "--price", price)
        assert found["price"] == {"per_hour": 3600, "currency": currency, "total": 2.6}
        first = found["findings"][0]
        assert first["amount"] == first["cost_ns"] / 1e9 == 1
        for command in ("report", "diagnose"):
            text = flat(call(command, spool, "--price", price).stdout)
            assert f"CRITICAL INPUT_BOUND: 1 s of the run's 2.6 s, {shown.format('1.00')};" in text
            assert f"UTC, {shown.format('2.60')} " in text.replace("\N{NO-BREAK SPACE}", " ")

    def test_the_costs_of_all_ranks(self, tmp_path: Path, call: Call) -> None:
        """Texts have the time of a rank, and the amount for all of them."""
        spool = straggling(tmp_path, "node-a", "node-a")
        found = document(call, spool, "--price", "3600/h")["findings"][0]
        assert found["amount"] == pytest.approx(found["cost_ns"] / 1e9)
        seconds = found["amount"]
        text = flat(call("report", spool, "--price", "3600/h").stdout)
        assert f"{500 * seconds:.3g} ms of the run's 660 ms, ≈ {seconds:.2f};" in text

    @pytest.mark.parametrize(
        ("amount", "text"),
        [(0.0, "0"), (0.000123, "0.00012"), (0.05, "0.05"), (0.5, "0.50"), (12.3, "12.30"),
         (1234567.8, "1,234,568")],
    )  # fmt: skip
    def test_amounts_as_text(self, amount: float, text: str) -> None:
        assert Rate(1.0).text(amount) == text

    def test_without_a_price(self, tmp_path: Path, call: Call) -> None:
        found = document(call, slow(tmp_path, data_load=5.0))
        assert found["price"] is None
        assert {each["amount"] for each in found["findings"]} == {None}

    @pytest.mark.parametrize(
        "price", ["", "0/h", "-1/h", "free", "1e3/h", "2.5h", "2,5/h", "$2EUR", "2.5/d", "nan/h"]
    )
    def test_invalid_prices(self, tmp_path: Path, call: Call, price: str) -> None:
        done = call("report", slow(tmp_path), "--price", price)
        assert (done.returncode, done.stdout) == (2, "")
        assert "is not the price of an hour of a rank: expected a number above 0" in done.stderr


def with_own_scopes(folder: Path, ms: float = 3.0) -> Path:
    """A run with the scopes `shuffle` in steps, and `Flush=all` between them."""
    rank = Rank(0, pid=1)
    for step in range(100):
        rank.step(step, {"shuffle": ms, **STEP})
        rank.scope("Flush=all", 1.0)
    return write_spool(folder, [rank], run="ef" * 16)


def totals(found: dict[str, Any]) -> dict[str, int]:
    """The time of a document's ledger by account."""
    return {each["account"]: each["ns"] for each in found["ledger"]["accounts"]}


class TestAccount:
    """`--account NAME=ACCOUNT`."""

    OPTIONS = ("--account", "Shuffle=input", "--account", "Flush=all=logging")

    @pytest.mark.parametrize("engine", ["python", "duckdb"])
    def test_own_scopes_have_the_chosen_accounts(
        self, tmp_path: Path, call: Call, engine: str
    ) -> None:
        """Those are of scopes in units and between them, with or without case."""
        spool, second = with_own_scopes(tmp_path), 100 * MS
        by_rule = totals(document(call, spool, "--engine", engine))
        # The last scope between units is after the last unit, so it is in `shut_down`.
        assert by_rule["other_scopes"] == 3 * second + 99 * MS
        found = document(call, spool, "--engine", engine, *self.OPTIONS)
        chosen = totals(found)
        assert "other_scopes" not in chosen
        assert chosen["input"] == by_rule["input"] + 3 * second
        assert chosen["logging"] == second
        assert sum(chosen.values()) == sum(by_rule.values())
        first = found["findings"][0]
        assert (first["kind"], first["phase"]) == ("INPUT_BOUND", "shuffle")
        [diagnosed] = json.loads(
            call("diagnose", spool, "--engine", engine, *self.OPTIONS, "--json").stdout
        )["runs"]
        assert diagnosed["findings"] == found["findings"]

    def test_an_account_that_covers_phases(self, tmp_path: Path, call: Call) -> None:
        """Everything inside an evaluation is in its account."""
        rank = Rank(0, pid=1)
        for step in range(100):
            rank.step(step, {**STEP, "probe": {"": 1.0, "forward": 2.0}})
        spool = write_spool(tmp_path, [rank], run="ef" * 16)
        by_rule = totals(document(call, spool))
        assert (by_rule["forward"], by_rule["other_scopes"]) == (500 * MS, 100 * MS)
        chosen = totals(document(call, spool, "--account", "probe=evaluation"))
        assert (chosen["forward"], chosen["evaluation"]) == (300 * MS, 300 * MS)

    def test_a_running_job(self, tmp_path: Path, call: Call) -> None:
        spool = with_own_scopes(tmp_path)
        done = call("diagnose", spool, "--live", "--json", *self.OPTIONS)
        events = [json.loads(line) for line in done.stdout.splitlines()]
        assert "INPUT_BOUND" in {e["finding"]["kind"] for e in events if "finding" in e}

    def test_a_comparison(self, tmp_path: Path, call: Call) -> None:
        a, b = with_own_scopes(tmp_path / "a"), with_own_scopes(tmp_path / "b", 6.0)
        assert "own scopes +300 ms" in flat(call("diff", a, b).stdout)
        for engine in ("python", "duckdb"):
            text = flat(call("diff", a, b, "--engine", engine, *self.OPTIONS).stdout)
            assert "waiting for input +300 ms" in text
            assert "own scopes" not in text

    @pytest.mark.parametrize(
        ("account", "message"),
        [
            ("shuffle", "expected NAME=ACCOUNT"),
            ("=input", "expected NAME=ACCOUNT"),
            ("shuffle=start_up", "a scope cannot be in the account 'start_up': expected one of"),
            ("shuffle=fast", "a scope cannot be in the account 'fast': expected one of"),
            ("forward=loss", "forward is no scope of your own, so its account is fixed"),
            ("Step=input", "Step is no scope of your own, so its account is fixed"),
        ],
    )
    @pytest.mark.parametrize("command", ["report", "diagnose", "diff"])
    def test_wrong_usage(
        self, tmp_path: Path, call: Call, command: str, account: str, message: str
    ) -> None:
        spool = slow(tmp_path)
        sources = (spool, spool) if command == "diff" else (spool,)
        done = call(command, *sources, "--account", account)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr

    def test_two_accounts_of_a_name(self, tmp_path: Path, call: Call) -> None:
        done = call("report", slow(tmp_path), "--account", "a=input", "--account", "A=forward")
        assert done.returncode == 2
        assert "A also has the account input" in done.stderr


class TestUnreadableBatches:
    """Batches that cannot be read make the recording incomplete."""

    @pytest.mark.parametrize("engine", ["python", "duckdb"])
    @pytest.mark.parametrize("command", ["report", "diagnose"])
    def test_they_are_a_warning(
        self, tmp_path: Path, call: Call, command: str, engine: str
    ) -> None:
        spool = slow(tmp_path, data_load=0.1)
        options = (command, spool, "--engine", engine)
        assert call(*options).stdout.startswith("HEALTHY: ")
        (spool / "spool" / f"{START + 9:020d}-{'a' * 32}.json").write_text('{"spans": [')
        done = call(*options)
        assert done.returncode == 1
        assert done.stdout.startswith(
            "WARNING: The recording is incomplete: 1 batch cannot be read."
        )

    def test_a_message_of_another_source(self, tmp_path: Path, call: Call) -> None:
        spool, file = slow(tmp_path / "a", data_load=0.1), tmp_path / "run.jsonl"
        assert call("convert", spool, file).returncode == 0
        with file.open("a") as lines:
            lines.write('{"resourceSpans": [\n')
        done = call("report", file)
        assert done.returncode == 1
        assert "incomplete: 1 batch cannot be read." in flat(done.stdout)

    def test_a_batch_that_was_never_finished(self, tmp_path: Path, call: Call) -> None:
        """Its records are in the journal of the process, from which they are recovered."""
        spool = slow(tmp_path, data_load=0.1)
        (spool / "spool" / f"{START + 9:020d}-{'a' * 32}.json.tmp").write_text('{"spans": [')
        assert call("report", spool).stdout.startswith("HEALTHY: ")


class TestOccurrences:
    """The time of one evaluation, checkpoint or logging call."""

    @pytest.mark.parametrize("engine", ["python", "duckdb"])
    def test_several_scopes_in_a_unit(self, tmp_path: Path, call: Call, engine: str) -> None:
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
            each for each in document(call, spool, "--engine", engine)["findings"]
            if each["kind"] == "CHECKPOINT_HEAVY"
        ]  # fmt: skip
        assert "; a checkpoint takes 6 ms" in found["sentence"]
        evidence = found["evidence"]
        assert (evidence["count"], evidence["each_ns"]) == (16, 6 * MS)
        assert (evidence["units"], evidence["per_unit_ns"]) == (8, 12 * MS)


class TestBriefSpikes:
    """`spikes.seconds`."""

    def test_spikes_of_less_than_a_second_are_not_critical(
        self, tmp_path: Path, call: Call
    ) -> None:
        rank = Rank(0, pid=1)
        for step in range(150):
            rank.step(step, STEP | ({"forward": 203.0} if step % 40 == 20 else {}))
        spool = write_spool(tmp_path, [rank], run="ef" * 16)
        first = document(call, spool)["findings"][0]
        assert (first["kind"], first["severity"]) == ("SPIKES", "warning")
        assert first["share"] > 0.1
        changed = document(call, spool, "--set", "spikes.seconds=0.1")["findings"][0]
        assert (changed["kind"], changed["severity"]) == ("SPIKES", "critical")


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
        self, tmp_path: Path, call: Call, marks: dict[str, Any], attrs: dict[str, Any],
        tokens: int | None,
    ) -> None:  # fmt: skip
        spool = self.served(tmp_path, marks, **attrs)
        units = document(call, spool)["units"]
        assert (units["name"], units["count"]) == ("request", 20)
        assert units["tokens"] == (None if tokens is None else 20 * tokens)
        text = call("report", spool).stdout
        assert (f"{20 * (tokens or 0):,} tokens" in text) == (tokens is not None)

    def test_steps_have_none(self, tmp_path: Path, call: Call) -> None:
        rank = Rank(0, pid=1)
        for step in range(20):
            rank.mark("input_tokens", 8, rank.step(step, STEP, **{"gen_ai.usage.input_tokens": 8}))
        spool = write_spool(tmp_path, [rank], run="ef" * 16)
        assert document(call, spool)["units"]["tokens"] is None

    def test_foreign_spans(self, tmp_path: Path, call: Call) -> None:
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
        units = document(call, file, "--unit", "answer")["units"]
        assert (units["name"], units["count"], units["tokens"]) == ("answer", 20, 140)
