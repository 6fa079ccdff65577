"""Sealed batches as OTLP, over real receivers of both protocols."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import pytest

from cirron_otel.core.delivery.batch_target import SealedBatch
from cirron_otel.core.delivery.errors import (
    MisconfiguredError,
    RefusedError,
    StoppedError,
    UnreachableError,
)
from cirron_otel.core.delivery.errors import RefusedError as PushRefusedError
from cirron_otel.core.spool.paths import file_name
from cirron_otel.core.targets.otlp.config import OtlpConfig, OtlpProtocol
from cirron_otel.core.targets.otlp.request_limit import RequestLimit
from cirron_otel.core.targets.otlp.target import OtlpTarget
from cirron_otel.core.translator.own.encode import Options
from cirron_otel.core.translator.translate import encode_own
from tests.kit.servers.servers import (
    Answer,
    Post,
    fails,
    grpc_receiver,
    http_receiver,
    span_ids,
)
from tests.kit.spools.deliveries import Process, batch_of, until


def sealed(number: int, spans: int = 1) -> SealedBatch:
    batch = batch_of(f"{number:032x}", 10**18 + number, number)
    more = [
        span | {"id": f"{number:08x}{extra:08x}" + span["id"][16:]}
        for span in batch["spans"]
        for extra in range(1, spans)
    ]
    batch["spans"] += more
    return SealedBatch(file_name(10**18 + number, f"{number:032x}"), json.dumps(batch).encode())


def target_for(url: str, **changes: Any) -> OtlpTarget:
    return OtlpTarget(OtlpConfig(OtlpProtocol.HTTP_PROTOBUF, url, timeout=20, **changes), Options())


def test_batches_go_together_as_their_conversion_gives_them() -> None:
    batches = [sealed(number) for number in (1, 2, 3)]
    with http_receiver() as server:
        target = target_for(server.url)
        target.send(batches)
        target.close()
    (post,) = server.posts
    assert post.body == b"".join(encode_own(data, name, Options()) for name, data in batches)
    assert set(span_ids([post.body])) == {1, 2, 3}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, RefusedError),
        (422, RefusedError),
        (413, RefusedError),  # of a batch that is a single span
        (401, MisconfiguredError),
        (403, MisconfiguredError),
        (404, MisconfiguredError),
        (415, MisconfiguredError),
        (307, MisconfiguredError),
        (429, UnreachableError),
        (500, UnreachableError),
        (502, UnreachableError),
        (503, UnreachableError),
        (504, UnreachableError),
    ],
)
def test_http_status_maps_to_its_error(status: int, kind: type[Exception]) -> None:
    with http_receiver(Answer(status, headers={"Retry-After": "5"})) as server:
        with pytest.raises(kind) as caught:
            target_for(server.url).send([sealed(1)])
        assert type(caught.value) is kind
        assert len(server.posts) == 1  # the delivery decides when to try again
        if status in (429, 503):
            assert caught.value.retry_after == 5  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, RefusedError),
        (grpc.StatusCode.UNAUTHENTICATED, MisconfiguredError),
        (grpc.StatusCode.PERMISSION_DENIED, MisconfiguredError),
        (grpc.StatusCode.UNIMPLEMENTED, MisconfiguredError),
        (grpc.StatusCode.UNAVAILABLE, UnreachableError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, UnreachableError),
        (grpc.StatusCode.INTERNAL, UnreachableError),
    ],
)
def test_grpc_status_maps_to_its_error(code: grpc.StatusCode, kind: type[Exception]) -> None:
    with grpc_receiver(fails(code, "no")) as server:
        config = OtlpConfig(OtlpProtocol.GRPC, f"127.0.0.1:{server.port}", timeout=20)
        target = OtlpTarget(config, Options())
        with pytest.raises(kind) as caught:
            target.send([sealed(1)])
        assert type(caught.value) is kind
        assert len(server.calls) == 1
        target.send([sealed(1)])
        target.close()
    assert span_ids([server.calls[-1].body]) == [1]


def test_refused_connection_is_unreachable() -> None:
    with pytest.raises(UnreachableError, match="no answer"):
        target_for("http://127.0.0.1:1/v1/traces").send([sealed(1)])


def test_invalid_certificate_is_a_misconfiguration(tmp_path: Path) -> None:
    garbage = tmp_path / "ca.pem"
    garbage.write_text("none")
    with http_receiver() as server:
        url = server.url.replace("http:", "https:")
        with pytest.raises(MisconfiguredError):
            target_for(url, certificate=str(garbage)).send([sealed(1)])


def test_batch_that_otlp_cannot_express_is_refused() -> None:
    with http_receiver() as server:
        target = target_for(server.url)
        anonymous = json.loads(sealed(1).data)
        del anonymous["otel"]
        for data in (b"[]", b"{broken", json.dumps(anonymous).encode()):
            with pytest.raises(RefusedError):
                target.send([SealedBatch("x.json", data)])
    assert server.posts == []


def test_large_batch_resumes_at_the_part_that_failed() -> None:
    """What was accepted of it is not sent again."""
    answers = [Answer(), Answer(413), Answer(), Answer(503), Answer(400)]
    with http_receiver(*answers) as server:
        target = target_for(server.url)
        target._pusher._limit = RequestLimit(3000)
        batch = sealed(1, spans=100)
        with pytest.raises(UnreachableError):
            target.send([batch])
        seen = len(server.posts)
        assert seen == 4
        with pytest.raises(PushRefusedError):
            target.send([batch])  # one part is refused, the others are taken
    taken = [server.posts[number].body for number in (0, 2, *range(5, len(server.posts)))]
    refused = server.posts[4].body
    assert server.posts[3].body == refused
    assert len(span_ids(taken)) == len(set(span_ids(taken)))
    assert len(span_ids([*taken, refused])) == 100


def test_a_group_with_a_refused_batch_is_sent_one_by_one(tmp_path: Path) -> None:
    process = Process(tmp_path)
    with http_receiver(Answer(503), Answer(400), Answer(), Answer(400)) as server:
        delivery = process.delivery(target_for(server.url))
        names = [process.seal() for _ in range(4)]
        with delivery._changed:
            delivery.start()
            for name in names:
                delivery.notify(name)
        assert delivery.finish(120)
    assert [len(set(span_ids([post.body]))) for post in server.posts] == [4, 4, 1, 1, 1, 1]
    stats = delivery.stats()
    assert (stats["sent_batches"], stats["refused"]) == (3, 1)


def test_only_the_failing_batch_of_a_group_is_left_waiting(tmp_path: Path) -> None:
    process = Process(tmp_path)

    def choke(post: Post) -> Answer:
        return Answer(500) if 2 in span_ids([post.body]) else Answer()

    with http_receiver(*[choke] * 1000) as server:
        delivery = process.delivery(target_for(server.url))
        names = [process.seal() for _ in range(5)]
        with delivery._changed:
            delivery.start()
            for name in names:
                delivery.notify(name)
        until(lambda: delivery.stats()["sent_batches"] == 4)
        assert delivery.stats()["waiting"] == 1
        server.answers.clear()
        assert delivery.finish(120)
    assert delivery.stats()["sent_batches"] == 5
    assert span_ids([server.posts[-1].body]) == [2]


def test_a_partial_success_is_counted(tmp_path: Path) -> None:
    body = b'{"partialSuccess":{"rejectedSpans":"1","errorMessage":"too old"}}'
    process = Process(tmp_path)
    answer = Answer(body=body, headers={"Content-Type": "application/json"})
    with http_receiver(Answer(503), answer) as server:
        delivery = process.delivery(target_for(server.url))
        delivery.start()
        for _ in range(2):
            delivery.notify(process.seal())
        until(lambda: delivery.stats()["sent_batches"])
        assert delivery.finish(120)
    assert delivery.stats()["sent_batches"] == 2
    assert delivery.stats()["rejected_spans"] == 1


def test_stopped(tmp_path: Path) -> None:
    with http_receiver() as server:
        target = target_for(server.url)
        target.interrupt()
        with pytest.raises(StoppedError):
            target.send([sealed(1)])
    assert server.posts == []


def test_both_protocols_in_a_delivery(tmp_path: Path) -> None:
    process = Process(tmp_path)
    with grpc_receiver() as calls, http_receiver() as posts:
        config = OtlpConfig(OtlpProtocol.GRPC, f"127.0.0.1:{calls.port}", timeout=20)
        both = [
            process.delivery(OtlpTarget(config, Options())),
            process.delivery(target_for(posts.url)),
        ]
        for delivery in both:
            delivery.start()
        for _ in range(10):
            name = process.seal()
            for delivery in both:
                delivery.notify(name)
        assert [delivery.finish(120) for delivery in both] == [True, True]
    for bodies in ([call.body for call in calls.calls], [post.body for post in posts.posts]):
        assert sorted(span_ids(bodies)) == list(range(1, 11))
