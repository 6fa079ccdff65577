"""Generate cirron_otel/_proto from trace.proto: `python proto/cirron/v1/generate.py`.

The code generator is pinned, in an environment of its own. Generated code must not be newer than
the oldest protobuf runtime that the package allows, and from 5.27 on it checks that at import;
this generator is that of protobuf 5.26.1, the same as opentelemetry-proto's, whose code runs on
every runtime from 5.26 to 7.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

GENERATOR = "grpcio-tools==1.64.3"
ROOT = Path(__file__).parents[3]
TARGET = ROOT / "cirron_otel" / "_proto"
SOURCE = "cirron/v1/trace.proto"


def main() -> int:
    """Write the generated modules over those that are there."""
    with tempfile.TemporaryDirectory() as directory:
        venv.create(directory, with_pip=True)
        python = str(Path(directory) / "bin" / "python")
        install = [python, "-m", "pip", "install", "--quiet", GENERATOR, "setuptools<81"]
        subprocess.run(install, check=True)
        protoc = [python, "-m", "grpc_tools.protoc", f"--proto_path={ROOT / 'proto'}"]
        outputs = [f"--python_out={TARGET}", f"--pyi_out={TARGET}"]
        subprocess.run([*protoc, *outputs, SOURCE], check=True)
    stub = (TARGET / SOURCE).with_name("trace_pb2.pyi")
    # The generator leaves out the type arguments that mypy --strict asks for.
    stub.write_text(stub.read_text().replace("_Mapping]", "_Mapping[str, object]]"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
