"""The inputs of a comparison: recordings, runs, traces, vectors, and other files.

The other files are generated, mutated or hostile.

The same seed gives the same files. Both versions read these files, so that they depend on the
generators of this tree only.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import seed as seeded
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel import exactjson
from cirron_otel.core.otlp.json_codec import traces_from_json
from tests.core.importers.dgrr.traces import FILES
from tests.core.importers.traceml.recordings import CASES, run_folder
from tests.kit.generators.conversions import Case, cases
from tests.kit.generators.run_spools import run_spool
from tests.system.fuzz import corpus as fuzz

VECTORS = Path(__file__).parents[2] / "core" / "translator" / "vectors"
RECORDINGS = fuzz.RECORDED.parent
STORMLOG = sorted(
    {path.parent for path in RECORDINGS.glob("stormlog/*/**/*.jsonl")}
    | {path.parent for path in RECORDINGS.glob("stormlog/*/**/track.json")}
)
MUTATED = ("batch", "text", "binary", "born-in-cirron", "wire", "coded")
"""The kinds of input of `tests.system.fuzz.corpus`."""
SUFFIXES = {"batch": ".json", "text": ".otlp.json", "coded": ".otlp.binpb.gz"}
"""Of those kinds; the others are binary OTLP."""
TRACES = 40
"""The number of mutated traces."""
OTLP = ".otlp."
"""In the name of each file with OTLP."""


def write(folder: Path, generated: int, mutated: int, runs: int, seed: int) -> None:
    """Write `spools/`, `runs/`, `recordings/`, `files/` and `traces/` into `folder`.

    `generated` is the number of generated batches and messages; `mutated` is the number of inputs
    of each kind, valid ones included; `runs` is the number of generated spools.
    """
    spools, files = folder / "spools", folder / "files"
    shutil.copytree(fuzz.RECORDED, spools)
    files.mkdir()
    for source in (_vectors(), _mutations(mutated, seed), _generated(generated, seed), _hostile()):
        for name, data in source:
            (files / name).write_bytes(data)
    for number in range(runs):
        spool = folder / "runs" / f"{number:03}" / "spool"
        spool.mkdir(parents=True)
        for name, data in run_spool(seed + number):
            (spool / name).write_bytes(data)
    _copy_recordings(folder / "recordings")
    (folder / "traces").mkdir()
    for name, data in _traces(seed):
        (folder / "traces" / name).write_bytes(data)


def _copy_recordings(folder: Path) -> None:
    """Copy the recordings of Stormlog and of TraceML, each into the folder of its format."""
    for place in STORMLOG:
        name = "-".join(place.relative_to(RECORDINGS).parts[1:])
        shutil.copytree(place, folder / "stormlog" / name)
    for case in CASES:
        run_folder(case, folder / "traceml")


def _traces(seed: int) -> Iterator[tuple[str, bytes]]:
    """DGRR traces: those of the testdata, and changed ones."""
    for path in FILES:
        yield path.name, path.read_bytes()
    for number, data in enumerate(itertools.islice(fuzz.inputs("dgrr", seed), TRACES)):
        yield f"mutation-{number:04}.dgrr", data


def _vectors() -> Iterator[tuple[str, bytes]]:
    for path in sorted(VECTORS.glob("*.json")):
        vector = exactjson.loads(path.read_bytes())
        if not isinstance(vector, dict):
            continue
        if "batch" in vector:
            yield f"vector-{path.name}", exactjson.dumps(vector["batch"])
        if "otlp" in vector:
            text = exactjson.dumps(vector["otlp"])
            yield f"vector-{path.stem}.otlp.json", text
            yield f"vector-{path.stem}.otlp.binpb", traces_from_json(text)[0].SerializeToString()


def _mutations(count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    for kind in MUTATED:
        suffix = SUFFIXES.get(kind, ".otlp.binpb")
        for number, data in enumerate(itertools.islice(fuzz.inputs(kind, seed), count)):
            yield f"mutation-{kind}-{number:04}{suffix}", data


def _generated(count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    for number, case in enumerate(_cases(count, seed)):
        for index, batch in enumerate(case.batches):
            yield f"case-{number:04}-{index}.json", exactjson.dumps(batch)
        for index, message in enumerate(case.messages):
            yield f"case-{number:04}-{index}.otlp.binpb", message


def _cases(count: int, seed: int) -> list[Case]:
    drawn: list[Case] = []

    @seeded(seed)
    @settings(max_examples=max(count, 1), deadline=None, database=None, phases=(Phase.generate,))
    @given(case=cases(small=False))
    def draw(case: Case) -> None:
        drawn.append(case)

    if count:
        draw()
    return drawn


def _hostile() -> Iterator[tuple[str, bytes]]:
    deep: Any = "x"
    for _ in range(120):
        deep = [deep]
    texts = {
        "empty": b"",
        "blank": b"\n\n",
        "null": b"null",
        "list": b"[]",
        "unknown-version": b'{"schema_version":99,"spans":[]}',
        "not-utf8": b'{"spans":["\xff\xfe"]}',
        "byte-order-mark": b'\xef\xbb\xbf{"schema_version":1,"spans":[]}',
        "truncated": b'{"schema_version":1,"spans":[{"id":',
        "twice": b'{"schema_version":1,"schema_version":1}',
        "deep": json.dumps({"schema_version": 1, "spans": [], "custom": deep}).encode(),
        "too-deep": b'{"custom":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        "large-number": b'{"schema_version":1,"created_ns":' + b"9" * 5_000 + b"}",
        "zeros": bytes(1_000),
        "archive": b"PK\x03\x04" + bytes(40),
    }
    for name, data in texts.items():
        yield f"hostile-{name}.json", data
        yield f"hostile-{name}.otlp.json", data
        yield f"hostile-{name}.otlp.jsonl", data
        yield f"hostile-{name}.otlp.binpb", data
    yield "hostile-repeated.otlp.binpb", TracesData().SerializeToString() * 3
