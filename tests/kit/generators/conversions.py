"""Generated batches and messages through the converter and back, in every way at once.

    python -m tests.kit.generators.conversions --count 20000 --seed 1
    python -m tests.kit.generators.conversions FILE

A case is drawn by hypothesis: batches (spool -> OTLP -> spool) or messages (OTLP -> spool ->
OTLP), a layout, binary protobuf or JSON, the limits of the mapping (small in two thirds of the
cases), and what a collector makes of the messages: split, merged, reordered, doubled. The first
case that fails is made smaller and written to a file, which the second form runs again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pickle
import random
import sys
import tempfile
import traceback
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, TracesData

from cirron_otel import exactjson
from cirron_otel.core.otlp.json_codec import json_losses, traces_from_json, traces_to_json
from cirron_otel.core.placement.batch_placement import Plan
from cirron_otel.core.translator.foreign.batch_header import drop_headers
from cirron_otel.core.translator.foreign.messages import decode_foreign
from cirron_otel.core.translator.own.decode import Decoded
from cirron_otel.core.translator.own.encode import Options, file_name
from cirron_otel.core.translator.own.own import plan_of
from cirron_otel.core.translator.translate import FromOtlp, encode_foreign, to_otlp
from tests.core.translator.test_lossless import split, tampered
from tests.system.fuzz import corpus

from . import strategies as gen

COUNT = 20_000
"""Batches and messages of `make fuzz`."""
_CASES_AT_ONCE = 100
"""Of one kind: two turns of three have small limits."""
_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


@dataclass
class Case:
    """What is converted, and how."""

    batches: list[Any] = field(default_factory=list)
    messages: list[bytes] = field(default_factory=list)
    """Serialised TracesData, where there are no batches."""
    plan: Plan | None = None
    name: str | None = None
    layout: str = "segmented"
    as_json: bool = False
    limits: dict[str, int] = field(default_factory=dict)
    pieces: int = 0
    """Spans in a piece of a message; 0 leaves it whole."""
    merged: int = 1
    """ResourceSpans in a message that arrives."""
    twice: bool = False
    order: int | None = None
    """The seed of the order in which the pieces arrive; None leaves it."""

    @property
    def size(self) -> int:
        return len(self.batches) + len(self.messages)


# --- drawing ------------------------------------------------------------------------------------


@st.composite
def _batches(draw: st.DrawFn) -> list[Any]:
    """Several batches have different ids; one alone may have any."""
    any_batch = gen.batches | gen.crowded_batches() | _born_in_otlp() | _changed_recordings()
    found = draw(st.lists(any_batch, min_size=1, max_size=3))
    if len(found) > 1:
        for number, batch in enumerate(found):
            batch["batch_id"], batch["created_ns"] = f"{number:032x}", number
    return found


_recordings = cache(corpus.batches)


@st.composite
def _changed_recordings(draw: st.DrawFn) -> Any:
    """A recorded batch in which some values are others."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    value = json.loads(chance.choice(_recordings()))
    for _ in range(chance.choice((0, 1, 2, 3))):
        value = corpus.replaced(value, chance)
    batch = exactjson.loads(exactjson.dumps(value))
    return batch if isinstance(batch, dict) else json.loads(_recordings()[0])


@st.composite
def _born_in_otlp(draw: st.DrawFn) -> Any:
    batch = decode_foreign(list(draw(gen.traces).resource_spans))
    if draw(st.booleans()):
        batch["otel"]["received_ns"] = batch["created_ns"] = draw(st.integers(0, 2**63 - 1))
        batch["batch_id"] = "d0" * 16
    return batch


_messages = st.lists(
    gen.traces | tampered().map(lambda found: TracesData(resource_spans=found)),
    min_size=1,
    max_size=2,
).map(lambda found: [message.SerializeToString() for message in found])


@st.composite
def cases(draw: st.DrawFn, *, small: bool) -> Case:
    """With small limits or with the usual ones; half as JSON, half as a collector hands it on."""
    case = Case(
        layout=draw(st.sampled_from(["segmented", "session"])),
        as_json=draw(st.booleans()),
        limits=draw(gen.limits.filter(bool)) if small else {},
        twice=not draw(st.integers(0, 3)),
    )
    if draw(st.booleans()):
        case.pieces = draw(st.integers(1, 3))
        case.merged = draw(st.integers(1, 4))
        case.order = draw(st.integers(0, 99))
    if draw(st.integers(0, 3)):
        case.batches = draw(_batches())
        case.plan = draw(gen.plans())
        if len(case.batches) == 1 and not draw(st.integers(0, 4)):
            case.name = "odd name.json"
    else:
        case.messages = draw(_messages)
    return case


# --- converting ---------------------------------------------------------------------------------


def check(case: Case) -> None:
    """Raise AssertionError, or whatever else is wrong, if a case does not come back."""
    with gen.cut(case.limits):
        if case.batches:
            _check_batches(case)
        else:
            _check_messages(case)


def _check_batches(case: Case) -> None:
    before = gen.copy_of(case.batches)
    made = [
        to_otlp(
            batch, plan_of(batch) or case.plan or Plan(gen.SESSION_ID), case.name, _options(case)
        )
        for batch in case.batches
    ]
    assert exactjson.equal(case.batches, before), "the input was changed"
    foreign = [case.name is None and encode_foreign(batch) is not None for batch in case.batches]
    passed = case.as_json and any(map(_json_loses, made))
    found = _read(_arrived(case, made, as_json=case.as_json and not passed))
    is_whole = not (case.pieces or case.twice)
    for batch, is_foreign in zip(case.batches, foreign, strict=True):
        if is_foreign and not is_whole:
            continue  # all that is foreign in one message is one batch
        same = [d for d in found if exactjson.equal(d.batch, batch)]
        assert len(same) == 1, "a batch did not come back"
        assert same[0].complete
        assert same[0].name == (case.name or file_name(batch) or same[0].name)
    if is_whole or not any(foreign):
        assert len(found) == len(case.batches), "a batch came back that was not there"


def _check_messages(case: Case) -> None:
    came = [list(TracesData.FromString(data).resource_spans) for data in case.messages]
    found = _read(_serialised(came, as_json=case.as_json and not any(map(_json_loses, came))))
    kept = [exactjson.loads(exactjson.dumps(decoded.batch)) for decoded in found]
    again = [
        to_otlp(batch, plan_of(batch) or Plan(gen.SESSION_ID), decoded.name, _options(case))
        for batch, decoded in zip(kept, found, strict=True)
    ]
    if all(encode_foreign(batch) is not None for batch in kept):
        data = TracesData(resource_spans=itertools.chain(*again))
        drop_headers(data.resource_spans)
        truth = TracesData(resource_spans=itertools.chain(*came))
        assert sorted(map(_bytes, data.resource_spans)) == sorted(map(_bytes, truth.resource_spans))
    twice = _read(_serialised(again))
    assert len(twice) == len(found), "another number of batches the second time"
    for batch in kept:
        assert any(exactjson.equal(batch, decoded.batch) for decoded in twice)


def _bytes(message: ResourceSpans) -> bytes:
    return bytes(message.SerializeToString())


def _options(case: Case) -> Options:
    return Options(layout=case.layout)


def _json_loses(messages: list[ResourceSpans]) -> bool:
    return bool(json_losses(TracesData(resource_spans=messages)))


def _arrived(case: Case, made: list[list[ResourceSpans]], *, as_json: bool) -> list[bytes]:
    """The messages of all batches as a collector hands them on."""
    chance = random.Random(case.order)
    if case.pieces:
        pieces = [p for each in made for p in split(each, case.pieces, chance)]
        made = [[p] for p in pieces]
    if case.twice:
        made = made * 2
    if case.order is not None:
        chance.shuffle(made)
    whole = [made[at : at + case.merged] for at in range(0, len(made), case.merged)]
    return _serialised([[m for each in group for m in each] for group in whole], as_json=as_json)


def _serialised(groups: list[list[ResourceSpans]], *, as_json: bool = False) -> list[bytes]:
    found = [TracesData(resource_spans=group) for group in groups]
    if as_json:
        found = [traces_from_json(traces_to_json(message))[0] for message in found]
    return [message.SerializeToString() for message in found]


def _read(messages: list[bytes]) -> list[Decoded]:
    """What a conversion makes of a file of messages, by the fast path where there is one."""
    reader, found = FromOtlp(), []
    for data in messages:
        whole = reader.feed_whole(data)
        if whole is None:
            found += reader.feed(TracesData.FromString(data).resource_spans)
        elif whole.data:
            batch = exactjson.loads(whole.data)
            found.append(Decoded(batch, whole.name, None, None))  # type: ignore[arg-type]
    return found + reader.finish()


# --- running ------------------------------------------------------------------------------------


class _FailedError(Exception):
    """A case that fails, as small as it got."""


def run(count: int, number: int) -> Counter[str]:
    """Check cases until they held `count` batches and messages; the counts of what they were.

    The same `number` gives the same cases. Raises _FailedError, which names a file with the case.
    """
    counts: Counter[str] = Counter()
    for turn in itertools.count():
        _turn(number * 100_000 + turn, counts, small=turn % 3 < 2)
        if counts["batches"] + counts["messages"] >= count:
            break
    return counts


def _turn(number: int, counts: Counter[str], *, small: bool) -> None:
    last = Case()

    @seed(number)
    @settings(
        max_examples=_CASES_AT_ONCE, deadline=None, database=None, derandomize=False,
        phases=(Phase.generate, Phase.shrink), suppress_health_check=_SLOW, print_blob=False,
    )  # fmt: skip
    @given(case=cases(small=small))
    def some(case: Case) -> None:
        nonlocal last
        last = case
        _count(case, counts)
        check(case)

    try:
        some()
    except Exception as error:
        raise _FailedError(_kept(last, number)) from error


def _count(case: Case, counts: Counter[str]) -> None:
    counts["cases"] += 1
    counts["small"] += bool(case.limits)
    counts["json"] += case.as_json
    counts["split"] += bool(case.pieces)
    counts["twice"] += case.twice
    counts["batches"] += len(case.batches)
    counts["messages"] += len(case.messages)


def _kept(case: Case, number: int) -> str:
    path = Path(tempfile.gettempdir()) / f"cirron-otel-generated-{number}.case"
    path.write_bytes(pickle.dumps(case))
    print(json.dumps(asdict(case), default=repr, indent=1), file=sys.stderr)
    return str(path)


def main(argv: list[str]) -> int:
    """Run the command; its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.kit.generators.conversions")
    parser.add_argument("file", nargs="?", type=Path, help="a case to run again")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    if options.file is not None:
        check(pickle.loads(options.file.read_bytes()))
        return 0
    try:
        counts = run(options.count, options.seed)
    except _FailedError as error:
        traceback.print_exception(error.__cause__)
        print(f"fuzz: a generated case failed, kept as {error}: run"
              f" `python -m tests.kit.generators.conversions {error}`",
              file=sys.stderr)  # fmt: skip
        return 1
    print(json.dumps(counts), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
