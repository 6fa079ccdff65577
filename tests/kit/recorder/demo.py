"""Records anew what `cirron-otel demo` shows where PyTorch is not installed.

    python -m tests.kit.recorder.demo

trains a part of the demo's program with the hooks on, and puts its spool in the place of
`cirron_otel/tools/cli/recording/spool`. The documents show what is in it: afterwards
`pytest tests/tools/cli/test_docs.py` names the outputs in README.md and docs/cli.md that differ.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from cirron_otel.tools.cli.demo import RECORDING
from cirron_otel.tools.cli.training import train

IMAGES = 480
"""Six batches an epoch to train with, two to evaluate."""
_SETTINGS = {
    "CIRRON_FLUSH_INTERVAL": "0.15",  # several batches, as of a long run
    "CIRRON_SAMPLE_INTERVAL": "none",  # samples depend on time
    "OTEL_RESOURCE_ATTRIBUTES": "host.name=training-host",
    # Neither paths nor the commit of the checkout in which it is made.
    "CIRRON_RUN_DETAILS": "versions,host",
}


def main() -> None:
    """Record, and replace what was there."""
    with tempfile.TemporaryDirectory() as temporary:
        train(Path(temporary), IMAGES, **_SETTINGS)
        target = RECORDING / "spool"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for file in sorted(Path(temporary, "spool").iterdir()):
            shutil.copyfile(file, target / file.name)


if __name__ == "__main__":
    main()
