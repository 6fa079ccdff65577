"""Threads with trees of their own, a pool, and scopes that other threads do not see."""

import threading
from concurrent.futures import ThreadPoolExecutor

import cirron as ci

together = threading.Barrier(3)


def work(number: int) -> None:
    together.wait()
    ci.mark("no_scope_open", number)
    for _ in ci.epochs(range(2)):
        for _ in ci.batches(range(3)):
            with ci.scope("forward", worker=number):
                ci.mark("loss", number + 0.5)
    with ci.scope("outer", worker=number), ci.scope("inner"):
        together.wait()


def job(number: int) -> int:
    with ci.scope("job", number=number):
        ci.mark("done", number)
    return number * number


ci.profile(frameworks=[], snapshots=None)
with ci.scope("main"):
    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ci.mark("joined", True)
ci.flush()
with ThreadPoolExecutor(2) as pool:
    print(sorted(pool.map(job, range(6))))
ci.shutdown()
