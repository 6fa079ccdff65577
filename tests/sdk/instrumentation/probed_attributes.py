"""Call every attribute that the hooks replace, and print how its frames differ from the original's.

The arguments are the modules to import. Each replaced attribute is a probe when the
session opens: once armed, it warns about its caller, and raises. As JSON: the number of probes that
were called, and a text for each that saw a frame of cirron_otel.
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from types import SimpleNamespace, TracebackType
from typing import Any

import cirron_otel as ci
from cirron_otel.sdk.instrumentation.patches import Patches


class _Probes:
    is_armed = False


class ProbedError(Exception):
    """Raised by a probe."""


def probe_of(original: Any) -> Any:
    """Return a function in place of `original`, which warns and raises if it is armed."""

    def probe(*args: Any, **kwargs: Any) -> Any:
        if not _Probes.is_armed:
            return original(*args, **kwargs)
        warnings.warn("probed", stacklevel=2)
        raise ProbedError

    if hasattr(original, "__name__"):
        functools.update_wrapper(probe, original)
    return probe


def replaced(open_session: Callable[[], Any]) -> list[tuple[Any, str, Any]]:
    """Return the attributes that a session replaces, with the originals as they are stored."""
    found: dict[tuple[int, str], tuple[Any, str, Any]] = {}
    replace = Patches.replace

    def noted(self: Patches, owner: Any, name: str, replacement: Any) -> Any:
        found.setdefault((id(owner), name), (owner, name, vars(owner).get(name)))
        return replace(self, owner, name, replacement)

    Patches.replace = noted  # type: ignore[method-assign]
    open_session()
    ci.shutdown()
    Patches.replace = replace  # type: ignore[method-assign]
    return [each for each in found.values() if each[2] is not None]


def open_session() -> None:
    ci.profile(
        output_dir=tempfile.mkdtemp(), exporters="none", join="none", handle_signals=False,
        workers=True, digest="tensors",
    )  # fmt: skip


def files_of(trace: TracebackType | None) -> list[str]:
    files = []
    while trace is not None:
        files.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    return files


def call(name: str, function: Any) -> str | None:
    """Call with as many arguments as the replacement accepts; "" if nothing differs."""
    for count in (1, 2, 3, 4, 0):
        things = [new_thing() for _ in range(count)]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                function(*things)
                line = sys._getframe().f_lineno
            except ProbedError as error:
                line = error.__traceback__.tb_lineno  # type: ignore[union-attr]
                if files_of(error.__traceback__) != [__file__, __file__]:
                    return f"{name}: the traceback has {files_of(error.__traceback__)}"
                places = [(each.filename, each.lineno) for each in caught]
                return "" if (__file__, line) in places else f"{name}: {places}"
            except TypeError:
                continue
            except Exception as error:  # not the probe's, so it is not called in this way
                return None if not isinstance(error, ProbedError) else ""
    return None


def call_all(attributes: list[tuple[Any, str, Any]]) -> tuple[list[str], list[str]]:
    """Call each attribute; return the differences, and the names that reached no probe."""
    different, missed = [], []
    for owner, name, _ in attributes:
        where = f"{getattr(owner, '__module__', '')} {getattr(owner, '__name__', owner)}.{name}"
        function = getattr(owner, name)
        _Probes.is_armed = True
        outcome = call(where, function)
        _Probes.is_armed = False
        if outcome is None:
            missed.append(where)
        elif outcome:
            different.append(outcome)
    return different, missed


def new_thing() -> Any:
    """Return an argument: a module if torch is imported."""
    torch: Any = sys.modules.get("torch")
    return SimpleNamespace() if torch is None else torch.nn.Linear(2, 2)


def call_all_in_a_step(attributes: list[tuple[Any, str, Any]]) -> tuple[list[str], list[str]]:
    """Call each attribute in the middle of a training loop."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    result: tuple[list[str], list[str]] = [], []
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number, (x,) in enumerate(DataLoader(TensorDataset(torch.rand(6, 2)), 2)):
        optimizer.zero_grad()
        model(x).sum().backward()
        if number == 1:
            result = call_all(attributes)
        optimizer.step()
    return result


def main() -> None:
    """Probe the attributes outside of a session's steps, in a scope, and in a step."""
    for module in sys.argv[1:]:
        importlib.import_module(module)
    if "torch" in sys.modules:
        from cirron_otel.sdk.instrumentation.torch import cuda

        cuda.devices = lambda: frozenset({"meta"})
    attributes = replaced(open_session)
    for owner, name, stored in attributes:
        probe = probe_of(getattr(owner, name))
        setattr(owner, name, staticmethod(probe) if isinstance(stored, staticmethod) else probe)
    open_session()
    results = [call_all(attributes)]
    if "torch" in sys.modules:
        results.append(call_all_in_a_step(attributes))
    with ci.scope("own"):
        results.append(call_all(attributes))
    different = sorted({text for texts, _ in results for text in texts})
    missed = sorted({name for _, names in results for name in names})
    print(json.dumps({"called": len(attributes), "different": different, "missed": missed}))


main()
