"""A process that forks inside a scope: both end it, and the same id is recorded twice."""

import os

import cirron as ci

ci.profile(snapshots=None)
with ci.scope("parent"):
    ci.mark("before", 1)
    pid = os.fork()
    with ci.scope("inner", who="child" if pid == 0 else "parent"):
        ci.mark("forked", pid == 0)
    if pid:
        os.waitpid(pid, 0)
ci.flush()
ci.shutdown()
