"""The messages that docs/troubleshooting.md explains are the actual ones."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.tools.conftest import COMMAND, RECORDED, environment

PAGE = (Path(__file__).parents[3] / "docs" / "troubleshooting.md").read_text()
HTTP = "http/protobuf"


class Addresses(NamedTuple):
    """The addresses of our collector, which requires a token, and one without a listener."""

    grpc: str
    http: str
    nobody: str = "127.0.0.1:1"


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    folder = tmp_path_factory.mktemp("collector")
    (folder / "collector.yaml").write_text(
        "spool: {directory: taken}\n"
        "receivers:\n"
        "  grpc: {address: 'localhost:0'}\n"
        "  http: {address: 'localhost:0'}\n"
        "  auth: {tokens: [secret]}\n"
    )
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(
            [COMMAND, "collector", "--config", "collector.yaml", "--json"],
            cwd=folder, stdout=out, stderr=subprocess.DEVNULL, env=environment(),
        )  # fmt: skip
    try:
        while not (said := (folder / "out").read_text()).endswith("\n"):
            assert process.poll() is None
            time.sleep(0.05)
        yield Addresses(**json.loads(said))
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.parametrize(
    ("address", "variable", "protocol", "said"),
    [
        ("http://{0.http}", "ENDPOINT", "grpc", "Trying to connect an http1.x server"),
        ("https://{0.http}", "ENDPOINT", HTTP, "WRONG_VERSION_NUMBER"),
        ("{0.grpc}", "ENDPOINT", "grpc", "WRONG_VERSION_NUMBER"),
        ("http://{0.http}", "TRACES_ENDPOINT", HTTP, "404 Not Found"),
        ("http://{0.http}/v1/traces", "ENDPOINT", HTTP, "404 Not Found"),
        ("{0.http}", "ENDPOINT", HTTP, "is not an http:// or https:// URL"),
        ("http://{0.http}", "ENDPOINT", HTTP, "401 Unauthorized"),
        ("http://{0.grpc}", "ENDPOINT", "grpc", "UNAUTHENTICATED"),
        ("http://{0.http}", "ENDPOINT", "http", "expected grpc, http/protobuf, http/json"),
    ],
)
def test_an_endpoint_that_is_wrong(
    addresses: Addresses, address: str, variable: str, protocol: str, said: str, tmp_path: Path
) -> None:
    assert f"`{said}`" in PAGE
    done = subprocess.run(
        [COMMAND, "export", RECORDED],
        env=environment(**{
            f"OTEL_EXPORTER_OTLP_{variable}": address.format(addresses),
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
        }),
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode in (2, 5)
    assert said in done.stderr


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("http://{0.nobody}", "Connection refused"),
        ("http://{0.grpc}", "did not accept: no answer ("),
    ],
)
def test_an_endpoint_that_is_tried_again(
    addresses: Addresses, address: str, said: str, tmp_path: Path
) -> None:
    """A program, because it reports the first failure; a command gives up only after a minute."""
    assert f"`{said}`" in PAGE
    program = """if True:
        import time
        import cirron_otel as ci
        ci.profile(frameworks=[], shutdown_timeout=0.1)
        while not ci.health()["targets"][0]["last_error"]:
            with ci.scope("work"):
                time.sleep(0.05)
        ci.shutdown()
    """
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(
            OTEL_EXPORTER_OTLP_ENDPOINT=address.format(addresses),
            OTEL_EXPORTER_OTLP_PROTOCOL=HTTP,
            OTEL_METRICS_EXPORTER="none",
            CIRRON_FLUSH_INTERVAL="0.1",
        ),
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert said in done.stderr


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("spool flush cut", "no destination is configured"),
        ("spool ls cut", "more skipped: "),
        ("spool verify cut", "[not-json]"),
        ("convert file.xyz out.jsonl", "has no known suffix"),
    ],
)
def test_files(command: str, said: str, tmp_path: Path) -> None:
    assert f"`{said}`" in PAGE
    shutil.copytree(RECORDED, tmp_path / "cut")
    first = min((tmp_path / "cut" / "spool").glob("*.json"))
    first.write_bytes(first.read_bytes()[:30])
    (tmp_path / "file.xyz").touch()
    done = subprocess.run(
        [COMMAND, *command.split()], env=environment(), cwd=tmp_path,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert said in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("frameworks='torhc'", "'torhc' is not hooked: expected"),
        ("frameworks=[], flush_interval=-1", "expected a number of seconds above 0"),
        ("frameworks=[], output_dir='file/x'", "cannot be written: Not a directory"),
        ("frameworks=[]", "a mark's value must be a number, a bool or a string"),
    ],
)
def test_documented_messages_are_logged(options: str, said: str, tmp_path: Path) -> None:
    assert f"`{said}`" in PAGE
    (tmp_path / "file").touch()
    program = f"import cirron_otel as ci\nci.profile({options})\nci.mark('x', [1])\nci.shutdown()"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), cwd=tmp_path,
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert said in done.stderr
