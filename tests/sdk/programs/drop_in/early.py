"""Marks and scopes before `profile()`, after `shutdown()`, and a second session after the first."""

import cirron as ci

ci.mark("before", 1)
with ci.scope("early", number=1):
    ci.mark("inside_early", 2.5)
    with ci.scope("earlier inside"):
        pass
first = ci.profile(frameworks=[], snapshots=None)
again = ci.profile(frameworks=[])
print("the same", first is again)
with ci.scope("during"):
    ci.mark("inside_during", True)
ci.mark("on_the_session", "text")
ci.shutdown()
ci.shutdown()
ci.mark("between", 3)
second = ci.profile(frameworks=[], snapshots=None)
print("another", second is not first, second.enabled)
with ci.scope("in the second"):
    pass
second.shutdown()
ci.mark("after", 4)
print("ended")
