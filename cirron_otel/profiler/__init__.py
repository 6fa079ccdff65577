"""The composition root: sessions, opened and closed. One is open in a process at a time."""

from ..sdk.inference import inference
from ..sdk.joining import inject
from ..sdk.loops import batches, epochs
from ..sdk.mark import mark
from ..sdk.snapshots import watch
from .cirron import Cirron, flush, get_default, health, profile, shutdown, trace
from .handle import Profiler
from .processor import CirronSpanProcessor
from .run_list import runs

__all__ = [
    "Cirron",
    "CirronSpanProcessor",
    "Profiler",
    "batches",
    "epochs",
    "flush",
    "get_default",
    "health",
    "inference",
    "inject",
    "mark",
    "profile",
    "runs",
    "shutdown",
    "trace",
    "watch",
]
