"""A training loop that ends in the way that the second argument names.

The loop is `ci.epochs` and `ci.batches`, or, with "torch" as the third argument, a DataLoader's.
"""

import contextlib
import os
import signal
import sys
import time

import cirron_otel as ci

directory, way, loop = sys.argv[1:4]
ci.profile(output_dir=directory, frameworks=["torch"] if loop == "torch" else "none")


def step(number: int) -> None:
    with contextlib.suppress(KeyError):
        if number == 1:
            raise KeyError("caught in the loop")
    ci.mark("loss", 1 / (number + 1))
    if number != 5:
        return
    if way in ("body", "caught", "finally", "exit code", "hook"):
        raise ValueError("loss is nan")
    if way == "scope":
        with ci.scope("augment"):
            raise ValueError("loss is nan")
    if way == "interrupt":
        raise KeyboardInterrupt
    if way == "waits":
        ci.flush()
        print("flushed", flush=True)
        time.sleep(600)
    if way in ("SIGTERM", "SIGKILL"):
        ci.flush()
        os.kill(os.getpid(), getattr(signal, way))
        time.sleep(60)


def by_hand() -> None:
    for _ in ci.epochs(range(2)):
        for number in ci.batches(range(3, 7)):
            step(number)
            if way == "break" and number == 5:
                break


def with_torch() -> None:
    import torch
    from torch.utils.data import DataLoader

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        for number, batch in enumerate(DataLoader(torch.ones(8, 2), batch_size=2), 3):
            loss = model(batch).sum()
            if way == "forward" and number == 5:
                model(torch.ones(3, 3))
            step(number)
            if way == "break" and number == 5:
                break
            loss.backward()
            optimizer.step()
            if way == "after the step" and number == 5:
                raise ValueError("loss is nan")


train = with_torch if loop == "torch" else by_hand
if way == "hook":
    sys.excepthook = lambda *_: print("the program's own hook", file=sys.stderr)
if way == "caught":
    with contextlib.suppress(ValueError):
        train()
elif way == "finally":
    try:
        train()
    finally:
        ci.shutdown()
elif way == "exit code":
    try:
        train()
    except ValueError:
        ci.shutdown()
        sys.exit(3)
else:
    train()
