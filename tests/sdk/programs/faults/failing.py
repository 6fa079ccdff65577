"""A training loop that ends in the way that the second argument names.

The loop is `ci.epochs` and `ci.batches`, or, with "torch" as the third argument, a DataLoader's.

With several ways, separated by commas, each is run by a forked process in a directory of its own,
which has the name of the way, and its stderr is in `<way>.err` beside that. The program prints the
exit codes as JSON.
"""

import contextlib
import gc
import importlib
import json
import os
import signal
import sys
import time

import cirron_otel as ci

directory, way, loop = sys.argv[1:4]


def fork_each(root: str, ways: list[str]) -> tuple[str, str]:
    """Return the directory and the way of a forked process; the first process ends."""
    importlib.import_module("cirron_otel.sdk.session.api")
    if loop == "torch":
        for name in ("torch._dynamo", "torch.utils.data", "cirron_otel.sdk.instrumentation.torch"):
            importlib.import_module(name)
    gc.freeze()  # a collection in a forked process then copies none of these objects' pages
    pids = {}
    for each in ways:
        pids[each] = os.fork()
        if not pids[each]:
            place = f"{root}/{each}"
            os.dup2(os.open(f"{place}.err", os.O_WRONLY | os.O_CREAT, 0o600), 2)
            return place, each
    codes = {each: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for each, pid in pids.items()}
    print(json.dumps(codes), flush=True)
    os._exit(0)


if "," in way:
    directory, way = fork_each(directory, way.split(","))
ci.profile(output_dir=directory, frameworks=["torch"] if loop == "torch" else "none")


def step(number: int) -> None:
    with contextlib.suppress(KeyError):
        if number == 1:
            raise KeyError("caught in the loop")
    ci.mark("loss", 1 / (number + 1))
    if number != 5:
        return
    if way in ("body", "caught", "finally", "exit code", "hook", "reported"):
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
elif way == "reported":  # the interpreter itself sees no error
    try:
        train()
    except ValueError:
        sys.excepthook(*sys.exc_info())
else:
    train()
