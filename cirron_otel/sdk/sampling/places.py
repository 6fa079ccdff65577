"""Samples of the line at which the program's own code is, in the thread that trains.

The innermost frame counts that is neither in an installed package, nor in the standard library, nor
in this package. `sys._current_frames` returns the frames of another thread. A sample takes 20 to
85 us, during which the other thread does not run Python. File, line and function are read, and no
values.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any, Final

from ..tracing.open_scopes import TrainingThread

_USUAL_S: Final = 1.0
_OFTEN: Final = ((30, 0.1), (100, 0.25))
"""Up to so many samples of a training, the time between them is shorter, seconds."""
_SEARCH_S: Final = 10.0
"""The time after the start in which a training is looked for as often, seconds."""
_UNITS: Final = frozenset({"step", "batch", "epoch"})
_MOST_FRAMES: Final = 1000
_MOST_FILES: Final = 10_000
_MOST_TEXT: Final = 160
_FETCH: Final = str(Path("torch/utils/data/_utils/fetch.py"))
_PACKAGES: Final = frozenset({"site-packages", "dist-packages"})
_OF_DATA: Final = ("__getitem__", "__getitems__", "__iter__", "__next__")
_GENERATOR: Final = 0x20
"""The flag of a generator's code (`inspect.CO_GENERATOR`)."""


class Places:
    """Takes the samples of one session, in the sampler's thread."""

    def __init__(self, training: TrainingThread) -> None:
        """`training` is the thread that trains, as far as it is known."""
        self._training = training
        self._directory = _working_directory()
        self._installed = _installed()
        self._shown: dict[str, str | None] = {}
        """The name of each file in samples; None for one of an installed package."""
        self._begun = self.due = time.monotonic()
        """The time of the next sample, seconds."""
        self._recorded = 0.0
        self._trained = 0
        """The number of samples of a training so far."""

    def take(self) -> tuple[Any, int, str] | None:
        """Return the open scope, which is pinned, the time (monotonic ns), and the place.

        None without a frame of the program, or if a sample is not due yet outside of a training.
        """
        scope, at = self._training.pin()
        is_training = _is_training(scope)
        now = time.monotonic()
        self._trained += is_training
        self.due = now + self._interval(now)
        # There is no session, or the phases of a step without detail are not known.
        if not scope._id or getattr(scope, "_is_detailed", None) is False:
            return None
        if not is_training and now - self._recorded < _USUAL_S:
            return None
        name = scope._name if isinstance(scope._name, str) else "?"
        place = self._place(name)
        if place is None or self._training.innermost() is not scope:
            return None
        self._recorded = now
        return scope, at, f"{place} in {name}"

    def _interval(self, now: float) -> float:
        if not self._trained and now - self._begun > _SEARCH_S:
            return _USUAL_S
        return next((each for most, each in _OFTEN if self._trained < most), _USUAL_S)

    def _place(self, scope: str) -> str | None:
        """Return the place of the training thread's innermost frame of the program."""
        frame: Any = sys._current_frames().get(self._training.ident)
        place, of, inner = None, "", None
        for _ in range(_MOST_FRAMES):
            if frame is None:
                break
            code = frame.f_code
            file = self._file(code.co_filename)
            if place is None and file is not None:
                place = file, frame.f_lineno or 0, code.co_name
            if scope == "data_load" and code.co_filename.endswith(_FETCH):
                of = _caller(inner)
                break
            if place is not None and scope != "data_load":
                break
            inner, frame = code, frame.f_back
        del frame
        if place is None:
            return None
        file, line, function = place
        return f"{file}:{line} ({function[:_MOST_TEXT]}){of if of != f' of {function}' else ''}"

    def _file(self, name: str) -> str | None:
        try:
            return self._shown[name]
        except KeyError:
            if len(self._shown) > _MOST_FILES:
                self._shown.clear()
            found = self._shown[name] = self._shown_file(name)
            return found

    def _shown_file(self, name: str) -> str | None:
        """Return a file relative to the working directory, or else its base name."""
        if name.startswith("<"):  # no file: generated code, or a program from standard input
            return name if name in ("<string>", "<stdin>") else None
        directory = self._directory
        path = Path(os.path.normpath(name if directory is None else directory / name))
        if not _PACKAGES.isdisjoint(path.parts):
            return None
        if any(path.is_relative_to(each) for each in self._installed):
            return None
        shown = path.name
        if directory is not None and path.is_relative_to(directory):
            shown = str(path.relative_to(directory))
        return shown[-_MOST_TEXT:]


def _is_training(scope: Any) -> bool:
    """Return whether a scope is a step, a batch or an epoch, or inside of one."""
    while scope is not None and scope._depth:
        if isinstance(scope._name, str) and scope._name in _UNITS:
            return True
        scope = scope._above
    return False


def _caller(code: Any) -> str:
    """Return whether code that a fetch of torch called reads a sample, or makes the batch."""
    if code is None or code.co_filename.endswith(_FETCH):
        return ""
    if code.co_name in _OF_DATA:
        return f" of {code.co_name}"
    return " of __iter__" if code.co_flags & _GENERATOR else " of collate"


def _working_directory() -> Path | None:
    """Return the working directory; None if it was deleted."""
    try:
        return Path.cwd()
    except OSError:
        return None


def _installed() -> set[Path]:
    """Return the directories whose files are not the program's."""
    paths = sysconfig.get_paths()
    found = {Path(paths[name]) for name in ("stdlib", "platstdlib", "scripts") if name in paths}
    found.add(Path(__file__).parents[2])
    return found | {each.resolve() for each in found}
