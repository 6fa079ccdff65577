"""Callbacks after imports: once each, without importing a module or disturbing other finders."""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.util
import inspect
import sys
import threading
from collections.abc import Iterator
from functools import partial
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from cirron_otel.sdk.instrumentation.installing import ImportWatcher
from cirron_otel.sdk.session.errors import errors

NAME = "cirron_otel_test_module"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a module that is not imported yet."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    file = tmp_path / f"{NAME}.py"
    file.write_text("VALUE = 1\n")
    return file


@pytest.fixture
def imports() -> Iterator[ImportWatcher]:
    made, before = ImportWatcher(), list(sys.meta_path)
    yield made
    made.remove()
    assert sys.meta_path == before


@pytest.fixture
def met(imports: ImportWatcher, source: Path) -> list[ModuleType]:
    """The module, once for each callback."""
    found: list[ModuleType] = []
    imports.on(NAME, found.append)
    assert sys.meta_path[0] is imports
    return found


def test_callback_runs_once_per_import(met: list[ModuleType]) -> None:
    module = importlib.import_module(NAME)
    assert met == [module]
    assert module.VALUE == 1
    assert type(module.__loader__) is SourceFileLoader
    assert module.__spec__ is not None
    assert type(module.__spec__.loader) is SourceFileLoader
    assert inspect.getsource(module) == "VALUE = 1\n"
    importlib.reload(module)
    assert met == [module]


def test_callback_for_an_imported_module_runs_immediately(
    imports: ImportWatcher, source: Path
) -> None:
    module, met = importlib.import_module(NAME), []
    imports.on(NAME, met.append)
    assert met == [module]
    assert imports not in sys.meta_path


def test_find_spec_does_not_count_as_an_import(met: list[ModuleType]) -> None:
    """Libraries check with `importlib.util.find_spec("torch") is not None`."""
    for _ in range(2):
        spec = importlib.util.find_spec(NAME)
        assert spec is not None
        assert spec.loader is not None
        assert copy.copy(spec.loader).get_source(NAME) == "VALUE = 1\n"  # type: ignore[attr-defined]
    assert met == []
    importlib.import_module(NAME)
    assert met == [sys.modules[NAME]]


def test_failed_import_does_not_run_the_callback(met: list[ModuleType], source: Path) -> None:
    source.write_text("raise OSError('no library')\n")
    with pytest.raises(OSError, match="no library"):
        importlib.import_module(NAME)
    assert met == []
    source.write_text("VALUE = 22\n")
    importlib.invalidate_caches()
    assert met == []
    module = importlib.import_module(NAME)
    assert met == [module]


def test_callback_for_a_lazy_module_runs_on_its_execution(met: list[ModuleType]) -> None:
    spec = importlib.util.find_spec(NAME)
    assert spec is not None
    assert spec.loader is not None
    spec.loader = loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    assert met == []
    assert module.VALUE == 1
    assert met == [module]


def test_a_module_that_another_thread_imports_just_now(
    imports: ImportWatcher, source: Path
) -> None:
    """Its import began before the callback was registered: a later scan finds it."""
    source.write_text("import threading\nSTARTED.set()\nassert GO.wait(60)\n")
    started, go, met = threading.Event(), threading.Event(), []
    import builtins

    with contextlib.ExitStack() as stack:
        for name, event in {"STARTED": started, "GO": go}.items():
            setattr(builtins, name, event)
            stack.callback(delattr, builtins, name)
        thread = threading.Thread(target=importlib.import_module, args=[NAME])
        thread.start()
        assert started.wait(60)
        imports.on(NAME, met.append)
        imports.rescan()
        assert met == []
        go.set()
        thread.join()
    imports.rescan()
    imports.rescan()
    assert met == [sys.modules[NAME]]


def test_callbacks_registered_during_the_import_run_after_it(
    imports: ImportWatcher, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A framework imports torch, and with torch a session begins: no scan is necessary."""
    met: list[tuple[ModuleType, bool]] = []

    def begin() -> None:
        for _ in range(2):
            imports.on(NAME, lambda module: met.append((module, hasattr(module, "VALUE"))))

    monkeypatch.setattr("builtins.BEGIN", begin, raising=False)
    source.write_text("BEGIN()\nVALUE = 1\n")
    module = importlib.import_module(NAME)
    assert met == [(module, True), (module, True)]
    assert type(module.__spec__) is ModuleSpec
    assert not getattr(module.__spec__, "_initializing", True)


def test_callback_registered_during_a_failed_import_does_not_run(
    imports: ImportWatcher, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    met: list[ModuleType] = []
    begin = partial(imports.on, NAME, met.append)
    monkeypatch.setattr("builtins.BEGIN", begin, raising=False)
    source.write_text("BEGIN()\nraise ValueError\n")
    with pytest.raises(ValueError):  # noqa: PT011
        importlib.import_module(NAME)
    assert met == []


def test_failing_callback_does_not_break_the_import(imports: ImportWatcher, source: Path) -> None:
    def fail(_: ModuleType) -> None:
        raise ValueError("not as expected")

    before = errors.counts["hooks"]
    imports.on(NAME, fail)
    assert importlib.import_module(NAME).VALUE == 1
    assert errors.counts["hooks"] == before + 1


def test_no_callback_runs_after_removal(
    met: list[ModuleType], imports: ImportWatcher, source: Path
) -> None:
    imports.remove()
    imports.remove()
    importlib.import_module(NAME)
    imports.rescan()
    assert met == []


def test_a_module_that_there_is_not(imports: ImportWatcher) -> None:
    imports.on("cirron_otel_no_such_module", lambda _: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("cirron_otel_no_such_module")
    assert importlib.util.find_spec("cirron_otel_no_such_module") is None
