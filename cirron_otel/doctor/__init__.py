"""What `cirron-otel doctor` looks at: one module for each kind of thing that can be wrong.

```
check.py       a finding, and the time that there is for it
settings.py    variables, configuration
versions.py    Python and packages, by the metadata of the packages themselves
spool.py       the directory that everything is written to first
hooks.py       PyTorch, in a process of its own (hooks_probe.py)
network.py     names, connections, TLS: of any endpoint
protocol.py    what an endpoint speaks
otlp.py        the OTLP endpoint, and one span sent there
otlp_settings.py  what its variables say
platform.py    the Cirron platform
clock.py       the clocks of this machine, and how far an endpoint's is off
endpoints.py   which endpoints there are
examine.py     all of them, in order
```

Nothing here raises for what it finds, waits longer than it was told, or changes anything, but for
the span that is sent, and a file in the spool's directory that is gone again at once.
"""

from __future__ import annotations

from .check import Check, State
from .examine import Request, examine

__all__ = ["Check", "Request", "State", "examine"]
