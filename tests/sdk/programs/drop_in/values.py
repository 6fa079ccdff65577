"""Values of marks and attributes at the edges of what they may be."""

import math

import cirron as ci

VALUES = {
    "float": 0.1,
    "whole": 1.0,
    "negative_zero": -0.0,
    "nan": math.nan,
    "infinite": math.inf,
    "minus_infinite": -math.inf,
    "smallest": 5e-324,
    "int": 3,
    "int63": 2**63 - 1,
    "int64": 2**63,
    "int70": -(2**70),
    "true": True,
    "false": False,
    "empty": "",
    "text": "warm-up",
    "long": "x" * 300,
    "long_wide": "é" * 200,
    "nul": "\x00",
    "emoji": "\U0001f525",
}

ci.profile(frameworks=[], snapshots=None)
with ci.scope("marks"):
    for name, value in VALUES.items():
        ci.mark(name, value)
    for name, value in VALUES.items():
        ci.mark(name, value, kind="summary", again=True)
with ci.scope("attributes", **VALUES):
    pass
with ci.scope("nested", value={"a": [1, 2.0, None, {"b": {}}]}, empty=[], none=None, pair=(1, 2)):
    pass
with ci.scope("indexes"):
    for index in (0, 1, -1, 2**40):
        with ci.scope("indexed", index):
            pass
with ci.scope(""):
    ci.mark("", 1)
with ci.scope("é ☃"):
    pass
ci.shutdown()
