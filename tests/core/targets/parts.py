"""An endpoint that answers each part of a batch differently, and the ways to deliver a spool to it.

The endpoint is a real server on loopback. Its answers are drawn in two ways:

- in order: the n-th request gets the n-th answer of a list, and later requests are accepted;
- by span: each span has a fate, which holds whenever it is sent, alone or with others. So it is
  known in advance which spans are accepted, which are rejected, and which batches are refused.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)

from cirron_otel import exactjson
from cirron_otel.core.spool.owner import Owner
from cirron_otel.core.spool.paths import SpoolPaths
from cirron_otel.core.spool.writer import SpoolWriter
from tests.kit.servers.servers import (
    PROTOBUF,
    Answer,
    Post,
    fails,
    span_ids,
)
from tests.kit.spools.deliveries import batch_of
from tests.kit.spools.made import EPOCH_NS

ACCEPT, PARTIAL, REFUSE, TOO_LARGE, RATE, BUSY, SILENT = (
    "accept", "partial", "refuse", "too large", "429", "503", "no answer",
)  # fmt: skip
KINDS = (ACCEPT, PARTIAL, REFUSE, TOO_LARGE, RATE, BUSY, SILENT)
LATER = (RATE, BUSY, SILENT)
"""The answers after which the same request is tried again."""
_PRECEDENCE = (SILENT, BUSY, RATE, TOO_LARGE, REFUSE)
_SPANS = 1_000_000
"""Numbers of recorded spans are below this; a synthetic span has a hash as its id."""
REASON = "the quota is used up"


class Answers(ABC):
    """Decides the answers, and records what the endpoint did with each span."""

    def __init__(self) -> None:
        self.requests = 0
        self.accepted: set[int] = set()
        self.rejected: list[int] = []
        """Each span that a partial success rejected, as often as it did."""
        self.refused: set[int] = set()
        """The spans of refused requests, and single spans that were too large."""
        self.is_cirron = False
        """Whether a request is a batch of Cirron's ingestion, which is never split, and accepted or
        refused as a whole.
        """
        self.actions: dict[int, Callable[[], object]] = {}
        """Actions by the number of the request, from 1; each runs when its request arrives."""
        self._lock = threading.Lock()

    def answer(self, spans: Sequence[int]) -> tuple[str, int]:
        """Answer a request with these spans; gives the kind and the number of rejected spans."""
        with self._lock:
            self.requests += 1
            self.actions.pop(self.requests, lambda: None)()
            spans = [each for each in spans if each < _SPANS]
            kind, rejected = self._decide(spans)
            rejected = [] if self.is_cirron else rejected
            if kind in (ACCEPT, PARTIAL):
                self.accepted.update(set(spans) - set(rejected))
                self.rejected += rejected
            elif kind == REFUSE or (kind == TOO_LARGE and (self.is_cirron or len(spans) == 1)):
                self.refused.update(spans)
            return kind, len(rejected)

    @abstractmethod
    def _decide(self, spans: list[int]) -> tuple[str, list[int]]:
        """Return the kind of the answer and the rejected spans."""


class InOrder(Answers):
    """Gives the answers of a list; later requests are accepted."""

    def __init__(self, kinds: Sequence[str]) -> None:
        super().__init__()
        self._kinds = list(kinds)

    def _decide(self, spans: list[int]) -> tuple[str, list[int]]:
        kind = self._kinds.pop(0) if self._kinds else ACCEPT
        return kind, spans[: 1 + len(spans) // 2] if kind == PARTIAL else []


class BySpan(Answers):
    """Answers a request by the fates of its spans, the most severe of which decides."""

    def __init__(self, fates: dict[int, list[str]], most_spans: int = 1000) -> None:
        """A fate is any number of kinds of `LATER`, and a final one, which is repeated.

        Requests with more than `most_spans` spans are too large.
        """
        super().__init__()
        self.fates, self._most_spans = fates, most_spans

    def final(self, kind: str) -> set[int]:
        return {span for span, fate in self.fates.items() if fate[-1] == kind}

    def _decide(self, spans: list[int]) -> tuple[str, list[int]]:
        for kind in _PRECEDENCE:
            concerned = [each for each in spans if self.fates[each][0] == kind]
            if kind == TOO_LARGE and len(spans) > self._most_spans and not self.is_cirron:
                return TOO_LARGE, []
            if concerned:
                for each in concerned if kind in LATER else ():
                    self.fates[each].pop(0)
                return kind, []
        rejected = [each for each in spans if self.fates[each][0] == PARTIAL]
        return (PARTIAL, rejected) if rejected else (ACCEPT, [])


def drawn(random: random.Random, spans: Sequence[int]) -> BySpan:
    """Draw the fates of spans: most are accepted at once, in some cases nearly all."""
    trouble = random.choice((0.0, 0.05, 0.3))
    weights = random.choice(((14, 3, 1, 1), (40, 3, 1, 0), (40, 3, 0, 1)))
    fates = {}
    for span in spans:
        count = random.randint(1, 2) if random.random() < trouble else 0
        final = random.choices((ACCEPT, PARTIAL, REFUSE, TOO_LARGE), weights)
        fates[span] = random.choices(LATER, k=count) + final
    return BySpan(fates, random.choice((1, 2, 3, 1000)))


@dataclass
class Endpoint:
    """A running server."""

    url: str
    answers: Answers = field(default_factory=lambda: InOrder([]))

    def http(self, post: Post) -> Answer:
        """Answer a request of OTLP/HTTP or of Cirron's ingestion."""
        is_cirron = post.headers["content-type"] == "application/json"
        spans = _cirron_ids(post.body) if is_cirron else span_ids([post.body])
        kind, rejected = self.answers.answer(spans)
        status = {REFUSE: 400, TOO_LARGE: 413, RATE: 429, BUSY: 503, SILENT: 0}.get(kind, 200)
        body = b"" if is_cirron else _response(rejected)
        return Answer(status, body if status == 200 else b"", PROTOBUF)

    def grpc(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Answer a call of OTLP/gRPC."""
        kind, rejected = self.answers.answer(span_ids([request]))
        if kind == SILENT:
            context.cancel()
        if kind in _FAILURES:
            _FAILURES[kind](request, context)
        return _response(rejected)


def _retry_info() -> bytes:
    delay = Duration(nanos=1_000_000)
    return bytes(RetryInfo(retry_delay=delay).SerializeToString())


_FAILURES = {
    REFUSE: fails(grpc.StatusCode.INVALID_ARGUMENT, "no"),
    TOO_LARGE: fails(grpc.StatusCode.RESOURCE_EXHAUSTED, "Received message larger than max"),
    RATE: fails(
        grpc.StatusCode.RESOURCE_EXHAUSTED, "slow down", google_rpc_retryinfo_bin=_retry_info()
    ),
    BUSY: fails(grpc.StatusCode.UNAVAILABLE, "busy"),
}


def _response(rejected: int) -> bytes:
    if not rejected:
        return b""
    partial = ExportTracePartialSuccess(rejected_spans=rejected, error_message=REASON)
    return ExportTraceServiceResponse(partial_success=partial).SerializeToString()


def _cirron_ids(body: bytes) -> list[int]:
    return [int(span["id"][:16], 16) for span in json.loads(body)["spans"]]


@dataclass
class Spool:
    """A spool with sealed batches, each of several spans."""

    paths: SpoolPaths
    owner: Owner
    prefix: str
    """The start of the batches' ids."""
    batches: dict[str, list[int]] = field(default_factory=dict)
    """The numbers of the spans of each batch, by its name."""

    def seal(self, spans: Sequence[int]) -> str:
        """Seal a batch of spans with these numbers; gives its name."""
        index = len(self.batches)
        batch = batch_of(f"{self.prefix}{index:020x}", EPOCH_NS + index, 0)
        (one,) = batch["spans"]
        batch["spans"] = [_numbered(one, number) for number in spans]
        writer = SpoolWriter(self.paths.root, durable=False)
        name = writer.write(exactjson.dumps(batch)).name
        self.batches[name] = list(spans)
        return name

    @property
    def spans(self) -> list[int]:
        return [span for spans in self.batches.values() for span in spans]

    def batches_with(self, spans: set[int]) -> set[str]:
        return {name for name, numbers in self.batches.items() if spans.intersection(numbers)}


@contextlib.contextmanager
def spool_with(root: Path, batches: int, spans: int, *, is_owned: bool = True) -> Iterator[Spool]:
    """A spool with `batches` batches of `spans` spans; without `is_owned`, of no known owner."""
    paths = SpoolPaths.under(root)
    owner = Owner.acquire(paths)
    spool = Spool(paths, owner, owner.prefix if is_owned else "f" * 12)
    for index in range(batches):
        spool.seal(range(1 + index * spans, 1 + (index + 1) * spans))
    yield spool
    owner.release()


def _numbered(span: dict[str, Any], number: int) -> dict[str, Any]:
    return span | {"id": f"{number:016x}{span['id'][16:]}", "index": number}
