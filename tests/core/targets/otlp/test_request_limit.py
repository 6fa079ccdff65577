"""The size of requests follows what the endpoint accepts, and is not reduced by a single span."""

from __future__ import annotations

from cirron_otel.core.targets.otlp.config import OtlpConfig, OtlpProtocol
from cirron_otel.core.targets.otlp.pusher import Pusher
from cirron_otel.core.targets.otlp.request_limit import MIN_REQUEST_BYTES, RequestLimit
from tests.kit.servers.servers import (
    Answer,
    Post,
    http_receiver,
    span_ids,
    traces,
)

MOST = 4_000_000


def test_the_limit_is_never_reduced_below_its_minimum() -> None:
    limit = RequestLimit(MOST)
    limit.reduce(100)
    assert limit.bytes == MIN_REQUEST_BYTES
    small = RequestLimit(500)
    small.reduce(100)
    assert small.bytes == 500


def test_accepted_requests_double_the_limit_up_to_its_maximum() -> None:
    limit = RequestLimit(MOST)
    limit.reduce(1_000_000)
    limits = []
    for _ in range(64):
        limit.accepted()
        limits.append(limit.bytes)
    assert limits == [1_000_000] * 15 + [2_000_000] * 16 + [MOST] * 33


def test_trials_of_a_size_that_is_refused_become_rare() -> None:
    limit = RequestLimit(MOST)
    limit.reduce(1_000_000)
    trials = []
    for _ in range(7):
        count = 0
        while limit.bytes == 1_000_000:
            limit.accepted()
            count += 1
        trials.append(count)
        limit.reduce(1_000_000)
    assert trials == [16, 32, 64, 128, 256, 256, 256]


def test_a_span_that_is_always_too_large_does_not_make_requests_small() -> None:
    def refuse_span_7(post: Post) -> Answer:
        return Answer(413 if 7 in span_ids([post.body]) else 200)

    with http_receiver(*[refuse_span_7] * 100) as server:
        with Pusher(OtlpConfig(OtlpProtocol.HTTP_PROTOBUF, server.url)) as pusher:
            result = pusher.push(traces(1000))
            assert (result.accepted_spans, result.refused_spans) == (999, 1)
            before = len(server.posts)
            assert pusher.push(traces(1000).replace(b"step", b"next")).refused_spans == 1
        assert len(server.posts[before].body) == len(traces(1000))


def test_requests_grow_again_after_the_endpoint_accepts_larger_ones() -> None:
    most = 9_000

    def answer(post: Post) -> Answer:
        return Answer(413 if len(post.body) > most else 200)

    request = traces(1000)
    with (
        http_receiver(*[answer] * 1000) as server,
        Pusher(OtlpConfig(OtlpProtocol.HTTP_PROTOBUF, server.url)) as pusher,
    ):
        pusher.push(request)
        assert pusher.max_request_bytes <= most
        most = 10**9
        while pusher.max_request_bytes < len(request):
            assert pusher.push(request).accepted_spans == 1000
        before = len(server.posts)
        pusher.push(request)
    assert len(server.posts) == before + 1
    assert before < 100
