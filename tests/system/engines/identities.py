"""Generated recordings of every producer: one ledger that adds up, in every engine.

    python -m tests.system.engines.identities --count 10000 --engine duckdb

Each recording is read in Python in both ways. Engines compile the same queries for each recording,
which takes them most of the time. So they read some recordings as one, each with ids and ranks of
its own. Prints what was checked; a recording that fails is named by its seed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from cirron_otel.core.columns.writing import WriterLimits
from cirron_otel.core.engines.source import Connect
from cirron_otel.core.run.findings.conclude import findings_of
from cirron_otel.core.run.opening import open_run
from tests.core.columns.helpers import add
from tests.kit.generators.disturbed_spools import disturbed
from tests.kit.generators.run_spools import run_spool
from tests.kit.generators.trees import random_spool
from tests.kit.ledger_identities import assert_affordable, assert_consistent, assert_exact
from tests.kit.spools.made import encoded
from tests.system.sick_runs.case import Case
from tests.system.sick_runs.drawing import Setting, draw_plan
from tests.system.sick_runs.plan import simulate
from tests.system.sick_runs.producers import PRODUCERS, write

from . import documents, relations
from .relations import Files, reader_of, storable

REPORT: Final = "report"
TOGETHER: Final = 20
"""The recordings that an engine reads as one."""
_RANKS: Final = 8
"""More than the ranks of a recording."""
_MOST_S: Final = 60
"""The CPU time after which a check fails, because it may not end."""
_SHOWN: Final = 500
_DISTURBED: Final = 0.4
_ENDS: Final = ((), ("backward",), ("forward", "backward"))


def recording(seed: int) -> Files:
    """Return the files of a recording: of any producer, a random tree, or a disturbed one."""
    chance = random.Random(seed)
    kind = chance.random()
    if kind < 0.5:
        files = run_spool(seed)
    elif kind < 0.65:
        files = random_spool(seed, chance.choice([10, 40, 120]))
    else:
        files = _simulated(seed)
    return disturbed(chance, files) if chance.random() < _DISTURBED else files


def _simulated(seed: int) -> Files:
    """Return a healthy run of one of the producers of the simulated runs."""
    chance = np.random.default_rng(seed)
    setting = Setting(
        _ENDS[seed % 3], ranks=(1, 4), units=(5, 12), has_device=bool(chance.random() < 0.3)
    )
    plan = draw_plan(chance, setting)
    producer = list(PRODUCERS)[int(chance.integers(len(PRODUCERS)))]
    case = Case("identities", seed, producer, plan, simulate(plan))
    case.values["loss"] = chance.random((plan.ranks, plan.units))
    return write(case)


def check_in_python(files: Files, folder: Path) -> dict[str, Any]:
    """Check a recording that is read in both ways; return its document."""
    reader = reader_of(files, folder / "s")
    found = []
    for in_columns in (False, True):
        with open_run(reader, reader, slowest=documents.SLOWEST, in_columns=in_columns) as run:
            if run.ledger is not None:
                assert_exact(run.ledger)
                assert_affordable(findings_of(run), run.ledger.total_ns)
            found.append(documents.document_of_run("", run).to_json())
    assert_consistent(found[0])
    assert found[0] == found[1]
    return found[0]


def check_in_engine(files: Files, folder: Path, connect: Connect | None = None) -> None:
    """The relations and the document of an engine are those of Python."""
    expected = documents.in_python(files, folder / "s", (REPORT,))[REPORT]
    assert_consistent(expected)
    add(folder / "c", files, WriterLimits())
    found = documents.in_engine(folder / "c", connect, (REPORT, relations.RELATIONS))
    assert found[relations.RELATIONS] == relations.in_columns(files, folder / "s")
    assert found[REPORT] == expected


def is_for_engines(files: Files) -> bool:
    """Return whether engines read a recording: it is not foreign, and its units are steps."""
    batches = [json.loads(data) for _, data in files]
    if any(batch["schema_version"] != 1 for batch in batches):
        return False  # the reader of a spool refuses the batch
    names = {span.get("name") for batch in batches for span in batch["spans"]}
    return "step" in names and not any(
        "resource_spans" in json.dumps(batch.get("otel") or {}) or batch["sdk_version"] == "otlp"
        for batch in batches
    )


def together(recordings: Sequence[Files]) -> Files:
    """Return the files of some recordings as those of one."""
    return [_renamed(number, data) for number, files in enumerate(recordings) for _, data in files]


def _renamed(number: int, data: bytes) -> tuple[str, bytes]:
    batch = json.loads(data)
    batch["batch_id"] = f"{int(batch['batch_id'], 16) ^ (number << 104):032x}"
    for span in batch["spans"]:
        span["id"], span["parent_id"] = _id(number, span["id"]), _id(number, span["parent_id"])
        span["mark_ids"] = [_id(number, each) for each in span.get("mark_ids", ())]
        if type(span.get("rank")) is int:
            span["rank"] += number * _RANKS
    for mark in batch["marks"]:
        mark["id"], mark["span_id"] = _id(number, mark["id"]), _id(number, mark["span_id"])
    header = batch.get("otel")
    if isinstance(header, dict) and "session" in header:
        header["session"] = _id(number, header["session"])
    return f"{batch['created_ns']:020d}-{batch['batch_id']}.json", encoded(batch)


def _id(number: int, id_: Any) -> Any:
    """Return an id of a recording; its first digits are those of a small number."""
    if isinstance(id_, str) and len(id_) == 32 and number:
        return f"{int(id_[:4], 16) ^ number << 8:04x}{id_[4:]}" if id_[:4].isalnum() else id_
    return id_


def run(
    seeds: Sequence[int], connects: dict[str, Connect | None], size: int = TOGETHER
) -> tuple[Counter[str], list[str]]:
    """Check recordings; return how many were checked and by what, and the failures."""
    signal.signal(signal.SIGVTALRM, _stop)
    counts: Counter[str] = Counter()
    failures: list[str] = []
    waiting: list[tuple[int, Files]] = []
    for place, seed in enumerate(seeds):
        files = recording(seed)
        with _checked(f"python: seed {seed}", failures) as folder:
            counts["without units"] += check_in_python(files, folder)["ledger"] is None
            counts["python"] += 1
        if connects and is_for_engines(own := storable(files)):
            waiting.append((seed, own))
        if waiting and (len(waiting) == size or place == len(seeds) - 1):
            for name, connect in connects.items():
                _check_together(name, waiting, connect, counts, failures)
            waiting = []
        if (place + 1) % _SHOWN == 0:
            print(f"{place + 1}: {_text(counts)}; failures: {len(failures)}", flush=True)
    return counts, failures


def _text(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _check_together(
    name: str,
    recordings: Sequence[tuple[int, Files]],
    connect: Connect | None,
    counts: Counter[str],
    failures: list[str],
) -> None:
    some: list[str] = []
    with _checked(f"{name}: together", some) as folder:
        check_in_engine(together([files for _, files in recordings]), folder, connect)
        counts[name] += len(recordings)
    if not some:
        return
    before = len(failures)
    for seed, files in recordings:
        with _checked(f"{name}: seed {seed}", failures) as folder:
            check_in_engine(files, folder, connect)
            counts[name] += 1
    if len(failures) == before:  # they fail together only
        failures.append(f"{some[0]} seeds {[seed for seed, _ in recordings]}")


@contextlib.contextmanager
def _checked(title: str, failures: list[str]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="identities-") as folder:
        signal.setitimer(signal.ITIMER_VIRTUAL, _MOST_S)
        try:
            yield Path(folder)
        except Exception:
            failures.append(f"{title}\n{traceback.format_exc()[-1500:]}")
            print(failures[-1], file=sys.stderr, flush=True)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _stop(*_: Any) -> None:
    raise TimeoutError(f"more than {_MOST_S} s of CPU time")


def main(arguments: Sequence[str] | None = None) -> int:
    """Check recordings; return 1 if one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.engines.identities")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the seed of the first recording")
    parser.add_argument("--together", type=int, default=TOGETHER)
    parser.add_argument("--engine", action="append", default=[],
                        help="duckdb, or the URL of a PostgreSQL or Spark")  # fmt: skip
    options = parser.parse_args(arguments)
    connects = {name: _connect(name) for name in options.engine}
    seeds = range(options.first, options.first + options.count)
    counts, failures = run(seeds, connects, options.together)
    print(_text(counts))
    print(f"failures: {len(failures)}")
    return bool(failures)


def _connect(name: str) -> Connect | None:
    if name.startswith("postgresql"):
        from cirron_otel.core.engines.postgres_engine import postgres

        return postgres(name)
    if name.startswith("spark"):
        from cirron_otel.core.engines.spark_engine import spark

        return spark(name)
    return None


if __name__ == "__main__":
    raise SystemExit(main())
