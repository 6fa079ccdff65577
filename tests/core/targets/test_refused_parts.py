"""No span is lost in silence, whatever an endpoint answers to the parts of a batch.

Each case sends a small spool to a real endpoint, in one of the ways of `drivers.py`, until nothing
is left. Then every span was accepted, is in a dead letter, or was rejected and counted.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from cirron_otel.core.spool.dead_letters import DeadLetters
from tests.kit.examples import examples
from tests.kit.servers.servers import grpc_receiver, http_receiver

from .drivers import DRIVERS, GROUPED, Run
from .parts import (
    ACCEPT,
    KINDS,
    PARTIAL,
    REFUSE,
    TOO_LARGE,
    Answers,
    BySpan,
    Endpoint,
    InOrder,
    Spool,
    drawn,
    spool_with,
)

_MANY = 10**6


@pytest.fixture(scope="module")
def endpoints() -> Iterator[dict[str, Endpoint]]:
    """A running endpoint for each protocol."""
    http, grpc = Endpoint(""), Endpoint("")
    with (
        http_receiver(*[http.http] * _MANY) as posts,
        grpc_receiver(*[grpc.grpc] * _MANY) as calls,
    ):
        http.url, grpc.url = posts.url, f"127.0.0.1:{calls.port}"
        yield {"http/protobuf": http, "cirron": http, "grpc": grpc}


class Case:
    """One spool, one endpoint, one list of answers."""

    def __init__(self, folder: Path, endpoint: Endpoint, patch: pytest.MonkeyPatch) -> None:
        self._folder, self._endpoint, self._patch = folder, endpoint, patch
        self._numbers = itertools.count()

    def check(
        self,
        driver: str,
        protocol: str,
        answers: Answers,
        *,
        batches: int = 1,
        spans: int = 6,
        most: int = 600,
        ends: tuple[int, ...] = (),
    ) -> None:
        """Deliver, ending the process when the requests with these numbers arrive, and check."""
        root = self._folder / str(next(self._numbers))
        self._endpoint.answers = answers
        answers.is_cirron = protocol == "cirron"
        is_owned = driver in ("thread", "caller")
        with spool_with(root, batches, spans, is_owned=is_owned) as spool:
            run = Run(spool, self._endpoint, protocol, most)
            answers.actions = dict.fromkeys(ends, run.end_here)
            run.deliver(DRIVERS[driver], self._patch)
            while run.cut.is_set() and run.left():
                run.deliver(DRIVERS[driver], self._patch)
            assert not run.left()
            _check(spool, run, answers)


def _check(spool: Spool, run: Run, answers: Answers) -> None:
    letters = set(DeadLetters(spool.paths, run.target_key, "").names())
    in_letters = {span for name in letters for span in spool.batches[name]}
    rejected = set(answers.rejected)
    lost = set(spool.spans) - answers.accepted - rejected - in_letters
    assert not lost, f"{sorted(lost)} of {len(spool.spans)} spans were lost in silence"
    assert letters <= spool.batches_with(answers.refused)
    only_rejected = rejected - answers.accepted - in_letters
    assert len(only_rejected) <= run.shown <= len(answers.rejected)
    if run.most < GROUPED and run.deliveries == 1 and len(spool.batches) <= 4:
        assert run.shown == len(answers.rejected)  # each answer was given once
    if isinstance(answers, BySpan):
        _check_exactly(spool, run, answers, letters)


def _check_exactly(spool: Spool, run: Run, answers: BySpan, letters: set[str]) -> None:
    refused = answers.final(REFUSE) | answers.final(TOO_LARGE)
    assert letters == spool.batches_with(refused)
    sent = {span for name, spans in spool.batches.items() if name not in letters for span in spans}
    assert sent & answers.final(ACCEPT) <= answers.accepted
    rejected = set() if answers.is_cirron else answers.final(PARTIAL)
    assert len(rejected & sent) <= run.shown <= len(rejected)


@pytest.fixture
def case(tmp_path: Path, endpoints: dict[str, Endpoint], request: pytest.FixtureRequest) -> Case:
    monkeypatch = request.getfixturevalue("monkeypatch")
    return Case(tmp_path, endpoints[request.getfixturevalue("protocol")], monkeypatch)


@pytest.mark.parametrize("protocol", ["http/protobuf"])
def test_every_order_of_three_answers(case: Case, protocol: str) -> None:
    for kinds in itertools.product(KINDS, repeat=3):
        case.check("caller", protocol, InOrder(kinds))


WAYS = [
    (driver, protocol)
    for driver in DRIVERS
    for protocol in ("http/protobuf", "grpc", "cirron")
    if (driver, protocol) not in (("once", "cirron"), ("follow", "cirron"))
]
"""Commands send to the Cirron platform as `caller` does."""


@pytest.mark.slow
@pytest.mark.hypothesis
@pytest.mark.parametrize(("driver", "protocol"), WAYS)
def test_longer_orders_of_answers(case: Case, driver: str, protocol: str) -> None:
    """With batches that are sent together, and processes that end in between."""
    draw = random.Random(f"{driver} {protocol}")
    for _ in range(examples(160, 8)):
        kinds = draw.choices(KINDS, k=draw.randint(3, 9))
        case.check(
            driver,
            protocol,
            InOrder(kinds),
            batches=draw.randint(1, 4),
            most=draw.choice((400, 600, 900, GROUPED)),
            ends=tuple(draw.sample(range(1, 9), draw.choice((0, 0, 1, 2)))),
        )


@pytest.mark.slow
@pytest.mark.hypothesis
@pytest.mark.parametrize(("driver", "protocol"), WAYS)
def test_the_answers_depend_on_the_spans(case: Case, driver: str, protocol: str) -> None:
    """So it is known exactly which batches are refused, and how many spans are rejected."""
    draw = random.Random(f"{protocol} {driver}")
    for _ in range(examples(200, 10)):
        batches, spans = draw.randint(1, 6), 6
        case.check(
            driver,
            protocol,
            drawn(draw, range(1, 1 + batches * spans)),
            batches=batches,
            spans=spans,
            most=draw.choice((400, 600, 900, GROUPED)),
            ends=tuple(draw.sample(range(1, 16), draw.choice((0, 0, 1, 3)))),
        )
