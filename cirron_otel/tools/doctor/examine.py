"""Run all checks, in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...core.config.exporters import Export, exports_of
from ...core.config.resolve import resolve
from .check import Check, failed
from .clock import examine_clock
from .hooks import examine_hooks
from .settings import examine_configuration, examine_variables
from .versions import examine_packages, examine_python


@dataclass(frozen=True, slots=True)
class DoctorRequest:
    """The options of an examination."""

    environ: Mapping[str, str]
    timeout: float = 10.0
    """The time limit for the checks of one endpoint, or of the disk, seconds."""
    is_sent: bool = True
    """Whether a span is sent to the endpoints."""
    has_hooks: bool = True
    """Whether training steps are run to test the instrumentation."""


def examine(request: DoctorRequest) -> Iterator[Check]:
    """Yield each check as soon as it is done; the endpoints, which may take long, come last."""
    environ = request.environ
    resolved = resolve(environ=environ)
    targets = exports_of(resolved.config, environ).targets
    yield examine_python()
    yield from examine_packages(("otlp",) if Export.OTLP in targets else ())
    yield examine_clock()
    yield examine_variables(environ)
    yield from examine_configuration(resolved, environ)
    try:
        from . import endpoints  # noqa: PLC0415 - its dependencies may be only partly installed
    except ImportError as error:
        yield failed("packages", f"a package cannot be imported: {error}", "reinstall it")
        return
    keys = endpoints.keys_of(resolved.config, environ)
    yield from endpoints.examine_spool(resolved.config, keys, request.timeout)
    if request.has_hooks:
        yield examine_hooks(resolved.config, environ)
    yield from endpoints.examine_endpoints(
        resolved.config, environ, request.timeout, is_sent=request.is_sent
    )
