"""The phases of a step, as bits: which of them are open in a thread is one integer."""

LOAD = 1
FORWARD = 2
LOSS = 4
BACKWARD = 8
OPTIMIZER = 16
TRANSFER = 32
RECOMPUTE = 64
COMPILED = 128
"""Beside FORWARD: the call of a compiled function, which may turn out to hold more."""
PARTIAL = 256
"""Beside FORWARD: a model whose `forward` was called without `__call__`, met while it ran."""
GRAD = 32768
"""Beside BACKWARD: `torch.autograd.grad`, which adds nothing to the gradients of parameters."""
AHEAD = 65536
"""A module without parameters that is no loss; no phase, but modules that it calls may be."""

ZERO_GRAD = 512
CLIP_GRAD = 1024
SCHEDULER = 2048
SAVE = 4096
RESTORE = 8192
COLLECTIVE = 16384

PLAIN = ~(COMPILED | PARTIAL | GRAD | AHEAD)
"""What is not said beside."""

UPKEEP = ZERO_GRAD | CLIP_GRAD | SCHEDULER | SAVE | RESTORE | COLLECTIVE

NO_FORWARD = LOAD | FORWARD | LOSS | TRANSFER | RECOMPUTE
"""Inside of these, the call of a module is a part of them."""
NO_FETCH = LOAD | FORWARD | LOSS | BACKWARD | RECOMPUTE
NO_TRANSFER = LOAD | FORWARD | LOSS | BACKWARD | OPTIMIZER | TRANSFER | RECOMPUTE

NO_UPKEEP = LOAD | FORWARD | LOSS | BACKWARD | TRANSFER | RECOMPUTE | UPKEEP

TIMED = FORWARD | LOSS | BACKWARD | OPTIMIZER | TRANSFER | RECOMPUTE
"""Of these the device's time is measured."""
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
