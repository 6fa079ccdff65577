"""Options that change a conclusion: `--ignore`, `--fail-on`, `--price` and `--account`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.run.findings.rate import Rate
from tests.core.analysis.verdicts.records import MS, Rank, write_spool
from tests.tools.conftest import Run

from .concluded import STEP, document, flat, slow, straggling


class TestIgnore:
    """`--ignore KIND[:NAME]`."""

    @pytest.mark.parametrize("pattern", ["INPUT_BOUND", "input_bound:data_load"])
    @pytest.mark.parametrize("engine", ["python", "duckdb"])
    def test_ignored_findings_do_not_count(
        self, tmp_path: Path, run: Run, pattern: str, engine: str
    ) -> None:
        spool = slow(tmp_path, data_load=5.0, checkpoint_save=2.0)
        options = (spool, "--engine", engine, "--ignore", pattern)
        found, whole = document(run, *options), document(run, spool)
        assert whole["findings"][0]["kind"] == "INPUT_BOUND"
        assert found["ignored"] == whole["findings"][:1]
        assert found["findings"] == whole["findings"][1:]
        assert found["headline"] == whole["findings"][1]["sentence"]
        assert whole["ignored"] == []
        [diagnosed] = json.loads(run("diagnose", *options, "--json").stdout)["runs"]
        assert diagnosed["ignored"] == found["ignored"]
        for command in ("report", "diagnose"):
            assert "1 finding ignored: INPUT_BOUND" in run(command, *options).stdout

    def test_a_run_whose_findings_are_all_ignored_is_healthy(
        self, tmp_path: Path, run: Run
    ) -> None:
        spool = slow(tmp_path, data_load=5.0)
        done = run("diagnose", spool, "--ignore", "INPUT_BOUND", "--fail-on", "warning")
        assert done.returncode == 0
        assert done.stdout.startswith("HEALTHY: The time of 200 steps is ")

    def test_other_phases_count(self, tmp_path: Path, run: Run) -> None:
        spool = slow(tmp_path, data_load=5.0)
        found = document(run, spool, "--ignore", "INPUT_BOUND:other_load")
        assert found["findings"][0]["kind"] == "INPUT_BOUND"

    @pytest.mark.parametrize("option", ["--ignore", "--fail-on"])
    @pytest.mark.parametrize("command", ["report", "diagnose"])
    def test_a_name_that_no_scope_has_is_noted(
        self, tmp_path: Path, run: Run, command: str, option: str
    ) -> None:
        spool = slow(tmp_path, data_load=5.0)
        done = run(command, spool, option, "wait_heavy:dataload")
        assert (done.returncode, done.stderr) == (
            0, f"cirron-otel: note: {option} WAIT_HEAVY:dataload: no phase or scope has this name\n"
        )  # fmt: skip
        for known in ("WAIT_HEAVY", "WAIT_HEAVY:forward", "WAIT_HEAVY:step"):
            assert run(command, spool, option, known).stderr == ""

    def test_the_page(self, tmp_path: Path, run: Run) -> None:
        spool = slow(tmp_path, data_load=5.0)
        run("report", spool, "--html", tmp_path / "run.html", "--ignore", "INPUT_BOUND")
        assert "1 finding ignored: INPUT_BOUND" in (tmp_path / "run.html").read_text("utf-8")

    def test_the_conclusion_is_not_stored(self, tmp_path: Path, run: Run) -> None:
        spool = slow(tmp_path, data_load=5.0)
        (spool / "state").mkdir()
        run("report", spool, "--ignore", "INPUT_BOUND")
        assert not (spool / "conclusion.json").exists()
        run("report", spool)
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
        self, tmp_path: Path, run: Run, command: str, condition: str, code: int
    ) -> None:
        spool = slow(tmp_path, data_load=5.0)
        assert run(command, spool, "--fail-on", condition).returncode == code

    def test_a_notice_fails_only_if_all_findings_of_its_kind_are_notices(
        self, tmp_path: Path, run: Run
    ) -> None:
        spool = slow(tmp_path, data_load=0.35, forward=9.0)
        kinds = {each["kind"]: each["severity"] for each in document(run, spool)["findings"]}
        assert kinds == {"INPUT_BOUND": "notice", "FORWARD_HEAVY": "notice"}
        assert run("diagnose", spool, "--fail-on", "INPUT_BOUND").returncode == 0
        assert run("diagnose", spool, "--fail-on", "FORWARD_HEAVY").returncode == 6

    def test_several_conditions(self, tmp_path: Path, run: Run) -> None:
        spool = slow(tmp_path, data_load=5.0)
        conditions = ("--fail-on", "NON_FINITE", "--fail-on", "critical")
        assert run("diagnose", spool, *conditions).returncode == 6

    @pytest.mark.parametrize("form", ["report", "diagnose", "recording"])
    def test_new_findings(self, tmp_path: Path, run: Run, form: str) -> None:
        earlier = slow(tmp_path / "a", data_load=5.0)
        same = slow(tmp_path / "b", data_load=6.0)
        worse = slow(tmp_path / "c", data_load=5.0, checkpoint_save=3.0)
        baseline = earlier
        if form != "recording":
            baseline = tmp_path / "baseline.json"
            baseline.write_text(run(form, earlier, "--json").stdout)
        options = ("--fail-on", "new", "--baseline", baseline)
        assert run("diagnose", same, *options).returncode == 0
        for command in ("report", "diagnose"):
            done = run(command, worse, *options)
            assert done.returncode == 6
            text = f"cirron-otel: new since {baseline}: {_checkpoints(run, worse)}\n"
            assert done.stderr == text
        ignored = ("--ignore", "CHECKPOINT_HEAVY")
        assert run("report", worse, *options, *ignored).returncode == 0

    def test_ignored_findings_of_the_baseline_are_not_new(self, tmp_path: Path, run: Run) -> None:
        spool, baseline = slow(tmp_path, data_load=5.0), tmp_path / "baseline.json"
        baseline.write_text(run("report", spool, "--json", "--ignore", "INPUT_BOUND").stdout)
        options = ("--fail-on", "new", "--baseline", baseline)
        assert run("report", spool, *options).returncode == 0

    @pytest.mark.parametrize("command", ["report", "diagnose"])
    def test_baseline_recording_is_read_like_the_source(
        self, tmp_path: Path, run: Run, command: str
    ) -> None:
        """With the same `--unit`, and with `--from` unless the source is standard input."""
        recording = tmp_path / "recording.data"
        recording.write_text(json.dumps(_jobs_with_a_slow_fetch()))
        options = ("--unit", "job", "--fail-on", "new", "--baseline")
        same = run(command, recording, "--from", "otlp-json", *options, recording)
        assert (same.returncode, same.stderr) == (0, "")
        calm = tmp_path / "calm.data"
        calm.write_text(json.dumps(_jobs_with_a_slow_fetch(share=0)))
        done = run(command, recording, "--from", "otlp-json", *options, calm)
        assert done.returncode == 6, done.stderr

    def test_a_notice_of_the_baseline(self, tmp_path: Path, run: Run) -> None:
        """A warning may be a notice in another run by chance; a critical finding is news."""
        small = slow(tmp_path / "a", data_load=0.4)
        options = ("--fail-on", "new", "--baseline", small)
        assert document(run, small)["findings"][0]["severity"] == "notice"
        warning, critical = slow(tmp_path / "b", data_load=0.7), slow(tmp_path / "c", data_load=5.0)
        assert document(run, warning)["findings"][0]["severity"] == "warning"
        assert run("report", warning, *options).returncode == 0
        assert run("report", critical, *options).returncode == 6

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
        self, tmp_path: Path, run: Run, command: str, options: tuple[str, ...], message: str
    ) -> None:
        done = run(command, slow(tmp_path), *options)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1

    def test_bad_baselines(self, tmp_path: Path, run: Run) -> None:
        spool = slow(tmp_path / "a")
        options = ("report", spool, "--fail-on", "new", "--baseline")
        assert run(*options, tmp_path / "nothing").returncode == 3
        several = tmp_path / "several.json"
        several.write_text('{"runs": [{}, {}]}')
        done = run(*options, several)
        assert done.returncode == 2
        assert "expected the document of one run, not 2" in done.stderr
        several.write_text('{"a": 1}')
        done = run(*options, several)
        assert done.returncode == 3
        assert "it has no run; expected a recording" in done.stderr


def _jobs_with_a_slow_fetch(share: int = 8) -> dict[str, Any]:
    """An OTLP export of another program: every tenth job is slow; `share` tenths are a fetch."""
    spans: list[dict[str, str]] = []
    at = 10**18
    for number in range(1, 401, 2):
        duration = 200 * MS if number % 20 == 1 else 10 * MS
        times = {"startTimeUnixNano": str(at), "traceId": "ab" * 16}
        job = {"name": "job", "spanId": f"{number:016x}", "endTimeUnixNano": str(at + duration)}
        fetch = {"name": "fetch", "spanId": f"{number + 1:016x}", "parentSpanId": job["spanId"]}
        fetch["endTimeUnixNano"] = str(at + duration * share // 10)
        spans += [{**times, **job}, {**times, **fetch}]
        at += duration + 1000
    return {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}


def _checkpoints(run: Run, spool: Path) -> str:
    [found] = [e for e in document(run, spool)["findings"] if e["kind"] == "CHECKPOINT_HEAVY"]
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
        self, tmp_path: Path, run: Run, price: str, shown: str, currency: str | None
    ) -> None:
        """An hour costs 3,600, so each second of a rank costs 1."""
        spool = slow(tmp_path, data_load=5.0)
        found = document(run, spool, "--price", price)
        assert found["price"] == {"per_hour": 3600, "currency": currency, "total": 2.6}
        first = found["findings"][0]
        assert first["amount"] == first["cost_ns"] / 1e9 == 1
        for command in ("report", "diagnose"):
            text = flat(run(command, spool, "--price", price).stdout)
            assert f"CRITICAL INPUT_BOUND: 1 s of the run's 2.6 s, {shown.format('1.00')};" in text
            assert f"UTC, {shown.format('2.60')} " in text.replace("\N{NO-BREAK SPACE}", " ")

    def test_the_costs_of_all_ranks(self, tmp_path: Path, run: Run) -> None:
        """Texts have the time of a rank, and the amount for all of them."""
        spool = straggling(tmp_path, "node-a", "node-a")
        found = document(run, spool, "--price", "3600/h")["findings"][0]
        assert found["amount"] == pytest.approx(found["cost_ns"] / 1e9)
        seconds = found["amount"]
        text = flat(run("report", spool, "--price", "3600/h").stdout)
        assert f"{500 * seconds:.3g} ms of the run's 660 ms, ≈ {seconds:.2f};" in text

    @pytest.mark.parametrize(
        ("amount", "text"),
        [(0.0, "0"), (0.000123, "0.00012"), (0.05, "0.05"), (0.5, "0.50"), (12.3, "12.30"),
         (1234567.8, "1,234,568")],
    )  # fmt: skip
    def test_amounts_as_text(self, amount: float, text: str) -> None:
        assert Rate(1.0).text(amount) == text

    def test_without_a_price(self, tmp_path: Path, run: Run) -> None:
        found = document(run, slow(tmp_path, data_load=5.0))
        assert found["price"] is None
        assert {each["amount"] for each in found["findings"]} == {None}

    @pytest.mark.parametrize(
        "price", ["", "0/h", "-1/h", "free", "1e3/h", "2.5h", "2,5/h", "$2EUR", "2.5/d", "nan/h"]
    )
    def test_invalid_prices(self, tmp_path: Path, run: Run, price: str) -> None:
        done = run("report", slow(tmp_path), "--price", price)
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
        self, tmp_path: Path, run: Run, engine: str
    ) -> None:
        """Those are of scopes in units and between them, with or without case."""
        spool, second = with_own_scopes(tmp_path), 100 * MS
        by_rule = totals(document(run, spool, "--engine", engine))
        # The last scope between units is after the last unit, so it is in `shut_down`.
        assert by_rule["other_scopes"] == 3 * second + 99 * MS
        found = document(run, spool, "--engine", engine, *self.OPTIONS)
        chosen = totals(found)
        assert "other_scopes" not in chosen
        assert chosen["input"] == by_rule["input"] + 3 * second
        assert chosen["logging"] == second
        assert sum(chosen.values()) == sum(by_rule.values())
        first = found["findings"][0]
        assert (first["kind"], first["phase"]) == ("INPUT_BOUND", "shuffle")
        [diagnosed] = json.loads(
            run("diagnose", spool, "--engine", engine, *self.OPTIONS, "--json").stdout
        )["runs"]
        assert diagnosed["findings"] == found["findings"]

    def test_an_account_that_covers_phases(self, tmp_path: Path, run: Run) -> None:
        """Everything inside an evaluation is in its account."""
        rank = Rank(0, pid=1)
        for step in range(100):
            rank.step(step, {**STEP, "probe": {"": 1.0, "forward": 2.0}})
        spool = write_spool(tmp_path, [rank], run="ef" * 16)
        by_rule = totals(document(run, spool))
        assert (by_rule["forward"], by_rule["other_scopes"]) == (500 * MS, 100 * MS)
        chosen = totals(document(run, spool, "--account", "probe=evaluation"))
        assert (chosen["forward"], chosen["evaluation"]) == (300 * MS, 300 * MS)

    def test_a_running_job(self, tmp_path: Path, run: Run) -> None:
        spool = with_own_scopes(tmp_path)
        done = run("diagnose", spool, "--live", "--json", *self.OPTIONS)
        events = [json.loads(line) for line in done.stdout.splitlines()]
        assert "INPUT_BOUND" in {e["finding"]["kind"] for e in events if "finding" in e}

    def test_a_comparison(self, tmp_path: Path, run: Run) -> None:
        a, b = with_own_scopes(tmp_path / "a"), with_own_scopes(tmp_path / "b", 6.0)
        assert "own scopes +300 ms" in flat(run("diff", a, b).stdout)
        for engine in ("python", "duckdb"):
            text = flat(run("diff", a, b, "--engine", engine, *self.OPTIONS).stdout)
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
        self, tmp_path: Path, run: Run, command: str, account: str, message: str
    ) -> None:
        spool = slow(tmp_path)
        sources = (spool, spool) if command == "diff" else (spool,)
        done = run(command, *sources, "--account", account)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr

    def test_two_accounts_of_a_name(self, tmp_path: Path, run: Run) -> None:
        done = run("report", slow(tmp_path), "--account", "a=input", "--account", "A=forward")
        assert done.returncode == 2
        assert "A also has the account input" in done.stderr
