"""`trace()` in every form."""

import contextlib
import io
import json
import re

import cirron as ci

ci.profile(frameworks=[], snapshots=None)
for _ in ci.epochs(range(2)):
    with ci.scope("forward", layer="conv1"):
        ci.mark("loss", 0.5)
    ci.mark("accuracy", 0.75, kind="summary")
with ci.scope("evaluation", 3), ci.scope("forward"):
    pass


def plain(node: dict) -> dict:
    """A node without what differs from run to run."""
    marks = [[mark["name"], mark["value"], mark["kind"]] for mark in node["marks"]]
    return {
        "keys": sorted(node),
        "name": node["name"],
        "index": node["index"],
        "attrs": node["attrs"],
        "ends": node["end_ns"] >= node["start_ns"] and node["wall_us"] >= 0,
        "marks": [mark for mark in marks if mark[0] != "cirron.overhead_ns"],
        "children": [plain(child) for child in node["children"]],
    }


def shown(found: dict) -> str:
    return json.dumps([found["span_count"], [plain(root) for root in found["roots"]]])


print(shown(ci.trace(format="dict")))
print(shown(json.loads(ci.trace(format="json"))))
print(shown(ci.trace("dict", name="forward")))
print(shown(ci.get_default().trace(format="dict", name="evaluation")))
print(ci.trace(name="nothing of that name", format="dict"))
printed = io.StringIO()
with contextlib.redirect_stdout(printed):
    returned = ci.trace()
print(returned, re.sub(r"[0-9.]+(us|ms|s)", "some time", printed.getvalue()))
ci.shutdown()
