"""Batches whose parts got different answers: what was refused and rejected so far is not lost.

`tests/core/targets/test_refused_parts.py` checks this for all targets and orders of answers. Here
is what becomes of the answers if the batch ends in another way.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)

from cirron_otel.core.delivery.batch_target import Receipt
from cirron_otel.core.delivery.delivery import Delivery
from cirron_otel.core.delivery.delivery_stats import DeliveryStats, ExportStats
from cirron_otel.core.delivery.errors import UnreachableError
from cirron_otel.core.delivery.foreground import ForegroundDelivery
from cirron_otel.core.spool.dead_letters import DeadLetters, dead_letters, request
from cirron_otel.core.spool.lease import Lease, claim_delivery
from cirron_otel.core.targets.otlp import target as target_module
from cirron_otel.core.targets.otlp.config import OtlpConfig, OtlpProtocol
from cirron_otel.core.targets.otlp.request_limit import RequestLimit
from cirron_otel.core.targets.otlp.target import OtlpTarget
from cirron_otel.core.translator.own.encode import Options
from cirron_otel.tools.convert.report import ExportReport
from tests.core.targets.parts import Spool, spool_with
from tests.kit.servers.servers import (
    PROTOBUF,
    Answer,
    HttpReceiver,
    Post,
    http_receiver,
    span_ids,
)
from tests.kit.spools.deliveries import QUICK, until

from .test_otlp_target import sealed

Fate = Callable[[int], int]
"""Returns the status for a span by its number; PARTIAL rejects it in an accepted request."""
PARTIAL = 299


def answering(fate: Fate) -> Callable[[Post], Answer]:
    def answer(post: Post) -> Answer:
        fates = [fate(span) for span in span_ids([post.body])]
        failures = [each for each in fates if each not in (200, PARTIAL)]
        if failures:
            return Answer(failures[0])
        partial = ExportTracePartialSuccess(rejected_spans=fates.count(PARTIAL), error_message="no")
        body = ExportTraceServiceResponse(partial_success=partial).SerializeToString()
        return Answer(body=body if PARTIAL in fates else b"", headers=PROTOBUF)

    return answer


def small_target(server: HttpReceiver) -> OtlpTarget:
    """A target that sends each span in a request of its own."""
    target = OtlpTarget(OtlpConfig(OtlpProtocol.HTTP_PROTOBUF, server.url, timeout=20), Options())
    target._pusher._limit = RequestLimit(100, 100)
    return target


def started(spool: Spool, target: OtlpTarget) -> Delivery:
    delivery = Delivery(spool.paths, spool.owner, target, policy=QUICK)
    with delivery._changed:
        delivery.start()
        for name in spool.batches:
            delivery.notify(name)
    return delivery


def letters(spool: Spool) -> list[str]:
    return [letter.why.reason for letter in dead_letters(spool.paths)]


def test_a_batch_that_is_given_up_keeps_the_refusal_of_its_other_part(tmp_path: Path) -> None:
    """Another attempt at the dead letter sends the complete batch."""
    fates = {1: PARTIAL, 2: 400, 3: 404}
    with (
        http_receiver(*[answering(lambda span: fates.get(span, 200))] * 10_000) as server,
        spool_with(tmp_path, 1, 3) as spool,
    ):
        delivery = started(spool, small_target(server))
        spans = itertools.count(100)
        while not delivery.stats()["refused"]:  # which needs others that are accepted
            delivery.notify(spool.seal([next(spans)]))
            until(lambda: delivery.stats()["waiting"] <= 1)
        assert delivery.stats()["rejected_spans"] == 1
        (reason,) = letters(spool)
        assert "404 Not Found" in reason
        assert "400 Bad Request" in reason
        fates.clear()
        before = len(server.posts)
        (letter,) = dead_letters(spool.paths)
        request(spool.paths, letter)
        delivery._resubmission.due_at = 0.0
        delivery.rescan()
        until(lambda: not letters(spool))
        assert delivery.finish(60)
    assert set(span_ids([post.body for post in server.posts[before:]])) >= {1, 2, 3}


def test_a_retried_dead_letter_counts_the_spans_that_are_rejected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fates = {1: 400}
    with (
        http_receiver(*[answering(lambda span: fates.get(span, 200))] * 1000) as server,
        spool_with(tmp_path, 2, 3) as spool,
    ):
        assert started(spool, small_target(server)).finish(60)
        (letter,) = dead_letters(spool.paths)
        fates[1] = PARTIAL
        request(spool.paths, letter)
        delivery = started(spool, small_target(server))
        until(lambda: not letters(spool))
        assert delivery.finish(60)
        assert delivery.stats()["rejected_spans"] == 1
        assert "1 spans were rejected, and are not sent again: no" in caplog.text

        DeadLetters(spool.paths, letter.key, "x").put(letter.name, read(spool, letter.name), "no")
        request(spool.paths, letter)
        stats = ExportStats("x")
        foreground = ForegroundDelivery(
            spool.paths,
            small_target(server),
            stats,
            stop=threading.Event(),
            patience=60,
            say=print,
        )
        foreground.finish()
        assert (stats.sent_batches, stats.rejected_spans) == (1, 1)


def read(spool: Spool, name: str) -> bytes:
    return (spool.paths.spool / name).read_bytes()


def test_while_no_dead_letter_can_be_written_accepted_parts_are_not_sent_again(
    tmp_path: Path,
) -> None:
    fates = {1: PARTIAL, 2: 400}
    with (
        http_receiver(*[answering(lambda span: fates.get(span, 200))] * 1000) as server,
        spool_with(tmp_path, 1, 3) as spool,
    ):
        blocked = spool.paths.state / "dead-letters"
        blocked.write_text("a file is in the way")
        delivery = started(spool, small_target(server))
        attempts = delivery._schedule.tries
        (name,) = spool.batches
        until(lambda: attempts(name) > 3)
        assert len(server.posts) == 3
        assert delivery.stats()["rejected_spans"] == 0
        blocked.unlink()
        assert delivery.finish(60)
        assert len(letters(spool)) == 1
        assert len(server.posts) == 3
        assert (delivery.stats()["refused"], delivery.stats()["rejected_spans"]) == (1, 1)


def test_evicted_batch_still_counts_its_rejected_spans(tmp_path: Path) -> None:
    fates = {1: PARTIAL, 3: 503}
    with (
        http_receiver(*[answering(lambda span: fates.get(span, 200))] * 10_000) as server,
        spool_with(tmp_path, 1, 3) as spool,
    ):
        delivery = started(spool, small_target(server))
        until(lambda: len(server.posts) > 5)
        assert delivery.stats()["rejected_spans"] == 0
        for name in spool.batches:
            (spool.paths.spool / name).unlink()
        until(lambda: delivery.stats()["evicted"])
        assert delivery.stats()["rejected_spans"] == 1
        delivery.finish(60)


def test_batches_beyond_the_partial_limit_are_resent_completely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_module, "_PARTIAL_BYTES", 2_000)
    is_busy = True

    def fate(span: int) -> int:
        if span % 4 == 0 and is_busy:
            return 503
        return {1: PARTIAL, 2: 400}.get(span % 4, 200)

    with (
        http_receiver(*[answering(fate)] * 10_000) as server,
        spool_with(tmp_path, 6, 4) as spool,
    ):
        delivery = started(spool, small_target(server))
        until(lambda: len(server.posts) > 50)
        is_busy = False
        assert delivery.finish(60)
        assert len(letters(spool)) == 6
        assert delivery.stats()["rejected_spans"] == 6


def test_a_batch_that_another_process_takes_over_is_counted_there(tmp_path: Path) -> None:
    fates = {1: PARTIAL, 3: 503}
    with (
        http_receiver(*[answering(lambda span: fates.get(span, 200))] * 10_000) as server,
        spool_with(tmp_path, 1, 3) as spool,
    ):
        target = small_target(server)
        first = started(spool, target)
        until(lambda: len(server.posts) > 5)
        (lease_file,) = spool.paths.state.glob("lease-*")
        lease: Lease | None = None
        while lease is None:  # the first delivery may be faster
            lease_file.unlink(missing_ok=True)
            lease = claim_delivery(spool.paths, target.key, spool.owner.prefix)
        until(lambda: not first.backlogs)
        assert not target._rests
        first.finish(0)
        lease.release()
        fates[3] = 200
        second = started(spool, small_target(server))
        assert second.finish(60)
        shown = [each.stats()["rejected_spans"] for each in (first, second)]
    assert shown == [0, 1]


def test_resent_group_discards_the_partial_results_of_its_batches() -> None:
    fates = {1: PARTIAL, 1 + (1 << 32): 503}
    batches = [sealed(1, spans=3), sealed(2)]
    with http_receiver(*[answering(lambda span: fates.get(span, 200))] * 100) as server:
        target = small_target(server)
        with pytest.raises(UnreachableError):
            target.send(batches[:1])
        assert list(target._rests) == [batches[0].name]
        fates.pop(1 + (1 << 32), None)
        fates = {1: PARTIAL}
        assert target.send(batches) == Receipt(1, "no")
        assert not target._rests
        assert target.forget(batches[0].name) == Receipt()


def test_the_spans_of_a_report_add_up_although_a_batch_is_refused() -> None:
    stats = ExportStats("x")
    stats.sent([sealed(1, spans=3)], Receipt(1, "quota"))
    stats.accepted_spans = 3  # of which one is synthetic
    stats.reject(Receipt(5, "full"))
    report = ExportReport()
    report.add(stats)
    assert (report.accepted, report.rejected, report.synthetic) == (3, 6, 1)
    assert report.message == "full"


def test_rejections_are_logged_once_per_cause(caplog: pytest.LogCaptureFixture) -> None:
    counted: list[int] = []
    stats = DeliveryStats("x", on_rejected=counted.append)
    with caplog.at_level(logging.WARNING):
        stats.sent([sealed(1)], Receipt(3, ""))
        stats.reject(Receipt(4, ""))
        stats.reject(Receipt(0, "deprecated"))
        stats.reject(Receipt())
    assert [record.getMessage() for record in caplog.records] == [
        "cirron-otel: export to x: 3 spans were rejected, and are not sent again: no reason given",
        "cirron-otel: export to x: deprecated",
    ]
    assert stats.rejected_spans == sum(counted) == 7
