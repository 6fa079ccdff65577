"""Record `data_load`, the fetch of a batch, in a method that all iterators inherit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ...session.errors import record_error
from ...tracing.clock import now
from ...tracing.hidden_frames import strip
from ...tracing.state import CONTEXT, state
from ..patches import Patches
from .configuration import Configuration
from .kinds import LOAD, NO_FETCH, PARTIAL
from .recovery import is_abandoned, start_over
from .tracker import Tracker
from .trackers import Trackers
from .unclosed_phases import close_abandoned, end_partial_forward

_get = CONTEXT.get


class Loaders:
    """Replaces `__next__` of the iterators' base class, so that iterators keep their type."""

    def __init__(self, trackers: Trackers) -> None:
        self._trackers = trackers

    def install(self, patches: Patches) -> None:
        """Replace the method. Raises AttributeError if this torch has no such class."""
        from torch.utils.data import dataloader  # noqa: PLC0415

        original = dataloader._BaseDataLoaderIter.__next__
        replacement = recorded_next(self._trackers, original)
        patches.replace(dataloader._BaseDataLoaderIter, "__next__", replacement)

    def install_nodes(self, patches: Patches, module: Any) -> None:
        """Hook the iterator of torchdata's `Loader`; `module` is `torchdata.nodes.loader`.

        Raises AttributeError if this torchdata has no such class.
        """
        owner = module.LoaderIterator
        patches.replace(owner, "__next__", recorded_next(self._trackers, owner.__next__))


def recorded_next(trackers: Trackers, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a `__next__` that records `original`."""

    def __next__(self: Any) -> Any:  # noqa: N807
        try:
            tracker = trackers.t
            if tracker.is_plain and not tracker.inside:
                try:
                    loop = tracker.loop
                    if loop is not None and loop.expected is None:
                        has_step = _get() is tracker.context  # the framework has begun the step
                    else:
                        has_step = tracker.steps.turn_over(
                            self if tracker.own_pass is None else source_of(tracker, self)
                        )
                except BaseException as error:
                    has_step = False
                    tracker.failed(error)
                load = tracker.enter_plain(LOAD, "data_load", None, now()) if has_step else None
                if load is not None:
                    try:
                        batch = original(self)
                    except BaseException as error:
                        fail(tracker, source_of(tracker, self), load, error)
                        raise
                    end = now()
                    tracker.was_forward = False
                    tracker.exit_plain(load, LOAD, end)
                    return batch
            if tracker.has_failed:
                start_over(tracker)
            if tracker.is_ahead and tracker.inside == LOAD:
                return original(self)  # the fetch is part of the open `data_load`
            if _is_none(tracker):
                return original(self)
            return fetch(tracker, self, original)
        except BaseException as error:
            strip(error)
            raise

    return __next__


def announce_loaders(
    patches: Patches, configuration: Configuration, before: Callable[[], object] | None
) -> None:
    """Call `before` ahead of the creation of each iterator, and read the iterator's loader.

    Raises AttributeError if this torch has no such class.
    """
    from torch.utils.data import dataloader  # noqa: PLC0415

    original = dataloader._BaseDataLoaderIter.__init__

    def __init__(self: Any, *args: Any, **named: Any) -> None:  # noqa: N807
        try:
            if before is not None:
                before()
            original(self, *args, **named)
            try:
                configuration.iterator_created(self, args[0] if args else named.get("loader"))
            except Exception as error:
                record_error("torch", error)
        except BaseException as error:
            strip(error)
            raise

    patches.replace(dataloader._BaseDataLoaderIter, "__init__", __init__)


def _is_none(tracker: Tracker) -> bool:
    """Return True if a fetch is not recorded: it is part of an open phase, or recording is off."""
    if tracker.inside & NO_FETCH:
        try:
            if tracker.inside & PARTIAL:
                end_partial_forward(
                    tracker
                )  # only the next call shows the end of a partial forward
            if tracker.inside & NO_FETCH and is_abandoned(tracker):
                start_over(tracker)
        except BaseException as error:
            tracker.failed(error)
    return bool(tracker.inside & NO_FETCH or not state.recording or tracker.torch_state.is_over)


def fetch(tracker: Tracker, iterator: Any, original: Callable[[Any], Any]) -> Any:
    """Return the result of `original(iterator)`, recorded as the `data_load` of a step."""
    load, loader_iterator = None, iterator
    try:
        if tracker.inside and not _is_in_closure(tracker):
            close_abandoned(tracker)
        iterator = source_of(tracker, iterator)
        load = tracker.before_fetch(iterator)
        tracker.was_forward = False
    except BaseException as error:
        tracker.failed(error)
    if load is None:
        return original(loader_iterator)
    try:
        batch = original(loader_iterator)
    except BaseException as error:
        fail(tracker, iterator, load, error)
        raise
    tracker.exit(load, LOAD)
    tracker.fetched(load, batch)
    return batch


def source_of(tracker: Tracker, iterator: Any) -> Any:
    """Return the object whose pass a fetch belongs to: the iterator, or the generator around it."""
    own_pass = tracker.own_pass
    return own_pass if own_pass is not None and own_pass.represents(iterator) else iterator


def _is_in_closure(tracker: Tracker) -> bool:
    """Return whether an optimizer's closure fetches, in a step of a framework's loop.

    Such a loop closes what an exception has left open when it begins the next step.
    """
    stepping = tracker.stepping
    return tracker.loop is not None and stepping is not None and stepping.has_closure


def fail(tracker: Tracker, iterator: Any, load: Any, error: BaseException) -> None:
    """Close the `data_load` of a fetch that raised: the iterator was exhausted, or it failed."""
    if isinstance(error, StopIteration):
        exhausted(tracker, iterator, load)
    else:
        tracker.exit(load, LOAD, error)


def exhausted(tracker: Tracker, iterator: Any, load: Any) -> None:
    """End the pass after a fetch that returned no batch."""
    tracker.drop(load)
    try:
        tracker.passes.steps.undo_fetch(load)
        tracker.passes.exhausted(iterator)
        if tracker.own_pass is not None and tracker.own_pass is iterator:
            tracker.own_pass.forget()
    except BaseException as error:
        tracker.failed(error)


class Ahead(Iterator[Any]):
    """Wraps an iterator that fetches ahead; returning a batch to the loop counts as a fetch."""

    def __init__(self, recorded: Callable[[Any], Any], inner: Any) -> None:
        """`recorded` is the result of `recorded_next` for `inner_next`."""
        self._recorded = recorded
        self._inner = inner

    def __next__(self) -> Any:
        """Return the next batch."""
        try:
            return self._recorded(self)
        except BaseException as error:
            strip(error)
            raise

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the inner generator, such as `close`."""
        return getattr(self._inner, name)


def inner_next(trackers: Trackers) -> Callable[[Ahead], Any]:
    """Return a function that returns the inner iterator's next batch, without recording it."""

    def inner_next(ahead: Ahead) -> Any:
        tracker = trackers.t
        tracker.is_ahead = True
        try:
            return next(ahead._inner)
        finally:
            tracker.is_ahead = False

    return inner_next


class Accelerate:
    """Wraps Accelerate's loaders, which fetch one batch ahead of the loop, or skip batches.

    The loaders' `__iter__` is a generator function.
    """

    def __init__(self, trackers: Trackers) -> None:
        self._trackers = trackers

    def install(self, patches: Patches, module: Any) -> None:
        """Hook `module`, which is `accelerate.data_loader`."""
        for name in ("DataLoaderShard", "DataLoaderDispatcher", "SkipDataLoader"):
            owner = getattr(module, name, None)
            if owner is not None:
                self._wrap(patches, owner)

    def _wrap(self, patches: Patches, owner: Any) -> None:
        original = owner.__iter__
        recorded = recorded_next(self._trackers, inner_next(self._trackers))

        def __iter__(self: Any) -> Any:  # noqa: N807
            try:
                return Ahead(recorded, original(self))
            except BaseException as error:
                strip(error)
                raise

        patches.replace(owner, "__iter__", __iter__)


class RayTrain:
    """Wraps the loaders of `ray.train.torch.prepare_data_loader`.

    Such a loader is its own iterator. Its `__iter__` fetches the first batch, and each `__next__`
    fetches the batch after the one that it returns.
    """

    def __init__(self, trackers: Trackers) -> None:
        self._trackers = trackers

    def install(self, patches: Patches, module: Any) -> None:
        """Hook `module`, which is `ray.train.torch.train_loop_utils`."""
        owner = getattr(module, "_WrappedDataLoader", None)
        if owner is None:
            return
        trackers, original = self._trackers, owner.__iter__
        recorded = recorded_next(trackers, inner_next(trackers))

        def __iter__(self: Any) -> Any:  # noqa: N807
            try:
                return Ahead(recorded, _fetch_first(trackers.t, partial(original, self)))
            except BaseException as error:
                strip(error)
                raise

        patches.replace(owner, "__iter__", __iter__)


def _fetch_first(tracker: Tracker, begin: Callable[[], Any]) -> Any:
    """Return `begin()`, which fetches a batch ahead of the pass that it belongs to.

    The fetch is a `data_load` of the scope around the pass, unless a step or a phase is open there.
    """
    is_free = tracker.iteration is None and not tracker.inside
    load = tracker.enter(LOAD, None) if is_free else None
    before, tracker.inside = tracker.inside, tracker.inside or LOAD
    was_ahead, tracker.is_ahead = tracker.is_ahead, True
    try:
        return begin()
    finally:
        tracker.inside, tracker.is_ahead = before, was_ahead
        if load is not None:
            tracker.exit(load, LOAD)
