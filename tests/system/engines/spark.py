"""A real Spark: a standalone master and two workers, each a process of its own.

PySpark is in an environment of its own, ahead of the packages of the tests' environment.

```python
with cluster(folder) as spark:
    spark.run("-m", "tests.system.engines.spark_reports", spark.url, *directories)
```
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.kit.backends.process import (
    ATTEMPTS,
    READY_SECONDS,
    BackendError,
    Process,
    free_endpoints,
)
from tests.kit.environments import SITE_PACKAGES, Environment, run_in

ROOT = Path(__file__).parents[3]
PYSPARK = Environment(
    "engines/pyspark", pins=Path(__file__).parent / "pins" / "pyspark.txt", paths=(SITE_PACKAGES,)
)
"""`import pyspark`, whose package contains all of Spark."""
WORKERS = 2
_DEFAULTS = """\
spark.driver.memory {driver}
spark.executor.memory {executor}
spark.driver.host 127.0.0.1
spark.driver.extraJavaOptions {java}
spark.executor.extraJavaOptions {java}
{more}
"""
_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_FOR_SMALL_DATA = """\
spark.sql.codegen.wholeStage false
spark.sql.codegen.factoryMode NO_CODEGEN
spark.sql.adaptive.enabled false
spark.sql.autoBroadcastJoinThreshold -1
"""
"""Hundreds of small queries need less time without compiling them, and without jobs for statistics.
Joins are those of large data."""
_VARIABLES = {
    "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_PUBLIC_DNS": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_DAEMON_JAVA_OPTS": _JAVA,
}  # fmt: skip
_REGISTERED = "Successfully registered with master"
_OPENED = re.compile(r"Starting Spark master at (spark://\S+)")


def missing() -> str | None:
    """Why Spark cannot be run here; None where it can."""
    return None if shutil.which("java") else "Java is not installed"


@dataclass(frozen=True)
class Cluster:
    """A running cluster."""

    url: str
    folder: Path
    processes: tuple[Process, ...]

    def run(
        self,
        *arguments: str | Path,
        variables: Mapping[str, str] | None = None,
        timeout: float = 1800.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run Python with PySpark and this checkout."""
        return run_in(
            PYSPARK,
            arguments,
            cwd=self.folder,
            timeout=timeout,
            variables=self.variables | (variables or {}),
        )

    @property
    def variables(self) -> dict[str, str]:
        """The environment of a driver."""
        return _VARIABLES | {"PYTHONPATH": str(ROOT), "SPARK_CONF_DIR": str(self.folder / "conf")}


@contextlib.contextmanager
def cluster(
    folder: Path,
    worker: str = "1g",
    executor: str = "512m",
    driver: str = "1g",
    *,
    is_small: bool = True,
) -> Iterator[Cluster]:
    """Run a master and two workers of one core each; amounts of memory are those of Spark.

    `is_small` is whether queries are hundreds of small ones.

    Raises BackendError, and EnvironmentUnavailableError.
    """
    PYSPARK.make()
    (folder / "conf").mkdir()
    (folder / "conf" / "spark-defaults.conf").write_text(
        _DEFAULTS.format(
            driver=driver,
            executor=executor,
            java=_JAVA if is_small else "-XX:+UseSerialGC",
            more=_FOR_SMALL_DATA if is_small else "",
        )
    )
    with contextlib.ExitStack() as stack:
        master, url = _master(folder)
        stack.callback(master.stop)
        workers = []
        for number in range(WORKERS):
            log = folder / f"worker-{number}.log"
            work = ["--cores", "1", "--memory", worker, "--work-dir", str(folder / "work"), url]
            workers.append(_start("worker.Worker", log, *work))
            stack.callback(workers[-1].stop)
        for each in workers:
            _wait_for(each, _REGISTERED)
        yield Cluster(url, folder, (master, *workers))


def _master(folder: Path) -> tuple[Process, str]:
    for attempt in range(1, ATTEMPTS + 1):
        [endpoint] = free_endpoints(1)
        port = endpoint.rpartition(":")[2]
        master = _start("master.Master", folder / f"master-{attempt}.log", "--port", port)
        try:
            found = _OPENED.search(_wait_for(master, "I have been elected leader"))
            assert found is not None
        except BackendError:
            master.stop()
            if attempt == ATTEMPTS:  # or else another process may have taken the port
                raise
        else:
            return master, found[1]
    raise AssertionError


def _start(name: str, log: Path, *arguments: str) -> Process:
    script = PYSPARK.site_packages / "pyspark" / "bin" / "spark-class"
    command = [
        str(script), f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", "--webui-port", "0",
        *arguments,
    ]  # fmt: skip
    log.touch()
    return Process(command, _VARIABLES, log)


def _wait_for(process: Process, text: str) -> str:
    """Wait until the log contains a text; return the log."""
    deadline = time.monotonic() + READY_SECONDS
    while True:
        log = process.log.read_text(errors="replace")
        if text in log:
            return log
        if not process.running() or time.monotonic() > deadline:
            raise BackendError(f"{text!r} is not in the log:\n{process.tail()}")
        time.sleep(0.1)
