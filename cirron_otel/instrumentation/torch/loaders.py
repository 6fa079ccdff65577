"""`data_load`: the fetch of a batch, by what every iterator of a DataLoader inherits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ...sdk.state import state
from ..patches import Patches
from .kinds import LOAD, NO_FETCH, PARTIAL
from .left_open import interrupt, settle_down
from .recovery import is_abandoned, start_over
from .tracker import Tracker
from .trackers import Trackers


class Loaders:
    """Replaces `__next__` on the class, so that iterators stay what they are."""

    def __init__(self, trackers: Trackers) -> None:
        self._trackers = trackers

    def install(self, patches: Patches) -> None:
        """Raises AttributeError where torch has no such class any more."""
        from torch.utils.data import dataloader  # noqa: PLC0415

        trackers = self._trackers
        original = dataloader._BaseDataLoaderIter.__next__

        def __next__(self: Any) -> Any:  # noqa: N807
            tracker = trackers.t
            if tracker.is_plain and not tracker.inside:
                try:
                    has_turned = tracker.steps.turn_over(self)
                except BaseException as error:
                    has_turned = False
                    tracker.failed(error)
                load = tracker.enter_plain(LOAD, "data_load", None) if has_turned else None
                if load is not None:
                    try:
                        batch = original(self)
                    except BaseException as error:
                        fail(tracker, self, load, error)
                        raise
                    tracker.was_forward = False
                    tracker.exit_plain(load, LOAD)
                    return batch
            if tracker.has_failed:
                start_over(tracker)
            if _is_none(tracker):
                return original(self)
            return fetch(tracker, self, original)

        patches.replace(dataloader._BaseDataLoaderIter, "__next__", __next__)


def announce_loaders(patches: Patches, tell: Callable[[], object]) -> None:
    """Call `tell` before each iterator is made. Raises AttributeError as `install`."""
    from torch.utils.data import dataloader  # noqa: PLC0415

    original = dataloader._BaseDataLoaderIter.__init__

    def __init__(self: Any, *args: Any, **named: Any) -> None:  # noqa: N807
        tell()
        original(self, *args, **named)

    patches.replace(dataloader._BaseDataLoaderIter, "__init__", __init__)


def _is_none(tracker: Tracker) -> bool:
    """Whether a fetch now is none of a loop's: it is a part of something, or nobody records."""
    if tracker.inside & NO_FETCH:
        try:
            if tracker.inside & PARTIAL:
                interrupt(tracker)  # only what comes next tells that a model's `forward` is over
            if tracker.inside & NO_FETCH and is_abandoned(tracker):
                start_over(tracker)
        except BaseException as error:
            tracker.failed(error)
    return bool(tracker.inside & NO_FETCH or not state.recording or tracker.shared.is_over)


def fetch(tracker: Tracker, iterator: Any, original: Callable[[Any], Any]) -> Any:
    """What `original(iterator)` gives, as the `data_load` of a step."""
    load = None
    try:
        if tracker.inside:
            settle_down(tracker)
        load = tracker.before_fetch(iterator)
        tracker.was_forward = False
    except BaseException as error:
        tracker.failed(error)
    if load is None:
        return original(iterator)
    try:
        batch = original(iterator)
    except BaseException as error:
        fail(tracker, iterator, load, error)
        raise
    tracker.exit(load, LOAD)
    tracker.fetched(load, batch)
    return batch


def fail(tracker: Tracker, iterator: Any, load: Any, error: BaseException) -> None:
    """A fetch raised: there was nothing left, or something went wrong."""
    if isinstance(error, StopIteration):
        exhausted(tracker, iterator, load)
    else:
        tracker.exit(load, LOAD, error)


def exhausted(tracker: Tracker, iterator: Any, load: Any) -> None:
    """A fetch found nothing: the pass is over."""
    tracker.drop(load)
    try:
        tracker.passes.steps.undo_fetch(load)
        tracker.passes.exhausted(iterator)
    except BaseException as error:
        tracker.failed(error)


class Ahead(Iterator[Any]):
    """An iterator that fetches ahead, as the loop sees it: what it hands out is a batch."""

    def __init__(self, trackers: Trackers, inner: Any) -> None:
        self._trackers = trackers
        self._inner = inner

    def __next__(self) -> Any:
        """The next batch."""
        tracker = self._trackers.t
        if tracker.has_failed:
            start_over(tracker)
        if _is_none(tracker):
            return next(self._inner)
        return fetch(tracker, self, _next_of)

    def __getattr__(self, name: str) -> Any:
        """What a generator has besides, e.g. `close`."""
        return getattr(self._inner, name)


def _next_of(ahead: Ahead) -> Any:
    return next(ahead._inner)


class Accelerate:
    """Accelerate's loaders fetch one batch ahead of the loop; their `__iter__` is a generator."""

    def __init__(self, trackers: Trackers) -> None:
        self._trackers = trackers

    def install(self, patches: Patches, module: Any) -> None:
        """`module` is `accelerate.data_loader`."""
        for name in ("DataLoaderShard", "DataLoaderDispatcher"):
            owner = getattr(module, name, None)
            if owner is not None:
                self._wrap(patches, owner)

    def _wrap(self, patches: Patches, owner: Any) -> None:
        trackers, original = self._trackers, owner.__iter__

        def __iter__(self: Any) -> Any:  # noqa: N807
            return Ahead(trackers, original(self))

        patches.replace(owner, "__iter__", __iter__)
