"""The metrics of a running collector: each has a value, and says what happened."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cirron_otel.collector.service import metrics as m
from cirron_otel.collector.service.delivery_counters import Counting, Records, records_of
from cirron_otel.core.delivery.batch_target import Receipt, SealedBatch
from cirron_otel.core.delivery.errors import (
    MisconfiguredError,
    RefusedError,
    StoppedError,
    UnreachableError,
)
from tests.kit.backends.process import free_endpoints
from tests.kit.servers.away import SPANS as A_STEP
from tests.kit.servers.away import STEPS, second, until
from tests.kit.servers.cirron_server import CirronServer, Fault
from tests.kit.servers.otlp_sink import otlp_sink
from tests.kit.servers.serving import Serving, serving

from .test_running import post, request

PROTOBUF, JSON = "application/x-protobuf", "application/json"
SPANS = STEPS * A_STEP + 3
LOGS = {"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": {"stringValue": "a"}}]}]}]}
Samples = dict[tuple[str, ...], float]


def samples(here: Serving, authorization: str = "") -> Samples:
    """By name, and the values of the labels in the order of their names."""
    asked = urllib.request.Request(f"{here.http}/metrics")
    if authorization:
        asked.add_header("Authorization", authorization)
    with urllib.request.urlopen(asked, timeout=30) as answer:
        text = answer.read().decode()
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = [sample.labels[name] for name in sorted(sample.labels)]
            found[sample.name.removeprefix("cirron_collector_"), *labels] = sample.value
    return found


def test_every_metric_has_a_value_and_the_right_one(tmp_path: Path) -> None:
    away_at, sink_at = free_endpoints(2)
    platform = CirronServer()
    platform.faults.append(Fault(400))
    away, sink = f"otlp http://{away_at}", f"otlp http://{sink_at}"
    config = tmp_path / "collector.yaml"
    with platform.running(), otlp_sink(sink_at):
        config.write_text(
            f"drain_s: 1\nstorage: {{url: 'sqlite:///{tmp_path}/rows.db'}}\nexporters:\n"
            f"  - {{type: cirron, endpoint: '{platform.url}', api_key: k}}\n"
            f"  - {{type: otlp, endpoint: 'http://{away_at}', protocol: http/protobuf}}\n"
            f"  - {{type: otlp, endpoint: 'http://{sink_at}'}}\n"
        )
        cirron = f"cirron {platform.url}"
        with serving(tmp_path / "data", "--config", str(config)) as here:
            traces = f"{here.http}/v1/traces"
            assert post(traces, second(0), JSON)[0] == 202
            until(lambda: samples(here).get(("dropped_batches_total", "refused", cirron)) == 1)
            for _ in range(2):
                assert post(traces, request("a", 3), PROTOBUF)[0] == 200
            assert post(traces, b"\xff", PROTOBUF)[0] == 400
            assert post(f"{here.http}/v1/logs", json.dumps(LOGS).encode(), JSON)[0] == 200

            wanted: Samples = {
                ("received_requests_total", "cirron", "http"): 1,
                ("received_requests_total", "traces", "http"): 2,
                ("refused_requests_total", "invalid", "traces", "http"): 1,
                ("rejected_records_total", "logs", "http"): 1,
                ("duplicates_total",): 1,
                ("stored_batches_total", "spool"): 2,
                ("stored_batches_total", "database"): 2,
                ("stored_records_total", "span", "spool"): SPANS,
                ("stored_records_total", "span", "database"): SPANS,
                ("exported_batches_total", cirron): 1,
                ("exported_records_total", cirron): 3,
                ("exported_batches_total", sink): 2,
                ("exported_records_total", sink): SPANS,
                ("exported_batches_total", away): 0,
                ("export_failures_total", cirron, "refused"): 1,
                ("dropped_batches_total", "evicted", "spool"): 0,
                ("set_aside_total", "untranslatable"): 0,
                ("queue_requests", "translation"): 0,
                ("queue_requests", "database"): 0,
                ("queue_requests", away): 2,
            }  # fmt: skip
            with contextlib.suppress(AssertionError):
                until(lambda: wanted.items() <= samples(here).items())
            assert {key: samples(here).get(key) for key in wanted} == wanted
            size = sum(each.stat().st_size for each in (here.folder / "spool").iterdir())
            until(lambda: samples(here)["spool_bytes",] == size)
            found = samples(here)
            for store in ("spool", "database"):
                assert found["stored_bytes_total", store] == size
            assert found["export_failures_total", away, "unreachable"] > 0
            until(lambda: samples(here)["lag_seconds", away] > 0)
            names = {name for name, *_ in found}
            for metric in m.METRICS:
                shown = metric.name.removeprefix("cirron_collector_")
                suffix = {m.MetricKind.COUNTER: "_total", m.MetricKind.HISTOGRAM: "_count"}.get(
                    metric.kind, ""
                )
                assert shown + suffix in names


class Target:
    """Answers with what it is given."""

    shown = "x"

    def __init__(self, *answers: Receipt | Exception) -> None:
        self.answers = list(answers)

    def send(self, _: list[SealedBatch]) -> Receipt:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


BATCH = SealedBatch("b", b'{"spans":[{},{}],"marks":[{}],"snapshots":[]}')


class TestCounting:
    @pytest.mark.parametrize(
        ("error", "reason"),
        [
            (MisconfiguredError("x"), "misconfigured"),
            (UnreachableError("x"), "unreachable"),
            (ConnectionResetError(), "unreachable"),
            (RefusedError("x"), "refused"),
            (ValueError(), "error"),
        ],
    )
    def test_failures_by_their_reason(self, error: Exception, reason: str) -> None:
        registry = m.Registry()
        counting = Counting(Target(error, StoppedError("x")), registry, "n")
        for kind in (type(error), StoppedError):
            with pytest.raises(kind):
                counting.send([BATCH])
        assert registry.totals()[m.EXPORT_FAILURES] == [(("n", reason), [1])]

    def test_only_a_batch_refused_on_a_single_send_is_dropped(self) -> None:
        registry = m.Registry()
        counting = Counting(Target(*[RefusedError("x")] * 2), registry, "n")
        for group in ([BATCH, BATCH], [BATCH]):
            with pytest.raises(RefusedError):
                counting.send(group)
        assert registry.totals()[m.DROPPED_BATCHES] == [(("n", "refused"), [1])]

    def test_partial_success_counts_accepted_records_and_all_bytes(self) -> None:
        registry = m.Registry()
        counting = Counting(Target(Receipt(2, "no")), registry, "n")
        assert counting.shown == "x"
        counting.send([BATCH, BATCH])
        totals = registry.totals()
        assert totals[m.EXPORTED_RECORDS] == [(("n",), [6])]
        assert totals[m.EXPORTED_BYTES] == [(("n",), [2 * len(BATCH.data)])]

    @pytest.mark.parametrize("data", [b"", b"[]", b'{"spans":5}', b"[" * 100_000, b'{"spans":[{}'])
    def test_invalid_batch_has_no_records(self, data: bytes) -> None:
        assert records_of(data) == Records()
