"""What the torch section measures: its tables, the subjects of each, and their bars."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

CLOCKS = {
    "step": "median step",
    "wall": "wall",
    "unqueued": "wall, running",
    "thread": "thread cpu",
    "process": "process cpu",
}
"""What a block reports, and its heading; all but the first are means of the block.

`wall, running` is the wall time less what the training thread spent in the queue for a core, so
that other work on the machine does not count; waiting for the interpreter's lock does.
"""

Block = dict[str, float]
"""µs a step by each of CLOCKS."""
Round = dict[str, Block]
"""A block of each subject, by label."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    steps: int = 400
    """Of an epoch: fewer records than wake our flush thread before its time."""
    rounds: int = 5
    """Of a generation, before and after the tools are installed."""
    alone_rounds: int = 20
    """The same of the training thread alone: short blocks, so that many even the machine out."""
    generations: int = 3
    flushing_epochs: int = 8
    """Of a block while everything flushes: long beside the tools' intervals of one second."""
    long_steps: int = 100
    long_rounds: int = 30
    long_products: int = 2
    """In each layer of the longer step: 10 ms."""
    untrained_rounds: int = 15
    """Of each row of `torch_untrained`."""
    is_forked: bool = False
    """Whether the workers are forks of one process for each interpreter: see worker_processes."""


TINY = Sizes(10, 1, 1, 1, 1, 2, 1, 2, 1, is_forked=True)
"""Enough to see that everything runs."""


@dataclass(frozen=True)
class Subject:
    """One row: a tool with its options."""

    label: str
    tool: str
    """A key of SUBJECTS in torch_worker.py."""
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Bar:
    """`label` adds at most `share` of what `beside` adds, or of the bare step itself."""

    label: str
    beside: str
    share: float


@dataclass(frozen=True)
class Table:
    """What is measured together."""

    title: str
    subjects: tuple[Subject, ...]
    work: dict[str, int]
    clock: str
    """The one of CLOCKS that the bars are about."""
    bars: tuple[Bar, ...]
    rounds: int
    """Of a generation, before and after the tools are installed."""
    epochs: int = 1
    """Of a block."""
    is_held_back: bool = False
    """Whether everything is flushed between the blocks, and nothing within them."""
    is_on_and_off: bool = False
    """Whether one process trains all blocks, its tool turned on and off: bare, and one subject."""


BARE, OURS, DETAIL, BY_HAND = "bare", "cirron-otel", "cirron-otel, detail_every=10", "by hand"
CIRRON_SDK, TRACEML_AI = "cirron-sdk", "traceml-ai"
_HELD_BACK = {"flush_interval": 3600.0}


def tables(sizes: Sizes) -> list[Table]:
    """All of it; the neighbours may be missing later."""
    short = {"width": 64, "batch": 8, "steps": sizes.steps}
    long = short | {"steps": sizes.long_steps, "products": sizes.long_products}
    bare, ours = Subject(BARE, BARE), Subject(OURS, OURS)
    alone = Table(
        "the training thread alone, flushing held back",
        (
            bare,
            *(Subject(tool, tool, _HELD_BACK) for tool in (OURS, BY_HAND, CIRRON_SDK)),
        ),
        short,
        "thread",
        (Bar(OURS, CIRRON_SDK, 0.35),),
        sizes.alone_rounds,
        is_held_back=True,
    )
    flushing = Table(
        "everything on, and flushing",
        (
            bare,
            ours,
            Subject(DETAIL, OURS, {"detail_every": 10}),
            Subject(CIRRON_SDK, CIRRON_SDK),
            Subject(TRACEML_AI, TRACEML_AI),
        ),
        short,
        "unqueued",
        (
            Bar(OURS, CIRRON_SDK, 0.7),
            Bar(OURS, TRACEML_AI, 0.4),
            Bar(DETAIL, CIRRON_SDK, 0.35),
        ),
        sizes.rounds,
        sizes.flushing_epochs,
    )
    longer = Table(
        "a longer step, on and off in one process",
        (bare, ours),
        long,
        "unqueued",
        (Bar(OURS, BARE, 0.01),),
        sizes.long_rounds,
        is_on_and_off=True,
    )
    return [alone, flushing, longer]
