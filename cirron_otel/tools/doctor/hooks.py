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
            return failed("hooks", "`frameworks` names torch, which is not installed", advice)
        return ok("hooks", f"PyTorch is not installed: only manual scopes are recorded ({advice})")
    try:
        with tempfile.TemporaryDirectory(prefix="cirron-otel-doctor-") as directory:
            report = _probed(directory, environ)
    except subprocess.TimeoutExpired:
        return failed(
            "hooks",
            f"PyTorch takes longer than {LIMIT_S:.0f} s to import and train two steps",
            "check the disk that it is installed on; --no-hooks skips this check",
        )
    except ProbeError as error:
        return failed("hooks", f"PyTorch does not work here: {error}", "reinstall it")
    except OSError as error:  # for example, a read-only file system in a container
        return warning(
            "hooks",
            f"the hooks could not be tested: {error.strerror or error}",
            "set TMPDIR to a writable directory; --no-hooks skips this check",
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
        raise ProbeError("it wrote no report") from None
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
            f"{text}: {listed(missing)} of a training step was not recorded",
            "report this with the version of PyTorch",
            **found,
        )
    if found["left"] or found["swallowed"]:
        what = listed(found["left"]) or "an error"
        return failed(
            "hooks",
            f"{text}: the hooks leave {what} behind",
            "report this with the version of PyTorch",
            **found,
        )
    text += f": a step is recorded, and all {found['hooked']} replaced names are restored"
    if found["cuda_build"] and not found["cuda"] and _DRIVER.exists():
        return warning(
            "hooks",
            f"{text}; there is a GPU driver, but PyTorch finds no GPU",
            f"check CUDA_VISIBLE_DEVICES, and that the driver supports CUDA {found['cuda_build']}",
            **found,
        )
    if wanted is not None and not {"torch", "auto"} & set(wanted):
        return ok("hooks", f"{text}; the hooks are disabled by `frameworks`", **found)
    return ok("hooks", text, **found)
