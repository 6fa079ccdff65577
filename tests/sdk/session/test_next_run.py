"""A call of `profile()` while a session is open."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import cirron_otel as ci
from cirron_otel.sdk.session.run_identity import RUN_ID_VARIABLE
from tests.kit.sessions.spool_trees import read_spool


@pytest.fixture(autouse=True)
def session_is_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(RUN_ID_VARIABLE, raising=False)
    yield
    ci.shutdown()


def profile(folder: Path, name: str | None = None, **options: object) -> ci.Profiler:
    return ci.profile(
        output_dir=folder, frameworks="none", snapshots=None, name=name, quiet=True, **options
    )  # type: ignore[arg-type]


def scopes_of_runs(folder: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for batch in read_spool(folder).batches:
        name = batch["otel"]["resource"]["attributes"]["cirron.run.name"]
        spans = [span["name"] for span in batch["spans"]]
        found.setdefault(name, []).extend(each for each in spans if each != "cirron.session")
    return found


@pytest.mark.parametrize("first", [None, "first"])
def test_another_name_ends_the_session_and_opens_the_next_run(
    first: str | None, tmp_path: Path
) -> None:
    before = profile(tmp_path, first)
    assert before.run is not None
    with ci.scope("a"):
        pass
    after = profile(tmp_path, "second")
    assert not before.enabled
    assert after.enabled
    with ci.scope("b"):
        pass
    ci.shutdown()
    assert scopes_of_runs(tmp_path) == {before.run.name: ["a"], "second": ["b"]}


@pytest.mark.parametrize(("first", "second"), [("a", "a"), ("a", None), (None, None)])
def test_the_same_name_or_none_returns_the_open_session(
    first: str | None, second: str | None, tmp_path: Path
) -> None:
    assert profile(tmp_path, first) is profile(tmp_path, second)


def test_scope_of_the_program_keeps_the_session_open(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = profile(tmp_path, "a")
    with caplog.at_level(logging.WARNING), ci.scope("outer"):
        assert profile(tmp_path, "b") is first
        assert profile(tmp_path, "b") is first
    assert [each.getMessage() for each in caplog.records] == [
        "cirron-otel: profile(name='b'): run 'a' continues, because the scope 'outer' is open"
    ]
    assert profile(tmp_path, "b") is not first


def test_scope_of_another_thread_keeps_the_session_open(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = profile(tmp_path, "a")
    is_open, may_end = threading.Event(), threading.Event()

    def work() -> None:
        with ci.scope("elsewhere"):
            is_open.set()
            may_end.wait()

    thread = threading.Thread(target=work)
    thread.start()
    is_open.wait()
    with caplog.at_level(logging.WARNING):
        assert profile(tmp_path, "b") is first
    may_end.set()
    thread.join()
    assert "because the scope 'elsewhere' is open in another thread" in caplog.text
    assert profile(tmp_path, "b") is not first


def test_run_with_a_given_id_keeps_the_session_open(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = profile(tmp_path, "a", run_id="0123456789abcdef0123456789abcdef")
    with caplog.at_level(logging.WARNING):
        assert profile(tmp_path, "b") is first
    assert "run 'a' continues, because its id is set" in caplog.text
