"""cirron-otel: the bridge between Cirron's training traces and OpenTelemetry.

`import cirron_otel as ci` provides the SDK: `ci.profile()`, `ci.scope`, `ci.mark`, `ci.epochs`,
`ci.batches` and the other names that docs/ lists. Names are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module

from ._version import __version__ as __version__

try:
    import fcntl as _  # noqa: F401
except ImportError as error:
    raise ImportError(
        "cirron-otel needs a POSIX system, Linux or macOS, because it locks its spool with fcntl."
        " On Windows, use WSL"
    ) from error

TYPE_CHECKING = False  # importing typing would be most of the time of importing this module
if TYPE_CHECKING:
    from .sdk.instrumentation.sklearn.wrapping import wrap
    from .sdk.session.api import (
        Cirron,
        CirronSpanProcessor,
        Profiler,
        batches,
        epochs,
        flush,
        get_default,
        health,
        inference,
        inject,
        mark,
        profile,
        runs,
        shutdown,
        summary,
        trace,
        training,
        watch,
    )
    from .sdk.tracing.scope import Scope as scope  # noqa: N813 - the class is the function
    from .tools.frames.reading import Recording, read

_MODULES = {
    "Recording": (".tools.frames.reading", "Recording"),
    "read": (".tools.frames.reading", "read"),
    "scope": (".sdk.tracing.scope", "Scope"),
    "wrap": (".sdk.instrumentation.sklearn.wrapping", "wrap"),
}

__all__ = [
    "Cirron", "CirronSpanProcessor", "Profiler", "Recording", "batches", "epochs", "flush",
    "get_default", "health", "inference", "inject", "mark", "profile", "read", "runs", "scope",
    "shutdown", "summary", "trace", "training", "watch", "wrap",
]  # fmt: skip


_OF_CIRRON_SDK = frozenset({
    "CirronDependencyError", "CirronError", "CirronSecretNotFound", "CirronYaml",
    "CirronYamlError", "ProfilingConfig", "ServingConfig", "deps", "env", "find_cirron_yaml",
    "load", "load_cirron_yaml", "map", "secret",
})  # fmt: skip
"""Names that cirron-sdk has and this package does not (docs/migrating.md)."""


if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name: str) -> object:
        if name not in __all__:
            missing = f"module {__name__!r} has no attribute {name!r}"
            if name in _OF_CIRRON_SDK:
                missing += f": it is not part of tracing; `from cirron import {name}` (cirron-sdk)"
            raise AttributeError(missing)
        module, attribute = _MODULES.get(name, (".sdk.session.api", name))
        value = globals()[name] = getattr(import_module(module, __name__), attribute)
        return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
