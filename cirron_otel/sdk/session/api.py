"""The public classes and functions of the SDK. A process has at most one session at a time."""

from ..snapshots.recorder import watch
from ..tracing.inference import inference
from ..tracing.loops import batches, epochs
from ..tracing.mark import mark
from .cirron import Cirron, flush, get_default, health, profile, shutdown, trace
from .handle import Profiler
from .joining import inject
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
