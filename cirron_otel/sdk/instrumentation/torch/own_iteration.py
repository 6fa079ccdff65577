"""Passes over loaders that define `__iter__` themselves, as a generator.

Such a generator may read an iterator that is never exhausted, and end after its own count of
batches. The pass is then the generator, not the iterator.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Generator
from types import GeneratorType
from typing import Any

from ...session.errors import record_error
from ...tracing.hidden_frames import strip
from ..patches import Patches
from .own_pass import OwnPass
from .tracker import Tracker
from .trackers import Trackers


class OwnIteration:
    """Watches the generators of loaders."""

    def __init__(self, trackers: Trackers) -> None:
        self._trackers = trackers

    def install(self, patches: Patches) -> None:
        """Wrap `__iter__` of the subclasses of DataLoader, those of the future included."""
        from torch.utils.data import DataLoader  # noqa: PLC0415

        patches.wrap_in_subclasses(DataLoader, "__iter__", self._wrapped)

    def _wrapped(self, original: Any) -> Any:
        trackers = self._trackers
        if inspect.isgeneratorfunction(original):
            return _generator_function(trackers, original)

        @functools.wraps(original)
        def __iter__(self: Any) -> Any:  # noqa: N807
            try:
                batches = original(self)
            except BaseException as error:
                strip(error)
                raise
            if type(batches) is not GeneratorType:
                return batches
            return _watched_if_traced(trackers, batches, self)

        return __iter__


def _generator_function(trackers: Trackers, original: Any) -> Any:
    """Return the replacement of a generator function, which is one, too."""

    @functools.wraps(original)
    def __iter__(self: Any) -> Any:  # noqa: N807
        try:
            return (yield from _watched_if_traced(trackers, original(self), self))
        except BaseException as error:
            strip(error)
            raise

    return __iter__


def _watched_if_traced(trackers: Trackers, batches: Any, loader: Any) -> Any:
    try:
        # A copy of the loader's class in another process has other trackers.
        if type(trackers) is Trackers:
            return _watched(trackers, batches, OwnPass(loader))
    except Exception as error:
        record_error("torch", error)
    return batches


def _watched(trackers: Trackers, batches: Any, own_pass: OwnPass) -> Generator[Any, Any, Any]:
    """Run a generator, and end its pass with it; pass on send, throw, and close."""
    sent: Any = None
    thrown: BaseException | None = None
    while True:
        tracker = trackers.t
        outer, tracker.own_pass = tracker.own_pass, own_pass
        try:
            batch = batches.send(sent) if thrown is None else batches.throw(thrown)
        except StopIteration as end:
            _end(tracker, own_pass)
            return end.value
        except BaseException as error:
            strip(error)
            raise
        finally:
            tracker.own_pass = outer
        sent = thrown = None
        try:
            sent = yield batch
        except GeneratorExit:
            batches.close()
            raise
        except BaseException as error:
            thrown = error


def _end(tracker: Tracker, own_pass: OwnPass) -> None:
    """End the pass: the generator has yielded its last batch. Raises nothing."""
    try:
        tracker.passes.own_pass_ended(own_pass)
    except BaseException as error:
        tracker.failed(error)
