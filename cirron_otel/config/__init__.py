"""The options of `profile()` and `Cirron()`: one table, and where their values come from.

```
options.py    Config, the table: name, type, default, variable, meaning
parsing.py    what a value may look like, in a call, a variable or a file
sources.py    the places that values stand in, in their order
resolve.py    the Config that a process gets, and what was wrong with what stood where
exporters.py  where batches are sent, by the Config and OpenTelemetry's variables
```

Nothing here raises for a wrong value: it is reported, and the next place is asked.
"""

from __future__ import annotations

from .exporters import Export, Exports, exports_of
from .options import NOT_GIVEN, OPTIONS, Config, NotGiven, Option
from .resolve import Resolved, is_sdk_disabled, resolve

__all__ = [
    "NOT_GIVEN",
    "OPTIONS",
    "Config",
    "Export",
    "Exports",
    "NotGiven",
    "Option",
    "Resolved",
    "exports_of",
    "is_sdk_disabled",
    "resolve",
]
