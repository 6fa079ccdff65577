"""Odd names, indexes and attributes of scopes."""

import contextlib
import math

import cirron as ci

NAMES = ["", "\ud800", "a b", "\x00", "é" * 300, "cirron.session", "cirron.marks", 7, None]
INDEXES = [-1, 0, 2**40, 2**63, 2**70, 1.5, math.nan, "3", True]
ATTRS = {
    "cirron.index": 3,
    "cirron.id": "x",
    "cirron.attr.name": 1,
    "thread.id": "q",
    "process.pid": 1,
    "": 1,
    "big": 2**70,
    "nan": math.nan,
    "none": None,
    "empty": {},
    "nested": {"cirron.rest": [1, 1.0, True, None, []]},
    "surrogate": "\udfff",
    "long": "x" * 5000,
}

ci.profile(snapshots=None)
for name in NAMES:
    with contextlib.suppress(Exception), ci.scope(name):
        pass
for index in INDEXES:
    with contextlib.suppress(Exception), ci.scope("index", index=index):
        pass
with ci.scope("attrs", **ATTRS):
    pass
deep = []
for _ in range(40):
    deep = [deep]
with ci.scope("deep", value=deep):
    pass
with contextlib.ExitStack() as stack:
    for level in range(70):
        stack.enter_context(ci.scope("level", index=level))
ci.shutdown()
