"""Check that PyTorch works, and that its instrumentation records a training step and can be
removed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...core.config.options import Config
from .check import Check, failed, listed, ok, warning

LIMIT_S = 120.0
"""The time limit of the probe, seconds; the import of torch from a cold or remote disk may be
slow."""

_EXPECTED = {"forward", "backward", "optimizer_step", "step"}
_SETTINGS = {
    "CIRRON_EXPORTERS": "none",
    "CIRRON_OUTPUT": "spool",
    "CIRRON_SNAPSHOTS": "none",
    "CIRRON_JOIN": "none",
    "CIRRON_ENABLED": "true",
    "CIRRON_DETAIL_EVERY": "0",
}
_MOST = 200
_DRIVER = Path("/dev/nvidiactl")


def examine_hooks(config: Config, environ: Mapping[str, str]) -> Check:
    """Run two instrumented training steps in another process, and check its report.

    The phases of a step must be recorded, and removing the hooks must restore everything that they
    replaced.
    """
    frameworks = config.frameworks
    if find_spec("torch") is None:
        advice = "pip install 'cirron-otel[torch]'"
        if frameworks is not None and "torch" in frameworks:
            return failed("hooks", "torch is to be hooked, and is not installed", advice)
        return ok("hooks", f"PyTorch is not installed: scopes by hand are recorded ({advice})")
    try:
        with tempfile.TemporaryDirectory(prefix="cirron-otel-doctor-") as directory:
            report = _probed(directory, environ)
    except subprocess.TimeoutExpired:
        return failed(
            "hooks",
            f"PyTorch takes longer than {LIMIT_S:.0f} s to import and train two steps",
            "look at where it is installed; --no-hooks leaves this out",
        )
    except ProbeError as error:
        return failed("hooks", f"PyTorch does not work here: {error}", "install it again")
    except OSError as error:  # for example, a read-only file system in a container
        return warning(
            "hooks",
            f"they could not be tried: {error.strerror or error}",
            "set TMPDIR to a directory that can be written; --no-hooks leaves this out",
        )
    return _judged(report, frameworks)


class ProbeError(Exception):
    """The probing process failed; the message is one line with the reason."""


def _probed(directory: str, environ: Mapping[str, str]) -> dict[str, Any]:
    variables = {k: v for k, v in environ.items() if not k.startswith(("CIRRON_", "OTEL_"))}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "cirron_otel.tools.doctor.hooks_probe", directory],
        env={**variables, **_SETTINGS},
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        ended = f"it ended with {done.returncode}"
        raise ProbeError((last if last and done.returncode > 0 else ended)[:_MOST])
    try:
        report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        raise ProbeError("it said nothing") from None
    return report


def _judged(found: dict[str, Any], wanted: tuple[str, ...] | None) -> Check:
    device = ", ".join(dict.fromkeys(found["devices"])) or "no GPU"
    if found["cuda"]:
        device = f"{len(found['devices'])} × {device}"
    text = f"PyTorch {found['torch']}, {device}"
    missing = sorted(_EXPECTED - set(found["scopes"]))
    if missing:
        return failed(
            "hooks",
            f"{text}: of a training step {listed(missing)} was not recorded",
            "report it, with the version of PyTorch",
            **found,
        )
    if found["left"] or found["swallowed"]:
        what = listed(found["left"]) or "an error"
        return failed(
            "hooks",
            f"{text}: the hooks leave {what} behind",
            "report it, with the version of PyTorch",
            **found,
        )
    text += f": a step is seen, and all of {found['hooked']} replaced names are put back"
    if found["cuda_build"] and not found["cuda"] and _DRIVER.exists():
        return warning(
            "hooks",
            f"{text}; there is a GPU driver, and PyTorch finds no GPU",
            f"check CUDA_VISIBLE_DEVICES, and that the driver fits CUDA {found['cuda_build']}",
            **found,
        )
    if wanted is not None and not {"torch", "auto"} & set(wanted):
        return ok("hooks", f"{text}; by `frameworks` they are off", **found)
    return ok("hooks", text, **found)
