"""Fuzz one target, in a process that may not take more than a GiB.

    python -m tests.system.fuzz.run TARGET --inputs 3000 --seed 1
    python -m tests.system.fuzz.run TARGET --seconds 60

The first way changes inputs by a fixed seed, and is the same each time; the second is atheris',
which looks for inputs that reach new code. `make fuzz SECONDS=60` does that for every target. What
is found is written to a file, which `python -m tests.system.fuzz.run TARGET FILE` tries again.
After the targets it checks the cases of tests/kit/generators/conversions.py, at least 20,000
batches and messages.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

MOST_BYTES = 1 << 30
"""Of address space over what the process has when it begins: more is a MemoryError."""
_LONGEST = 16 * 1024


def main(argv: list[str]) -> int:
    """Run the command; its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.fuzz.run")
    parser.add_argument("target", help="one of tests/system/fuzz/targets.py, or `all`")
    parser.add_argument("file", nargs="?", type=Path, help="an input to try again")
    parser.add_argument("--inputs", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=0)
    options = parser.parse_args(argv)
    if options.target == "all":
        return _all(options.seconds)
    if options.seconds:
        return _explore(options.target, options.seconds)
    return _repeat(options.target, options)


def _all(seconds: int) -> int:
    """Each target in a process of its own, at once as many as there are; then generated cases."""
    from .targets import TARGETS

    running = {
        name: subprocess.Popen(
            [sys.executable, "-m", "tests.system.fuzz.run", name, "--seconds", str(seconds)]
        )
        for name in TARGETS
    }
    failed = [name for name, process in running.items() if process.wait() != 0]
    print(f"fuzz: {len(running) - len(failed)} targets without a finding", flush=True)
    for name in failed:
        print(f"fuzz: {name} FAILED: see above, and the file it wrote", flush=True)
    if not _generated():
        failed.append("generated")
        print("fuzz: generated FAILED: see above, and the file it wrote", flush=True)
    return 1 if failed else 0


def _generated() -> bool:
    """Whether all generated cases come back, in as many processes as there are cores."""
    from tests.kit.generators.conversions import COUNT

    workers = os.cpu_count() or 1
    each, first = -(-COUNT // workers), random.SystemRandom().randrange(1_000_000)
    print(f"fuzz: {COUNT} generated batches and messages, seeds {first} to {first + workers - 1}",
          flush=True)  # fmt: skip
    running = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.kit.generators.conversions",
                "--count",
                str(each),
                "--seed",
                str(n),
            ],
            stdout=subprocess.PIPE,
        )
        for n in range(first, first + workers)
    ]
    counts: Counter[str] = Counter()
    for process in running:
        printed, _ = process.communicate()
        if process.returncode == 0:
            counts.update(json.loads(printed))
    print("fuzz: generated:", ", ".join(f"{n} {what}" for what, n in counts.items()), flush=True)
    return all(process.returncode == 0 for process in running)


def _repeat(name: str, options: argparse.Namespace) -> int:
    """A fixed number of inputs, or one file; prints what it took."""
    from .corpus import inputs
    from .targets import TARGETS

    base = _limit()
    given = [options.file.read_bytes()] if options.file else inputs(name, options.seed)
    count = 0
    for data in itertools.islice(given, options.inputs or 1):
        count += 1
        try:
            TARGETS[name](data)
        except Exception:
            found = Path(tempfile.gettempdir()) / f"cirron-otel-{name}-{options.seed}-{count}.bin"
            found.write_bytes(data)
            traceback.print_exc()
            print(f"input {count} of {name}, kept as {found}", file=sys.stderr)
            return 1
    print(json.dumps({"inputs": count, "over_mib": (_peak_kib() - base) // 1024}))
    return 0


def _limit() -> int:
    """Let this process take MOST_BYTES more; its resident memory so far, KiB."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MOST_BYTES, size + MOST_BYTES))
    return _peak_kib()


def _peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _explore(name: str, seconds: int) -> int:
    if importlib.util.find_spec("atheris") is None:
        print("fuzz: atheris is not installed: run `.venv/bin/pip install 'atheris>=2.3,<4'`",
              file=sys.stderr)  # fmt: skip
        return 2
    import atheris

    with atheris.instrument_imports(include=["cirron_otel"]):
        from .targets import TARGETS
    from .corpus import seeds

    with tempfile.TemporaryDirectory(prefix=f"cirron-otel-fuzz-{name}-") as folder:
        for number, data in enumerate(seeds(name)):
            (Path(folder) / f"seed{number}").write_bytes(data)
        prefix = Path(tempfile.gettempdir()) / f"cirron-otel-{name}-"
        atheris.Setup(
            [sys.argv[0], folder, f"-max_total_time={seconds}", f"-max_len={_LONGEST}",
             "-timeout=20", f"-rss_limit_mb={MOST_BYTES >> 20}", f"-artifact_prefix={prefix}",
             "-verbosity=0", "-print_final_stats=1"],
            TARGETS[name],
        )  # fmt: skip
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
