"""The real S3 server that the tests run: versitygw over a directory, which checks signatures.

```python
with versitygw(tmp_path) as server:
    environment = server.environment()
    server.make_bucket("blobs")
```
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .build import binary, missing
from .process import BackendError, Process, running

ACCESS = "test-access-key"
SECRET = "test+secret/key%20with=odd&letters"
REGION = "eu-central-1"


@dataclass(frozen=True)
class Versitygw:
    """A running server."""

    process: Process
    endpoint: str
    """`http://127.0.0.1:port`."""
    buckets: Path
    """Where they are, as directories."""

    def environment(self, secret: str = SECRET) -> dict[str, str]:
        """The variables of an AWS SDK that lead here."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
        }

    def make_bucket(self, name: str) -> None:
        """Make a bucket, if it is not there."""
        (self.buckets / name).mkdir(exist_ok=True)

    def objects(self, bucket: str) -> dict[str, bytes]:
        """What is in a bucket, by its key."""
        root = self.buckets / bucket
        return {
            str(path.relative_to(root)): path.read_bytes()
            for path in sorted(root.rglob("*"))
            if path.is_file() and not path.relative_to(root).parts[0].startswith(".sgwtmp")
        }


@contextlib.contextmanager
def versitygw(directory: Path, endpoint: str | None = None) -> Iterator[Versitygw]:
    """Run one with its buckets below `directory`, at a free `127.0.0.1:port` or a given one."""
    if reason := missing("versitygw"):
        raise BackendError(f"{reason}: run `make backends`")
    folders = [directory / name for name in ("buckets", "iam", "sidecar")]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    buckets, iam, sidecar = map(str, folders)
    settings = {
        "ROOT_ACCESS_KEY": ACCESS,
        "ROOT_SECRET_KEY": SECRET,
        "VGW_REGION": REGION,
        "VGW_IAM_DIR": iam,
        "VGW_HEALTH": "/health",
        "VGW_QUIET": "true",
    }
    # Which port it is stands in a variable that it does not know.
    script = 'VGW_PORT="$HEALTH" exec "$0" posix --sidecar "$1" "$2"'
    command = ["sh", "-c", script, str(binary("versitygw")), sidecar, buckets]
    if endpoint is None:
        with running(command, ("HEALTH",), "/health", directory, settings) as (process, found):
            yield Versitygw(process, f"http://{found['HEALTH']}", folders[0])
        return
    process = Process(command, {**settings, "HEALTH": endpoint}, directory / "versitygw.log")
    try:
        process.wait_ready(f"http://{endpoint}/health")
        yield Versitygw(process, f"http://{endpoint}", folders[0])
    finally:
        process.stop()
