"""Compare this tree with an earlier commit: `python -m tests.kit.compare BASE`.

The wheel of each is installed into an environment of its own. `probe` runs in both over the same
files. The outputs must be equal, byte for byte, but for the differences that `expected.toml` lists.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.kit.environments import Environment, EnvironmentUnavailableError, run_in
from tests.kit.wheels import ROOT

from . import corpus
from .difference import (
    differences,
    expected_in,
    outputs_of,
    report,
)
from .versions import checked_out, environment

GENERATED, MUTATED, RUNS, SEED = 400, 150, 200, 1
EXPECTED = Path(__file__).with_name("expected.toml")
_TIMEOUT_S = 7200.0


def main() -> int:
    """Run the comparison; 0 if the versions are equal, 1 if not, 2 if it cannot run."""
    parser = argparse.ArgumentParser(prog="python -m tests.kit.compare", description=__doc__)
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("--generated", type=int, default=GENERATED, help="generated cases")
    parser.add_argument("--mutated", type=int, default=MUTATED, help="inputs of each mutated kind")
    parser.add_argument("--runs", type=int, default=RUNS, help="generated spools")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--expected", type=Path, default=EXPECTED, metavar="FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cirron-otel-compare-") as folder:
        place = Path(folder)
        try:
            sources = {"base": checked_out(options.base, place / "base-source"), "head": ROOT}
            made = {side: environment(side, source, place) for side, source in sources.items()}
        except (subprocess.CalledProcessError, EnvironmentUnavailableError) as error:
            print(f"compare: {options.base} cannot be compared: {error}", file=sys.stderr)
            return 2
        corpus.write(
            place / "corpus", options.generated, options.mutated, options.runs, options.seed
        )
        begun = time.monotonic()
        with ThreadPoolExecutor(len(made)) as pool:
            runs = [pool.submit(probe, each, place / side, place) for side, each in made.items()]
            base, head = (outputs_of(run.result()) for run in runs)
    lines, is_right = report(differences(base, head), expected_in(options.expected))
    print(*lines, sep="\n")
    equal = sum(base[name] == head.get(name) for name in base)
    took = time.monotonic() - begun
    print(f"{equal} of {len(base)} outputs of {options.base} are equal; {took:.0f} s")
    return int(not is_right)


def probe(where: Environment, work: Path, place: Path) -> Path:
    """Run `probe` in a new folder; return the file of its outputs."""
    work.mkdir()
    (work / "corpus").symlink_to(place / "corpus")
    variables = {"PYTHONPATH": str(Path(__file__).parent), "COLUMNS": "80", "TZ": "UTC"}
    done = run_in(
        where,
        ["-m", "probe", "corpus", "outputs.jsonl"],
        cwd=work,
        variables=variables,
        timeout=_TIMEOUT_S,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the probe failed in {where.name}: {done.stderr}")
    return work / "outputs.jsonl"


if __name__ == "__main__":
    sys.exit(main())
