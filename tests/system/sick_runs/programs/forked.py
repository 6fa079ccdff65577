"""Runs one program in a fork of an interpreter that has imported torch.

Its arguments are those of `programs`, the folder of the recording, and the number of ranks. The
ranks are processes with the variables that torchrun sets.
"""

import os
import sys
from pathlib import Path
from uuid import uuid4

import cirron_otel as ci
from tests.kit.program_server import run_ranks
from tests.system.sick_runs.programs.__main__ import run


def record(name: str, twin: str, folder: str, recording: str) -> dict[str, str]:
    ci.profile(output_dir=recording)
    run(name, twin, folder)
    ci.shutdown()
    return {}


arguments, ranks = sys.argv[1:5], int(sys.argv[5])
if ranks == 1:
    record(*arguments)
else:
    os.environ["TORCHELASTIC_RUN_ID"] = uuid4().hex
    outputs = Path(arguments[2]) / "ranks"
    outputs.mkdir()
    if run_ranks(lambda: record(*arguments), ranks, outputs) != [0] * ranks:
        sys.exit("".join(path.read_text() for path in outputs.glob("output-*.txt")))
