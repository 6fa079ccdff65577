"""The lines at which the program is: files, functions, callers of loaders, and the schedule."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cirron_otel as ci
from cirron_otel.sdk.sampling import places
from cirron_otel.sdk.sampling.places import Places
from cirron_otel.sdk.tracing.open_scopes import TrainingThread, pinned
from cirron_otel.semconv import PLACE
from tests.kit.sessions.processes import until
from tests.kit.sessions.spool_trees import read_spool


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Path]:
    ci.profile(
        output_dir=tmp_path, exporters="none", join="none", handle_signals=False, frameworks=[],
        sample_interval=None,
    )  # fmt: skip
    yield tmp_path
    pinned.scope = None
    ci.shutdown()


class Stopped:
    """A thread that stops in a call of the function that it is given."""

    def __init__(self, work: Callable[[Callable[[], None]], object], *scopes: str) -> None:
        self._reached, self._released = threading.Event(), threading.Event()
        self._work, self._scopes = work, scopes
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with contextlib.ExitStack() as stack:
            for name in self._scopes:
                stack.enter_context(ci.scope(name))
            self._work(self._stop)

    def _stop(self) -> None:
        self._reached.set()
        self._released.wait(60)

    def __enter__(self) -> Places:
        self.thread.start()
        assert self._reached.wait(60)
        ident = self.thread.ident
        assert ident is not None
        return Places(TrainingThread(ident))

    def __exit__(self, *_: object) -> None:
        self._released.set()
        self.thread.join()


def stopped_in(source: str, file: str, *scopes: str) -> Stopped:
    """A thread that stops in `slow` of a file, which may not exist."""
    variables: dict[str, Any] = {}
    exec(compile(source, file, "exec"), variables)
    return Stopped(variables["slow"], *scopes)


def place(taken: Any) -> str:
    assert taken is not None
    text = taken[2]
    assert isinstance(text, str)
    return text


SLOW = "def slow(stop):\n    kept = 1\n    stop()\n"
ANY_DIRECTORY = Path("/somewhere/else")


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        (str(Path.cwd() / "pkg" / "train.py"), "pkg/train.py"),
        ("relative/train.py", "relative/train.py"),
        (str(ANY_DIRECTORY / "train.py"), "train.py"),
        ("<string>", "<string>"),
        (f"{Path.cwd()}/{'d' * 300}/train.py", f"{'d' * 151}/train.py"),
    ],
)
def test_file_of_the_program(session: Path, file: str, shown: str) -> None:
    with stopped_in(SLOW, file, "epoch", "step") as read:
        read._shown[__file__] = None  # its frames are around, and inside of, those of the program
        assert place(read.take()) == f"{shown}:3 (slow) in step"


@pytest.mark.parametrize(
    "file",
    ["/x/lib/python3.11/site-packages/a/b.py", "/usr/lib/python3/dist-packages/c.py",
     threading.__file__, places.__file__, "<frozen importlib._bootstrap>", "<eval_with_key>.1"],
)  # fmt: skip
def test_installed_file_is_skipped(session: Path, file: str) -> None:
    with stopped_in(SLOW, file, "epoch", "step") as read:
        read._shown[__file__] = None
        assert read.take() is None


@pytest.mark.torch
@pytest.mark.parametrize("caller", ["__getitem__", "collate", "__iter__", "default collate"])
def test_caller_in_the_fetch_of_a_loader(session: Path, caller: str) -> None:
    from torch.utils.data import DataLoader, Dataset, IterableDataset

    def load(stop: Callable[[], None]) -> None:
        class Data(Dataset[int]):
            def __len__(self) -> int:
                return 2

            def __getitem__(self, index: int) -> Any:
                if caller == "__getitem__":
                    read_file()
                return Item() if caller == "default collate" else index

        class Stream(IterableDataset[int]):
            def __iter__(self) -> Iterator[int]:
                read_file()
                yield 1

        class Item(dict[str, int]):
            def __iter__(self) -> Any:
                stop()
                return super().__iter__()

        def read_file() -> None:
            stop()

        def collate(batch: Any) -> Any:
            if caller == "collate":
                stop()
            return batch

        data: Any = Stream() if caller == "__iter__" else Data()
        next(iter(DataLoader(data, collate_fn=None if caller == "default collate" else collate)))

    with Stopped(load, "epoch", "step", "data_load") as read:
        found = place(read.take())
    assert found.startswith("tests/sdk/sampling/test_places.py:")
    suffix = "collate" if caller == "default collate" else caller
    assert found.endswith(f" of {suffix} in data_load")


def test_phase_of_a_step_without_detail_is_unknown(session: Path) -> None:
    with Stopped(lambda stop: stop(), "epoch", "step") as read:
        taken = read.take()
        assert taken is not None
        taken[0]._is_detailed = False
        assert read.take() is None


def test_without_a_session_nothing_is_taken() -> None:
    with Stopped(lambda stop: stop()) as read:
        assert read.take() is None


def test_samples_are_frequent_at_first_in_a_training(
    session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(places, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def intervals(read: Places, count: int) -> list[float]:
        found = []
        for _ in range(count):
            now[0] = read.due
            read.take()
            found.append(round(read.due - now[0], 3))
        return found

    with Stopped(lambda stop: stop(), "epoch", "step") as read:
        assert intervals(read, 102) == [0.1] * 29 + [0.25] * 70 + [1.0] * 3
    with Stopped(lambda stop: stop(), "prepare") as read:
        found = intervals(read, 110)
        assert (found[:99], found[-8:]) == ([0.1] * 99, [1.0] * 8)


def test_outside_of_a_training_one_sample_a_second_is_kept(
    session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(places, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with Stopped(lambda stop: stop(), "prepare") as read:
        kept = []
        for _ in range(30):
            now[0] = read.due
            kept.append(read.take() is not None)
        assert sum(kept) == 3


def test_session_in_a_deleted_working_directory_has_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    profiler = ci.profile(
        output_dir=tmp_path / "out", exporters="none", join="none", handle_signals=False,
        frameworks=[], sample_interval=0.01, places=True,
    )  # fmt: skip
    try:
        assert profiler.enabled
        assert "sampler" not in profiler.health()["swallowed_errors"]
    finally:
        ci.shutdown()


@pytest.mark.parametrize("is_on", [True, False])
def test_marks_in_the_spool(tmp_path: Path, is_on: bool) -> None:
    profiler = ci.profile(
        output_dir=tmp_path, exporters="none", join="none", handle_signals=False, frameworks=[],
        sample_interval=0.01, places=is_on,
    )  # fmt: skip

    def marks() -> list[Any]:
        ci.flush()
        return [mark for mark in read_spool(tmp_path).marks if mark["name"] == PLACE]

    try:
        with ci.scope("epoch"), ci.scope("step"):
            until(lambda: ci.health()["sampling"]["samples"] > 30)
            if is_on:
                until(lambda: bool(marks()))
        assert profiler.health()["swallowed_errors"] == {}
    finally:
        ci.shutdown()
    found = marks()
    assert bool(found) is is_on
    spans = {span["id"]: span["name"] for span in read_spool(tmp_path).spans}
    for mark in found:
        assert mark["value"].endswith(f" in {spans[mark['span_id']]}")
        assert mark["attrs"] == {}
