"""The event loop: uvloop's where it is, asyncio's where it is not."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest
import uvloop

from cirron_otel.collector.service.event_loop import new_event_loop
from tests.kit.servers.away import until
from tests.kit.servers.serving import serving, spans_of

from .test_second_process import take


def test_uvloop_is_used_if_installed() -> None:
    loop = new_event_loop()
    assert isinstance(loop, uvloop.Loop)
    loop.close()


def test_asyncio_is_used_if_uvloop_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    loop = new_event_loop()
    assert isinstance(loop, asyncio.SelectorEventLoop)
    loop.close()


def test_a_collector_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "uvloop.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with serving(tmp_path / "data") as here:
        maps = Path(f"/proc/{here.process.pid}/maps").read_text()
        take(here)
        assert here.end() == 0
    assert "uvloop" not in maps
    assert len(spans_of(tmp_path / "data")) == 1


def test_a_collector_with_it(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as here:
        assert "uvloop" in Path(f"/proc/{here.process.pid}/maps").read_text()
        translator = here.translator()
        assert translator is not None
        os.kill(translator, signal.SIGKILL)
        until(lambda: here.translator() not in (None, translator))
        take(here)
        assert here.end() == 0
    for line in here.log.read_text().splitlines():
        json.loads(line)  # no library says a word of its own, as gRPC does about forks
