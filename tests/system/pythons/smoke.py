"""Checks of an installed wheel that need neither the checkout nor torch.

`python smoke.py` runs them in the current directory, which must be empty.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

COMMAND = str(Path(sys.executable).with_name("cirron-otel"))
TORCH = {"torch", "safetensors", "transformers", "lightning", "accelerate", "torchdata"}
MISSING = {"torch", "safetensors", "numpy", "opentelemetry.instrumentation", "accelerate"}
MISSING_EXTRAS = {"spark"}
"""Optional packages that are not installed here."""
FIXTURE = """
import cirron_otel as ci

def test_it(cirron_run):
    for _ in ci.epochs(range(2)):
        pass
    assert len(cirron_run.spans("epoch")) == 2
"""


def command(*arguments: str) -> str:
    """Run `cirron-otel`, and return its output."""
    done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (arguments, done.returncode, done.stdout, done.stderr)
    return done.stdout


def check_imports() -> None:
    """Import the package, and all modules that need no missing extra."""
    import cirron_otel
    from cirron_otel.errors import MissingExtraError

    assert not Path(cirron_otel.__file__).is_relative_to(Path.cwd())
    count = 0
    for module in pkgutil.walk_packages(cirron_otel.__path__, "cirron_otel."):
        if "__main__" in module.name or "bootstrap" in module.name:
            continue
        try:
            importlib.import_module(module.name)
            count += 1
        except ModuleNotFoundError as error:
            if not {error.name, (error.name or "").split(".")[0]} & MISSING:
                raise
        except MissingExtraError as error:
            if error.extra not in MISSING_EXTRAS:
                raise
    assert count > 250, count
    assert not TORCH & set(sys.modules)


def check_tracing() -> None:
    """Record a run."""
    import cirron_otel as ci

    ci.profile(output_dir="run", frameworks=[])
    for epoch in ci.epochs(range(2)):
        for batch in ci.batches(range(3)):
            with ci.scope("forward", layer="all"):
                ci.mark("loss", 1 / (1 + epoch + batch))
    assert ci.shutdown()


def check_commands() -> None:
    """Read the run, and convert it to OTLP and back."""
    assert command("--version").startswith("cirron-otel ")
    assert json.loads(command("spool", "ls", "run", "--json"))["spans"] == 15
    assert "epoch 1" in command("spool", "show", "run")
    command("report", "run", "--html", "run.html")
    command("convert", "run", "run.jsonl")
    command("convert", "run.jsonl", "back")
    for path in Path("run/spool").glob("*.json"):
        restored = Path("back/spool", path.name)
        assert json.loads(path.read_bytes()) == json.loads(restored.read_bytes())


def check_demo() -> None:
    """Run the demo, which shows a recording if there is no torch."""
    assert "forward" in command("demo", "--output", "demo")


def check_pytest() -> None:
    """Use the fixture, as pytest finds it."""
    Path("test_fixture.py").write_text(FIXTURE)
    arguments = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_fixture.py"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def main() -> None:
    """Run all checks."""
    for check in (check_imports, check_tracing, check_commands, check_demo, check_pytest):
        check()


if __name__ == "__main__":
    main()
