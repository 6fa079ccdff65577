"""Cases at 0.8 and 1.25 times the threshold of a warning."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from .. import special
from ..building import Family, family
from ..causes import (
    collective,
    first_batches,
    interval,
    spikes,
    start_up,
    steady,
    straggler,
    warm_up,
)
from ..clearness import are_slow_batches, are_spikes, is_interval
from ..settings import COLLECTIVE, DDP, ONE, at_least, without_spikes
from .usual import (
    between_units,
    checkpoints,
    evaluations,
    logs,
    slow_input,
    slow_loss,
    slow_optimizer,
    slow_transfer,
    waiting,
    with_h2d,
    with_parts,
)

FACTORS: Final = (0.8, 1.25)


def at_thresholds() -> tuple[Family, ...]:
    """Cases at 0.8 and 1.25 times the threshold of a warning, of each kind with a price."""
    causes = {
        "INPUT_BOUND": (ONE, slow_input, None), "H2D_BOUND": (with_h2d(ONE), slow_transfer, None),
        "SLOW_FIRST_BATCH": (replace(at_least(ONE, 60), epochs=(2, 4), noise=(0, 0.1)),
                             first_batches, are_slow_batches),
        "SPIKES": (without_spikes(ONE, 100), spikes("forward", regular=False), are_spikes),
        "INPUT_SPIKES": (without_spikes(ONE, 100), spikes("data_load", regular=True,
                                                    kind="INPUT_SPIKES"), are_spikes),
        "SLOW_INTERVAL": (replace(at_least(ONE, 100), noise=(0, 0.08)), interval("forward"),
                          is_interval),
        "STRAGGLER": (DDP, straggler("STRAGGLER", "data_load", "forward"), None),
        "INPUT_STRAGGLER": (DDP, straggler("INPUT_STRAGGLER", "data_load"), None),
        "COMPUTE_STRAGGLER": (DDP, straggler("COMPUTE_STRAGGLER", "forward"), None),
        "H2D_STRAGGLER": (with_h2d(DDP), straggler("H2D_STRAGGLER", "h2d"), None),
        "WAIT_STRAGGLER": (DDP, straggler("WAIT_STRAGGLER", "~end"), None),
        "WAIT_HEAVY": (ONE, waiting, None), "BETWEEN_UNITS": (ONE, between_units, None),
        "OPTIMIZER_HEAVY": (ONE, slow_optimizer, None), "LOSS_HEAVY": (ONE, slow_loss, None),
        "EVALUATION_HEAVY": (ONE, evaluations, None),
        "CHECKPOINT_HEAVY": (ONE, checkpoints, None), "LOGGING_HEAVY": (ONE, logs, None),
        "GARBAGE_COLLECTION": (with_parts(ONE, "gc"),
                               steady("GARBAGE_COLLECTION", "gc", phase=None), None),
        "COMMUNICATION_BOUND": (COLLECTIVE, collective("all_reduce"), None),
        "START_UP": (replace(ONE, extent_s=(90, 900)), start_up, None),
        "WARM_UP": (replace(at_least(ONE, 30), extent_s=(90, 900)), warm_up("WARM_UP", "forward"),
                    None),
        "COMPILATION": (replace(at_least(with_parts(ONE, "compile"), 30), extent_s=(90, 900)),
                        warm_up("COMPILATION", "compile"), None),
    }  # fmt: skip
    families = [
        family(f"{kind} at {factor} of its threshold", setting, cause, kind=kind, weight=factor,
               is_clear=is_clear)
        for kind, (setting, cause, is_clear) in causes.items()
        for factor in FACTORS
    ]  # fmt: skip
    families += [
        family(f"TRACING at {factor} of its threshold", with_parts(ONE, "~trace"),
               steady("TRACING", "~trace"), kind="TRACING", weight=factor,
               change=special.with_overhead("~trace"))
        for factor in FACTORS
    ]  # fmt: skip
    families += [
        family(f"RESTARTED at {factor} of its threshold", at_least(ONE, 100), special.pause,
               kind="RESTARTED", weight=factor, of_plan=special.restarted)
        for factor in FACTORS
    ]  # fmt: skip
    return tuple(families)
