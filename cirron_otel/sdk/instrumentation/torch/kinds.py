"""The kinds of phases, as bits: one integer represents the open phases of a thread."""

LOAD = 1
FORWARD = 2
LOSS = 4
BACKWARD = 8
OPTIMIZER = 16
TRANSFER = 32
RECOMPUTE = 64
COMPILED = 128
"""Set with FORWARD: a call to a compiled function, which may turn out to be something else."""
PARTIAL = 256
"""Set with FORWARD: a model whose `forward` was called directly and discovered while it ran."""
GRAD = 32768
"""Set with BACKWARD: `torch.autograd.grad`, which adds nothing to the gradients of parameters."""
AHEAD = 65536
"""A module without parameters that is not a loss. It is not a phase, but modules that it calls may
be phases."""

ZERO_GRAD = 512
CLIP_GRAD = 1024
SCHEDULER = 2048
SAVE = 4096
RESTORE = 8192
COLLECTIVE = 16384

PLAIN = ~(COMPILED | PARTIAL | GRAD | AHEAD)
"""The bits of phases, without the modifiers above."""

UPKEEP = ZERO_GRAD | CLIP_GRAD | SCHEDULER | SAVE | RESTORE | COLLECTIVE

NO_FORWARD = LOAD | FORWARD | LOSS | TRANSFER | RECOMPUTE
"""Phases that include the module calls made inside them."""
NO_FETCH = LOAD | FORWARD | LOSS | BACKWARD | RECOMPUTE
NO_TRANSFER = LOAD | FORWARD | LOSS | BACKWARD | OPTIMIZER | TRANSFER | RECOMPUTE

NO_UPKEEP = LOAD | FORWARD | LOSS | BACKWARD | TRANSFER | RECOMPUTE | UPKEEP

TIMED = FORWARD | LOSS | BACKWARD | OPTIMIZER | TRANSFER | RECOMPUTE
"""Phases whose time on the device is measured."""
NAMES = {
    LOAD: "data_load",
    FORWARD: "forward",
    LOSS: "loss",
    BACKWARD: "backward",
    OPTIMIZER: "optimizer_step",
    TRANSFER: "h2d",
    RECOMPUTE: "recompute",
    ZERO_GRAD: "zero_grad",
    CLIP_GRAD: "clip_grad",
    SCHEDULER: "scheduler_step",
    SAVE: "checkpoint_save",
    RESTORE: "checkpoint_load",
    COLLECTIVE: "collective",
}

EPOCHS = ("epoch",)
EVALUATIONS = ("eval",)
UNUSED = "loader_pass"
"""The name of a pass over a loader whose batches were not used until it ended."""
