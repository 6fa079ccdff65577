"""The short, deterministic part of fuzzing: both decoders, the batch check and the codings.

`make fuzz SECONDS=60` is the long one.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel.core.otlp.json_codec import traces_to_json
from tests.kit.examples import examples
from tests.kit.generators import otlp_messages as generated

from . import corpus, targets

ROOT = Path(__file__).parents[3]
INPUTS = 5000
FEW_INPUTS = 1500
"""For the targets whose inputs take milliseconds."""
LONG = ("traceml", "dgrr", "dgrr-batch", "wire")
MOST_MIB = 256
"""Over what the process takes before: an input has some KiB."""


@pytest.mark.parametrize("target", targets.TARGETS)
def test_nothing_but_clear_errors_and_little_memory(target: str) -> None:
    inputs = FEW_INPUTS if target in LONG else INPUTS
    done = subprocess.run(
        [sys.executable, "-m", "tests.system.fuzz.run", target, "--inputs", str(inputs),
         "--seed", "7"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["inputs"] == inputs
    assert found["over_mib"] < MOST_MIB


def test_fuzz_finding_fails_and_is_saved(tmp_path: Path) -> None:
    """What would be found if a decoder failed: the same program with a target that does."""
    program = (
        "import sys; from tests.system.fuzz import run, targets\n"
        "def broken(data):\n    if len(data) > 5: raise ValueError('a\\nb')\n"
        "targets.TARGETS['text'] = broken\n"
        "sys.exit(run.main(['text', '--inputs', '50']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False,
        env={"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 1
    (kept,) = tmp_path.iterdir()
    assert len(kept.read_bytes()) > 5
    assert str(kept) in done.stderr


@pytest.mark.parametrize("target", targets.TARGETS)
def test_the_inputs_are_the_same_each_time_and_reach_beyond_the_first_check(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, again = (
        [data for data, _ in zip(corpus.inputs(target, 3), range(300), strict=False)]
        for _ in range(2)
    )
    assert first == again
    refusals: list[Exception] = []
    monkeypatch.setattr(targets, "told", refusals.append)
    taken = 0
    for data in first:
        before = len(refusals)
        targets.TARGETS[target](data)
        taken += len(refusals) == before
    assert 10 < taken < 290 or target == "coded"  # each input is that of one coding at most
    assert refusals


@settings(max_examples=examples(150), deadline=None)
@given(generated.traces())
def test_any_message_goes_through_both_decoders(message: TracesData) -> None:
    targets.binary(message.SerializeToString())
    targets.born_in_cirron(message.SerializeToString())
    targets.text(traces_to_json(message))


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for target in targets.TARGETS.values():
        target(data)
    for packed in (gzip.compress(data), zlib.compress(data), zstandard.compress(data)):
        targets.coded(packed[: len(packed) - len(data) % 3])


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["spans", "marks", "snapshots", "schema_version", "batch_id", "x"]),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=examples(300), deadline=None)
@given(st.dictionaries(st.sampled_from(["spans", "marks", "snapshots", "otel", "x"]), _json))
def test_both_batch_checks_agree_on_any_batch(value: dict[str, object]) -> None:
    for version in (1, 2, 1.0, "1"):
        targets.batch(json.dumps({"schema_version": version, **value}).encode())
