"""Four threads with scope trees of their own, one of them ended by an exception."""

import threading

import cirron as ci

# All four live at the same time: a thread's id, and with it its buffer, is used again after it.
together = threading.Barrier(4)


def work(number: int) -> None:
    together.wait()
    for step in range(10):
        with ci.scope("step", index=step, worker=number), ci.scope("forward"):
            ci.mark("loss", float(number * step))
    together.wait()
    if number == 3:
        with ci.scope("failing"):
            raise RuntimeError("a user's error")


threading.excepthook = lambda _: None
ci.profile(snapshots=None)
with ci.scope("main"):
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
ci.shutdown()
