"""Values of marks at the edges of what JSON, doubles and 64-bit integers can say."""

import contextlib
import math

import cirron as ci

VALUES = {
    "nan": math.nan,
    "inf": math.inf,
    "ninf": -math.inf,
    "negative_zero": -0.0,
    "smallest": 5e-324,
    "largest": 1.7976931348623157e308,
    "whole_double": 1.0,
    "big_double": 1e16,
    "true": True,
    "false": False,
    "zero": 0,
    "int63": 2**63 - 1,
    "int64": 2**63,
    "negative": -(2**63) - 1,
    "int70": 2**70,
    "empty": "",
    "long": "é" * 200,
    "emoji": "\U0001f525",
    "nul": "\x00",
    "none": None,
    "surrogate": "\ud800",
}

ci.profile(snapshots=None)
with ci.scope("marks"):
    for name, value in VALUES.items():
        with contextlib.suppress(TypeError, UnicodeEncodeError):  # some versions refuse some
            ci.mark(name, value)
    ci.mark("attrs", 1, big=2**70, nan=math.nan, nested={"a": [1, 2.0, None, {"b": {}}]})
with ci.scope("odd marks"):
    ci.mark("reserved", 0.5, **{"cirron.mark.id": "x", "cirron.rest": "{}", "thread.id": 1})
    ci.mark("cirron.snapshot", 1, **{"cirron.snapshot.id": "x"})
    ci.mark("", 1)
    ci.mark("twice", 1)
    ci.mark("twice", 1)
ci.shutdown()
