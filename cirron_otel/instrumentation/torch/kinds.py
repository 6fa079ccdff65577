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

PLAIN = COMPILED - 1
"""What is not said beside."""

NO_FORWARD = LOAD | FORWARD | LOSS | TRANSFER | RECOMPUTE
"""Inside of these, the call of a module is a part of them."""
NO_FETCH = LOAD | FORWARD | LOSS | BACKWARD | RECOMPUTE
NO_TRANSFER = LOAD | FORWARD | LOSS | BACKWARD | OPTIMIZER | TRANSFER | RECOMPUTE

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
}

EPOCHS = ("epoch",)
