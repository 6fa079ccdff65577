"""Following a spool: the spans that arrive at a real receiver, despite any kind of failure."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, TracesData

from cirron_otel import exactjson
from cirron_otel.core.delivery.errors import MisconfiguredError, UnreachableError
from cirron_otel.core.placement import segments
from cirron_otel.core.spool.cursor import cursor_path
from cirron_otel.core.spool.delivered import Delivered
from cirron_otel.core.spool.owner import NONE
from cirron_otel.core.spool.paths import SpoolPaths
from cirron_otel.core.spool.writer import SpoolWriter
from cirron_otel.core.targets.otlp import target
from cirron_otel.core.targets.otlp.config import OtlpConfig, OtlpProtocol, target_key
from cirron_otel.core.translator.foreign.messages import decode_foreign
from cirron_otel.errors import EndpointError
from tests.kit.servers.servers import Answer, Post, http_receiver
from tests.kit.spools.following import (
    OK,
    Clock,
    Following,
    arrived,
    config_of,
    put,
    until,
)
from tests.kit.spools.made import (
    encoded,
    made,
    mark,
    span,
    span_id,
)


def test_batches_are_sent_once_and_late_batches_are_sent(tmp_path: Path) -> None:
    put(tmp_path, 1, 2, 5)
    with http_receiver() as server:
        config = config_of(server)
        for sent in (3, 0):
            assert Following(tmp_path, config).once().batches == sent
        late = put(tmp_path, 3)
        assert Following(tmp_path, config).once().batches == 1
        ids = arrived(server)
        assert [each for each, _ in ids] == [
            bytes.fromhex(span_id(number))[:8] for number in (1, 2, 5, 3)
        ]
    cursor = Delivered(SpoolPaths.under(tmp_path), target_key(config))
    assert late[0] in cursor
    assert cursor.acknowledged_count == 4


def test_another_target_or_tenant_gets_all_of_it(tmp_path: Path) -> None:
    put(tmp_path, 1)
    with http_receiver() as server:
        config = config_of(server)
        keyed = replace(config, headers={"authorization": "Bearer other"})
        tenant = replace(config, headers={"x-scope-orgid": "them"})
        for each, sent in ((config, 1), (keyed, 0), (tenant, 1), (tenant, 0)):
            assert Following(tmp_path, each).once().batches == sent


def refusing(*names: str) -> Callable[[Post], Answer]:
    """Return an answer that refuses requests in which a span has one of the names."""

    def answer(post: Post) -> Answer:
        spans = [
            each.name
            for resource in TracesData.FromString(post.body).resource_spans
            for scope in resource.scope_spans
            for each in scope.spans
        ]
        return Answer(400, b"bad span") if set(names) & set(spans) else OK

    return answer


def test_a_refused_batch_is_noted_and_the_others_go(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path)
    for number in range(5):
        name = "bad" if number == 2 else "good"
        writer.write(encoded(made(number, spans=[span(number, name=name)])))
    with http_receiver(*[refusing("bad")] * 9) as server:
        report = Following(tmp_path, config_of(server)).once()
        assert (report.batches, report.skipped_count, report.exit_code) == (4, 1, 1)
        [finding] = report.skipped
        assert finding.code == "refused"
        assert "400" in finding.message
        again = Following(tmp_path, config_of(server)).once()
        assert (again.batches, again.skipped_count) == (0, 0)
        cursor = Delivered(SpoolPaths.under(tmp_path), target_key(config_of(server)))
        assert list(cursor.refused) == [finding.name]
        # First all batches together, and then each alone.
        assert len(server.posts) == 6


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_wrong_key_or_url_loses_nothing(tmp_path: Path, status: int) -> None:
    put(tmp_path, 1, 2)
    with http_receiver(*[Answer(status)] * 3) as server:  # first both together, and then each alone
        with pytest.raises(MisconfiguredError, match=str(status)):
            Following(tmp_path, config_of(server), patience=None).once()
        assert Following(tmp_path, config_of(server)).once().batches == 2


def test_an_endpoint_that_is_away_loses_nothing(tmp_path: Path) -> None:
    put(tmp_path, 1, 2)
    with http_receiver(*[Answer(503)] * 3) as server:
        with pytest.raises(UnreachableError, match="503"):
            Following(tmp_path, config_of(server)).once()
        report = Following(tmp_path, config_of(server), patience=None).once()
        assert (report.batches, report.skipped_count) == (2, 0)
        # The batches are also sent separately, because one of them might make the endpoint fail.
        sizes = [len(TracesData.FromString(p.body).resource_spans) for p in server.posts]
        assert sizes in ([2, 2, 2, 1, 1], [2, 2, 1, 1, 1])


def test_following_continues_as_the_spool_grows_and_stops_on_request(tmp_path: Path) -> None:
    put(tmp_path, 1)
    with http_receiver() as server:
        following = Following(tmp_path, config_of(server), patience=None)
        with following.running():
            until(lambda: len(arrived(server)) == 1)
            put(tmp_path, 2)
            until(lambda: len(arrived(server)) == 2)
        assert following.report.batches == 2


def test_it_stops_while_the_endpoint_is_away(tmp_path: Path) -> None:
    put(tmp_path, 1)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1/traces"
        config = OtlpConfig(OtlpProtocol.HTTP_PROTOBUF, url, timeout=1)
        following = Following(tmp_path, config, patience=None)
        with following.running():
            until((tmp_path / "state").is_dir)
    assert following.report.batches == 0


def undecided(root: Path) -> None:
    """Write a step of an epoch that is not recorded yet."""
    SpoolWriter(root).write(encoded(made(1, spans=[span(7, 5)], marks=[mark(1, 7)])))


def test_an_undecided_batch_waits_for_its_parents(tmp_path: Path) -> None:
    undecided(tmp_path)
    with http_receiver() as server:
        following = Following(tmp_path, config_of(server), clock=Clock(), patience=None)
        with following.running():
            put(tmp_path, 3)
            until(lambda: len(arrived(server)) == 1)
            session = span(4, name="cirron.session")
            epoch = span(5, 4, name="epoch")
            SpoolWriter(tmp_path).write(encoded(made(2, spans=[epoch, session])))
            until(lambda: len(arrived(server)) == 4)
        traces = dict(arrived(server))
    of = {number: traces[bytes.fromhex(span_id(number))[:8]] for number in (3, 4, 5, 7)}
    assert of[7] == of[5] == of[4] == bytes.fromhex(span_id(4))
    assert of[3] != of[4]


def test_an_undecided_batch_does_not_wait_for_ever(tmp_path: Path) -> None:
    undecided(tmp_path)
    clock = Clock()
    with http_receiver() as server:
        following = Following(tmp_path, config_of(server), clock=clock, patience=None)
        with following.running():
            put(tmp_path, 8)
            until(lambda: len(arrived(server)) == 1)
            clock.now = 59.9
            put(tmp_path, 9)
            until(lambda: len(arrived(server)) == 2)
            clock.now = 60.1
            until(lambda: len(arrived(server)) == 3)
        assert arrived(server)[-1][0] == bytes.fromhex(span_id(7))[:8]


def test_foreign_spans_are_sent_without_waiting_for_their_parents(tmp_path: Path) -> None:
    """The parent of a server's span is the caller's span, which may never arrive here."""
    trace_id, span_id, caller = b"t" * 16, b"server  ", b"caller  "
    served = Span(trace_id=trace_id, span_id=span_id, parent_span_id=caller, name="GET /item")
    came = ResourceSpans(scope_spans=[ScopeSpans(spans=[served])])
    SpoolWriter(tmp_path).write(exactjson.dumps(decode_foreign([came])))
    with http_receiver() as server:
        following = Following(tmp_path, config_of(server), clock=Clock(), patience=None)
        with following.running():
            until(lambda: len(arrived(server)) == 1)
        assert arrived(server) == [(span_id, trace_id)]


def long_session(root: Path) -> None:
    """Write 80 steps of one session, four in each batch."""
    writer = SpoolWriter(root)
    session = span(1, name="cirron.session", end_ns=2 * 10**18)
    for number in range(20):
        steps = [span(10 + 4 * number + n, 1) for n in range(4)]
        marks = [mark(10 * number + n, 10 + 4 * number + n) for n in range(4)]
        spans = [*steps, *([session] if number == 0 else [])]
        writer.write(encoded(made(number, spans=spans, marks=marks)))


def test_traces_do_not_shift_when_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that was counted and not sent is not counted again."""
    monkeypatch.setattr(segments, "SEGMENT_RECORDS", 20)
    monkeypatch.setattr(target, "_GROUP_BYTES", 1)
    for name in ("straight", "broken"):
        long_session(tmp_path / name)
    with http_receiver() as server:
        Following(tmp_path / "straight", config_of(server)).once()
        expected = arrived(server)
    assert len({trace for _, trace in expected}) > 5

    script = ([OK] * 3 + [Answer(503)]) * 8
    failures = 0
    with http_receiver(*script) as server:
        while True:
            try:
                Following(tmp_path / "broken", config_of(server)).once()
                break
            except EndpointError:
                failures += 1
        # Requests that were answered with 503 were sent again.
        accepted = [post for number, post in enumerate(server.posts) if number % 4 != 3]
        server.posts[:] = accepted
        assert arrived(server) == expected
    assert failures >= 5


def test_a_damaged_cursor_is_set_aside_and_all_is_sent_again(tmp_path: Path) -> None:
    put(tmp_path, 1)
    with http_receiver() as server:
        config = config_of(server)
        Following(tmp_path, config).once()
        path = cursor_path(tmp_path / "state", target_key(config), NONE)
        path.write_bytes(b"{" * 1000)
        following = Following(tmp_path, config)
        assert following.once().batches == 1
        assert "cannot be read" in following.said[0]
        assert path.with_name(path.name + ".bad").exists()


def test_damaged_index_is_rebuilt(tmp_path: Path) -> None:
    put(tmp_path, 1)
    with http_receiver() as server:
        config = config_of(server)
        Following(tmp_path, config).once()
        index = tmp_path / "state" / f"follow-{target_key(config)}.sqlite"
        index.write_bytes(b"no database at all" * 100)
        put(tmp_path, 2)
        assert Following(tmp_path, config).once().batches == 1


def test_invalid_batch_files_are_reported_once_without_blocking_others(tmp_path: Path) -> None:
    put(tmp_path, 1)
    for name, content in (("00.json", b"{"), ("zz.json", b"[]"), ("1.json.tmp", b"")):
        (tmp_path / "spool" / name).write_bytes(content)
    (tmp_path / "spool" / "aa.json").mkdir()
    with http_receiver() as server:
        following = Following(tmp_path, config_of(server), patience=None)
        with following.running():
            until(lambda: following.report.batches == 1)
            put(tmp_path, 2)
            until(lambda: following.report.batches == 2)
        assert sorted(each.name for each in following.report.skipped) == [
            "00.json",
            "aa.json",
            "zz.json",
        ]
