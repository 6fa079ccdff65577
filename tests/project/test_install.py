"""Broken downloads are retried: tests with a real pip and a real index."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.kit.install import install

from .test_environments import wheel

NAME = "small-1.0-py3-none-any.whl"
PAGE = f'<!DOCTYPE html><html><body><a href="/{NAME}">{NAME}</a></body></html>'.encode()


class Index(ThreadingHTTPServer):
    """A package index with one wheel.

    Its downloads break off until the index has been read more than `breaks` times.
    """

    def __init__(self, data: bytes, breaks: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.data = data
        self.breaks = breaks
        self.read = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/simple"


class Handler(BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        data, kind = self.server.data, "application/zip"
        if self.path.startswith("/simple"):
            self.server.read += 1
            data, kind = PAGE, "text/html"
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        is_whole = data is PAGE or self.server.read > self.server.breaks
        self.wfile.write(data if is_whole else data[: len(data) // 2])
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def data(tmp_path: Path) -> bytes:
    wheel(tmp_path, "1.0")
    return (tmp_path / NAME).read_bytes()


@pytest.fixture
def args(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    for name in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    return [
        "--isolated",
        "--no-cache-dir",
        "--quiet",
        "--resume-retries",
        "0",
        "--target",
        str(tmp_path / "here"),
        "small",
    ]


@pytest.fixture
def index(data: bytes, request: pytest.FixtureRequest) -> Iterator[Index]:
    with Index(data, request.param) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("index", [2], indirect=True)
def test_a_download_that_breaks_is_tried_again(
    index: Index, args: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = install(sys.executable, ["--index-url", index.url, *args], pauses=(0, 0))
    assert (done.returncode, index.read) == (0, 3)
    assert (tmp_path / "here" / "small.py").read_text() == "VERSION = '1.0'\n"
    assert capsys.readouterr().err.count("a download broke: again in 0 s") == 2


@pytest.mark.parametrize("index", [2], indirect=True)
def test_not_for_ever(index: Index, args: list[str]) -> None:
    done = install(sys.executable, ["--index-url", index.url, *args], pauses=(0,))
    assert (done.returncode, index.read) == (1, 2)
    assert "incomplete-download" in done.stderr


@pytest.mark.parametrize("index", [0], indirect=True)
def test_missing_package_is_not_retried(index: Index, args: list[str]) -> None:
    args[-1] = "small==2.0"
    done = install(sys.executable, ["--index-url", index.url, *args], pauses=(0, 0))
    assert (done.returncode, index.read) == (1, 1)
    assert "No matching distribution found for small==2.0" in done.stderr
