"""A real session with an export budget, and a real collector that stores what it exports."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import cirron_otel as ci
from cirron_otel.core.delivery.batch_target import SealedBatch
from cirron_otel.core.targets.exported_part import exported_part
from tests.kit.servers.command_server import shared_server
from tests.kit.servers.serving import serving
from tests.kit.sessions.opened import opened
from tests.kit.spools.comparing import COMMAND, batches, cirron_otel

STEPS = 300


def train() -> None:
    for index in ci.batches(range(STEPS)):
        with ci.scope("forward"), ci.scope("attention"):
            ci.mark("loss", index)
        with ci.scope("backward"):
            pass
        if index == 250:
            try:
                with ci.scope("optimizer_step"):
                    raise ValueError("loss is nan")
            except ValueError:
                pass
        if index % 50 == 49:
            assert ci.flush(timeout=60)


def report_of(source: object) -> dict[str, Any]:
    report: dict[str, Any] = cirron_otel("report", source)
    for key in ("source", "run"):
        report.pop(key)
    return report


@pytest.mark.parametrize("exporter", ["otlp", "cirron"])
def test_a_collector_has_the_summaries_and_later_all_records(
    exporter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    with serving(tmp_path / "data", "--storage", url) as here:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", here.http)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        with opened(
            tmp_path / "run", exporters=exporter, export_budget=20, metrics=False,
            api_key="sesame", api_endpoint=here.http, detail_slow_factor=1e9,
            sample_interval=None, shutdown_timeout=120.0,
        ):  # fmt: skip
            train()
            health = ci.health()["export_budget"]
        assert here.end() == 0
    spool = batches(tmp_path / "run")
    received = batches(tmp_path / "data")
    parts = dict(
        exported_part(SealedBatch(name, json.dumps(batch, separators=(",", ":")).encode()))
        for name, batch in spool.items()
    )
    assert received == {name: json.loads(data) for name, data in parts.items()}
    assert health["spans_per_second"] == 20
    assert health["left_out"] > 3 * health["spans"]
    assert all(
        {"forward", "attention"} <= {span["name"] for span in batch["spans"]}
        for batch in spool.values()
        if any(span["name"] == "step" for span in batch["spans"])
    )
    stored = [span for batch in received.values() for span in batch["spans"]]
    failed = [span for span in stored if "status" in span.get("otel", {})]
    assert [span["name"] for span in failed] == ["optimizer_step"]
    (session,) = [span for span in stored if span["name"] == "cirron.session"]
    assert session["attrs"]["export_budget"] == 20

    full, summary = report_of(tmp_path / "run"), report_of(url)
    assert full.pop("summarised_units") == 0
    assert STEPS / 2 < summary.pop("summarised_units") < STEPS
    (incomplete,) = [each for each in summary["findings"] if each["kind"] == "INCOMPLETE"]
    assert "are recorded as summaries" in incomplete["sentence"]
    summary["findings"].remove(incomplete)
    assert_same_except_for_tracing(dict(full), summary)
    assert "Summaries: " in cirron_otel_text("report", url)

    # The complete spool is imported: every record counts once.
    with serving(tmp_path / "data", "--storage", url) as here:
        cirron_otel("export", tmp_path / "run", OTEL_EXPORTER_OTLP_ENDPOINT=here.http,
                    OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf")  # fmt: skip
        assert here.end() == 0
    assert report_of(url) == full | {"summarised_units": 0}


def assert_same_except_for_tracing(full: dict[str, Any], summary: dict[str, Any]) -> None:
    """A summary has no overhead of the scopes inside: that time is not `tracing`."""
    ledgers = [each.pop("ledger") for each in (full, summary)]
    assert ledgers[0]["total_ns"] == ledgers[1]["total_ns"]
    complete, few = ({each["account"]: each["ns"] for each in ledger["accounts"]}
                     for ledger in ledgers)  # fmt: skip
    assert complete.keys() == few.keys()
    assert few["tracing"] < complete["tracing"]
    most_ns = complete["tracing"] - few["tracing"] + 100_000
    for account in complete.keys() - {"tracing"}:
        assert abs(few[account] - complete[account]) <= most_ns
    kinds = [
        [
            each["kind"]
            for each in document.pop("findings")
            if each["severity"] != "notice" and each["kind"] != "TRACING"
        ]
        for document in (full, summary)
    ]
    assert kinds[0] == kinds[1]
    # The excess of the warm-up, and so the speed, depend on the unattributed time.
    rates = []
    for document in (full, summary):
        document.pop("headline")
        document["units"] = dict(document["units"])
        document["ranks"] = [dict(rank) for rank in document["ranks"]]
        speeds = [rank.pop("steps_per_second") for rank in document["ranks"]]
        rates.append([document["units"].pop("per_s"), *speeds])
    assert rates[0] == pytest.approx(rates[1], rel=0.01)
    assert summary == full


def cirron_otel_text(*arguments: object) -> str:
    """Run the command without `--json`; return its output."""
    command = [str(COMMAND), *map(str, arguments)]
    done = shared_server().run(command, Path.cwd(), os.environ | {"COLUMNS": "100"}, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def test_without_a_budget_batches_list_no_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "run", exporters="none", export_budget=1):
        train()
        assert ci.health()["export_budget"] is None  # nothing is exported
    with opened(tmp_path / "other", exporters="none"):
        train()
    for folder in ("run", "other"):
        found = batches(tmp_path / folder).values()
        assert not any("summarised" in batch["otel"] for batch in found)
