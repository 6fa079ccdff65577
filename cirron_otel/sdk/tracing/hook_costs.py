"""The part of the cost of hooks and scopes that their own clocks do not measure.

The clocks of a hook run inside it. The call to the hook and the return from it are outside, and the
hook fills the CPU caches, so that the program's own code runs more slowly afterwards. This part was
measured as the difference between traced and untraced loops, in multiples of the time of a wrapped
call, which is measured again in each process (docs/adr/0049).
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from .clock import now

CLOCKED_PERCENT: Final = 128
"""The cost of the code between the clocks, in percent of the time that they measure."""
_CALLS_OF_HOOK, _CALLS_OF_SCOPE = 13, 2
"""The rest for each phase of an instrumentation, and for each manual scope, in wrapped calls."""
_ROUNDS, _CALLS = 7, 64


@cache
def unclocked_ns() -> tuple[int, int]:
    """Return the rest of the cost of a phase of an instrumentation, and of a manual scope, ns.

    The first call takes about a quarter of a millisecond. It must not be made on the training
    thread.
    """
    call_ns = min(_call_ns() for _ in range(_ROUNDS))
    return round(_CALLS_OF_HOOK * call_ns), round(_CALLS_OF_SCOPE * call_ns)


def _call_ns() -> float:
    begun = now()
    for _ in range(_CALLS):
        _wrapped(1, keyword=2)
    between = now()
    for _ in range(_CALLS):
        _plain(1, keyword=2)
    return max((between - begun) - (now() - between), 0) / _CALLS


def _plain(*args: Any, **kwargs: Any) -> Any:
    return args or kwargs


def _wrapped(*args: Any, **kwargs: Any) -> Any:
    """Do what each hook does: read the clock on entry, and after the call that it wraps."""
    begun = now()
    try:
        result = _plain(*args, **kwargs)
        return result if now() >= begun else None
    except BaseException:
        raise
