"""The types of the public interface, as a user's own mypy sees them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.sessions.opened import opened

ROOT = Path(__file__).parents[2]

GOOD = """
from typing import assert_type

import polars as pl
from opentelemetry.trace import Span

import cirron_otel as ci


def show(span: Span) -> None:
    span.set_attribute("a", 1)


profiler = ci.profile(output_dir="run", snapshots=None, exporters=["otlp"], join="link", name="a")
assert_type(profiler, ci.Profiler)
with ci.scope("validate", index=1, dataset="imagenet") as scope:
    assert_type(scope, ci.scope)
    show(scope)
    scope.suspend()
with ci.inference() as request:
    show(request)


@ci.scope("load")
def load(path: str) -> list[int]:
    return [len(path)]


@ci.inference
def serve(prompt: str) -> str:
    return prompt


@ci.inference(config={"stream_chunk_timing": True})
def stream(prompt: str) -> str:
    return prompt


assert_type(load("x"), list[int])
assert_type(serve("x"), str)
assert_type(stream("x"), str)
for epoch in ci.epochs(range(3)):
    assert_type(epoch, int)
    for batch in ci.batches(["a"]):
        assert_type(batch, str)
assert_type(ci.watch("model"), str)
recording = ci.read(".cirron", run="last")
assert_type(recording, ci.Recording)
assert_type(recording.steps().to_polars(), pl.DataFrame)
assert_type(len(recording.marks()), int)
ci.mark("loss", 0.5, kind="summary", split="test")
assert_type(ci.Cirron(api_key="k", output_dir="run", workers=True).profile(), ci.Profiler)
assert_type(ci.shutdown(timeout=1.0), bool)


async def main() -> None:
    async with ci.scope("fetch") as fetched:
        assert_type(fetched, ci.scope)
"""

BAD = {
    'ci.profile(output_directory="run")': "Unexpected keyword argument",
    "ci.profile(detail_evry=10)": "Unexpected keyword argument",
    'ci.profile(join="child")': "incompatible type",
    'ci.profile(snapshots="all")': "incompatible type",
    'ci.profile(flush_interval="1 s")': "incompatible type",
    'ci.Cirron(outputdir="run")': "Unexpected keyword argument",
    'ci.Cirron(exporters="oltp")': "incompatible type",
    'ci.Cirron().profile(framework="torch")': "Unexpected keyword argument",
    "ci.scope()": "Missing positional argument",
    'with ci.scope("a") as scope: scope.set_atribute("b", 1)': "has no attribute",
    "ci.inference(config=3)": "No overload variant",
    "ci.epochs(3)": "incompatible type",
    'ci.load("data")': 'has no attribute "load"',
}
"""Each line, with a part of the error that mypy must report for it."""


def test_mypy_accepts_right_programs_and_refuses_wrong_ones(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(GOOD)
    bad.write_text("\n".join(["import cirron_otel as ci", *BAD, ""]))
    # The project's own settings and cache: the package was checked just before the tests.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", str(good), str(bad)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    errors: dict[int, str] = {}
    for line in done.stdout.splitlines():
        match = re.search(r"(\w+)\.py:(\d+): error: (.*)", line)
        if match:
            assert match[1] == "bad", line
            errors.setdefault(int(match[2]), match[3])
    assert errors.keys() == set(range(2, 2 + len(BAD))), done.stdout + done.stderr
    for number, (code, expected) in enumerate(BAD.items(), start=2):
        assert expected in errors[number], code


@pytest.mark.parametrize("name", ["scope", "inference"])
def test_scope_and_inference_yield_the_declared_span_type(name: str, tmp_path: Path) -> None:
    from opentelemetry.trace import Span

    import cirron_otel as ci

    with opened(tmp_path):  # without a session, the next one in this process would get the scope
        scope = ci.scope("a") if name == "scope" else ci.inference()
        with scope as span:
            assert isinstance(span, Span)
