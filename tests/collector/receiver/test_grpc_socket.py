"""The private socket of gRPC: where it is, who may reach it, and what is left of it."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cirron_otel.collector.receiver.grpc import socket as grpc_socket
from cirron_otel.collector.receiver.grpc.socket import PrivateSocket
from cirron_otel.errors import TargetError
from tests.kit.servers.servers import traces

from .fake_intake import FakeIntake
from .grpc_clients import Server, against_server


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder with a short path: the path of a socket has little room."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def bound(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(bytes(path))
    listener.listen()
    return listener


def test_it_is_private_and_removed(temporary: Path) -> None:
    own = PrivateSocket()
    assert own.path.parent.parent == temporary
    assert own.path.parent.stat().st_mode & 0o077 == 0
    with bound(own.path):
        own.remove()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("name", ["a%41b", "a b#c?d", "\xe4", os.fsdecode(b"\xff")], ids=ascii)
def test_grpc_listens_whatever_the_name_of_the_folder(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = temporary / name
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))

    async def send(server: Server, _: FakeIntake) -> None:
        assert await server.send(traces(1)) == b""

    assert against_server(send).bodies == [traces(1)]
    assert list(folder.iterdir()) == []


def test_socket_left_by_a_killed_process_is_removed(temporary: Path) -> None:
    alive, dead, new = PrivateSocket(), PrivateSocket(), PrivateSocket()
    listener = bound(alive.path)
    bound(dead.path).close()
    bound(new.path).close()  # it may be about to listen
    for each in (alive, dead):
        os.utime(each.path, (0, 0))
    own = PrivateSocket()
    assert {each.name for each in temporary.iterdir()} == {
        each.path.parent.name for each in (alive, new, own)
    }
    listener.close()


@pytest.fixture(params=["missing", "x" * 100])
def unusable(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder that does not exist, or one whose path is too long."""
    (tmp_path / ("x" * 100)).mkdir()
    path: Path = tmp_path / request.param
    return path


@pytest.mark.parametrize("place", ["fallback", "runtime", "system"])
def test_fallback_folder_is_used_if_the_temporary_one_is_unusable(
    temporary: Path, unusable: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(unusable))
    monkeypatch.setattr(grpc_socket, "_SHORT_PATHS", (str(unusable), str(temporary)))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(temporary if place == "runtime" else unusable))
    own = PrivateSocket(temporary if place == "fallback" else unusable)
    assert own.path.parent.parent == temporary
    own.remove()
    assert list(temporary.iterdir()) == []


def test_the_folders_that_were_tried_are_named(
    unusable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(unusable))
    monkeypatch.setattr(grpc_socket, "_SHORT_PATHS", ())
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    with pytest.raises(TargetError, match=r"set TMPDIR to a writable directory with") as raised:
        PrivateSocket(unusable)
    assert str(unusable) in str(raised.value)
