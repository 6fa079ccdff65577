"""The errors of this package, and the exit code that the command line gives each of them.

```
CirronOtelError
├── UsageError      2  wrong usage or configuration
├── InputError      3  input is not what it claims to be, or cannot be read
├── TargetError     4  the target cannot be written
│   ├── RefusedNameError   one file is refused: its name is invalid, or taken by other content
│   └── OverCapError       the data is larger than the cap of the target
└── EndpointError   5  the endpoint cannot be reached, or refused
```

Every message describes what was found, what was expected, and what to do.
"""

from __future__ import annotations


class CirronOtelError(Exception):
    """Base of every error that this package raises on purpose."""

    exit_code = 1


class UsageError(CirronOtelError):
    """The call or the configuration is wrong; nothing was read or written."""

    exit_code = 2


class MissingExtraError(UsageError):
    """A feature needs an optional dependency that is not installed."""

    def __init__(self, extra: str, feature: str) -> None:
        """Name the `extra` of this distribution that installs the dependencies of `feature`."""
        super().__init__(
            f"{feature} needs the extra '{extra}': run `pip install 'cirron-otel[{extra}]'`"
        )
        self.extra = extra


class InputError(CirronOtelError):
    """Input is not what it claims to be, or cannot be read."""

    exit_code = 3


class TargetError(CirronOtelError):
    """The target cannot be written; its previous content is untouched."""

    exit_code = 4


class RefusedNameError(TargetError):
    """One file of a target is refused: its name is invalid, or is taken by other content."""


class OverCapError(TargetError):
    """The data can never fit: it is larger than the cap of its target."""


class EndpointError(CirronOtelError):
    """The endpoint cannot be reached, or refused the request."""

    exit_code = 5


def root_cause(error: BaseException) -> BaseException:
    """Return the first error of a chain of causes. Later network errors only add the URL."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error
