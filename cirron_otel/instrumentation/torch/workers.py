"""The processes of a DataLoader: each with a session of its own, `fetch` and `collate` in it.

Torch's loop of a worker is replaced by an object that opens the session, and then calls that loop.
It is what a spawned process is given to run, too: such a process imports nothing of ours by itself.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from ...sdk.errors import record_error
from ...sdk.scope import Scope
from ..patches import Patches

FETCH, COLLATE = "fetch", "collate"
NAME = "_worker_loop"
TORCHDATA = "torchdata.stateful_dataloader.stateful_dataloader"

End = Callable[[], object]
Open = Callable[[int], End]
"""Opens the session of a worker, by its id, and returns what ends it. It may be pickled."""


class Workers:
    """Replaces the loops of torch's and of torchdata's workers."""

    def __init__(self, opening: Callable[[], Open], leave: Callable[[], None]) -> None:
        """`opening` gives what opens a session; `leave` takes the parent's hooks off in a child."""
        self._opening, self._leave = opening, leave

    def install(self, patches: Patches) -> None:
        """Raises AttributeError or ValueError where torch is not as expected."""
        from torch.utils.data._utils import worker  # noqa: PLC0415

        self.replace(patches, worker)

    def replace(self, patches: Patches, module: Any) -> None:
        """Replace the loop that `module` starts its processes with. Raises as `install`."""
        original = getattr(module, NAME)
        at = list(inspect.signature(original).parameters).index("worker_id")
        made = WorkerLoop(module.__name__, at, self._opening, self._leave, original)
        patches.replace(module, NAME, made)


class WorkerLoop:
    """The loop of a worker, in a session."""

    def __init__(
        self,
        module: str,
        at: int,
        opening: Callable[[], Open],
        leave: Callable[[], None],
        original: Callable[..., None] | None = None,
    ) -> None:
        """`at` is the position of the worker's id among the loop's arguments."""
        self._module, self._at, self._opening, self._leave = module, at, opening, leave
        self._original = original

    def __reduce__(self) -> Any:
        """For a spawned process, where the loop has its own name still."""
        return spawned, (self._module, self._at, self._opening())

    def __call__(self, *args: Any) -> None:
        """Torch's loop."""
        original = self._original or getattr(importlib.import_module(self._module), NAME)
        end = self._begin(args)
        try:
            original(*args)
        finally:
            end()

    def _begin(self, args: tuple[Any, ...]) -> End:
        try:
            worker = int(args[self._at])
            self._leave()
            end = self._opening()(worker)
            watch_fetches(worker)
        except Exception as error:
            record_error("worker", error)
            return _nothing
        return end


def spawned(module: str, at: int, opened: Open) -> WorkerLoop:
    """The loop as a spawned process gets it."""
    return WorkerLoop(module, at, lambda: opened, _nothing)


def watch_fetches(worker: int) -> None:
    """From here on every batch that this process fetches is a scope. Raises AttributeError."""
    from torch.utils.data._utils import fetch  # noqa: PLC0415

    fetches = Fetches(worker)
    for owner in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        owner.fetch = fetches.around(owner.fetch)


class Fetches:
    """What one worker fetched."""

    def __init__(self, worker: int) -> None:
        self._worker = worker
        self._count = 0

    def around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A method that fetches a batch in a scope."""

        def fetch(fetcher: Any, index: Any) -> Any:
            given = fetcher.collate_fn
            scope = Scope(FETCH, self._count, worker=self._worker)
            self._count += 1
            scope.__enter__()
            try:
                fetcher.collate_fn = Scope(COLLATE)(given)
                batch = original(fetcher, index)
            except StopIteration:
                self._count -= 1
                scope.drop()  # there was nothing left
                scope.__exit__(None, None, None)
                raise
            except BaseException as error:
                scope.__exit__(type(error), error, error.__traceback__)
                raise
            finally:
                fetcher.collate_fn = given
            scope.__exit__(None, None, None)
            return batch

        return fetch


def _nothing() -> None:
    pass
