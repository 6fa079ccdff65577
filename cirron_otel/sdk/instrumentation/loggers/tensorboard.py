"""Marks from `SummaryWriter` of torch.utils.tensorboard and of tensorboardX."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ..base import Part
from .instrument import LoggerHooks, argument
from .links import Links
from .scalars import Scalar, logging_call

TAG = "cirron/trace_id"
"""The tag of the text that a writer gets."""
LOG_DIR = "tensorboard.log_dir"


class _Directories:
    """The directories of the writers of a session, which may be of both packages."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin again, for the next session."""
        self.links = Links("tensorboard")
        self.known: set[str] = set()
        self.roots: list[str] = []
        """The directories as paths. `add_hparams` writes into one below another's."""

    def after_fork(self) -> None:
        """Connect the directories with the session of a forked child."""
        self.known.clear()
        self.roots.clear()
        self.links.after_fork()


_directories = _Directories()


class TensorBoardHooks(LoggerHooks):
    """Replaces `add_scalar` and `add_scalars` of a module's `SummaryWriter`."""

    def __init__(self, name: str, module: str) -> None:
        """`name` is the package of `module`."""
        self.name = name
        super().__init__(module)
        self._logger = "tensorboard" if name == "torch" else name

    def parts(self) -> list[Part]:
        """Return the two methods."""
        writer = self.class_named("SummaryWriter")
        return [
            ("add_scalar", partial(self.patches.wrap, writer, "add_scalar", self._scalar)),
            ("add_scalars", partial(self.patches.wrap, writer, "add_scalars", self._scalars)),
        ]

    def _scalar(self, original: Any, writer: Any, args: Any, kwargs: Any) -> Any:
        def scalars() -> Iterator[Scalar]:
            name = argument(args, kwargs, 0, "tag")
            value = argument(args, kwargs, 1, "scalar_value")
            yield str(name), value, argument(args, kwargs, 2, "global_step")

        call = partial(original, writer, *args, **kwargs)
        return logging_call(self._logger, call, scalars, partial(self._link, writer))

    def _scalars(self, original: Any, writer: Any, args: Any, kwargs: Any) -> Any:
        def scalars() -> Iterator[Scalar]:
            group = argument(args, kwargs, 0, "main_tag")
            step = argument(args, kwargs, 2, "global_step")
            for name, value in dict(argument(args, kwargs, 1, "tag_scalar_dict")).items():
                yield f"{group}/{name}", value, step

        call = partial(original, writer, *args, **kwargs)
        return logging_call(self._logger, call, scalars, partial(self._link, writer))

    def _link(self, writer: Any) -> None:
        directory = str(getattr(writer, "log_dir", None) or getattr(writer, "logdir", ""))
        known, roots = _directories.known, _directories.roots
        if directory not in known:
            known.add(directory)
            path = _absolute(directory)
            if not any(path.startswith(f"{each}/") for each in roots):
                roots.append(path)
                _directories.links.add(path, lambda: {LOG_DIR: path}, partial(writer.add_text, TAG))

    def remove(self) -> None:
        """Remove every hook, and forget the session's directories."""
        super().remove()
        _directories.forget()

    def after_fork(self) -> None:
        """In a forked child, record the directories again."""
        _directories.after_fork()


def _absolute(directory: str) -> str:
    """Return an absolute path; the URL of a remote directory is unchanged."""
    return directory if "://" in directory else str(Path(directory).absolute())
