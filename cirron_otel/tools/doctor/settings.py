"""Check the environment variables and the configuration.

The checks report which variables are set, unused or probably misspelt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module

from ...core.config.exporters import Export, exports_of
from ...core.config.options import OPTIONS
from ...core.config.resolve import Resolved, is_sdk_disabled
from .check import Check, listed, ok, warning

_OURS = re.compile(r"(OTEL|OTLP|OLTP|OETL|CIRRON|CIRON|CIRRRON|CIRROM)_")
"""The prefixes of variables for OpenTelemetry or Cirron, including common misspellings."""

_OTHERS = re.compile(
    r"OTEL_(INSTRUMENTATION|PYTHON|JAVA|JAVAAGENT|DOTNET|NODE|GO|PHP|RUBY|OPERATOR|INJECTOR|EBPF)_"
    r"|OTEL_RESOURCE_ATTRIBUTES_"
)
"""Variables of instrumentations, other languages and the Kubernetes operator."""

_ALSO = (
    "CIRRON_OTEL_DEBUG",
    "CIRRON_OTEL_PROGRESS",
    "CIRRON_OTEL_RAY_ATTEMPT",
    "CIRRON_OTEL_RAY_PREVIOUS",
    "CIRRON_OTEL_JOB_PID",
    "CIRRON_OTEL_RUN_ID",
    "CIRRON_QUERY_HEADERS",
    "OTEL_EXPORTER_OTLP_SPAN_INSECURE",
    "OTEL_EXPORTER_OTLP_METRIC_INSECURE",
    "OTEL_EXPORTER_JAEGER_ENDPOINT",
    "OTEL_ENTITIES",
    "OTEL_EXPERIMENTAL_CONFIG_FILE",
    "OTEL_SEMCONV_STABILITY_OPT_IN",
)
_SIGNALS = ("", "TRACES_", "METRICS_", "LOGS_")
_OTLP = (
    "ENDPOINT", "PROTOCOL", "HEADERS", "TIMEOUT", "COMPRESSION", "INSECURE", "CERTIFICATE",
    "CLIENT_KEY", "CLIENT_CERTIFICATE",
)  # fmt: skip
_MODULES = (
    "opentelemetry.environment_variables",
    "opentelemetry.sdk.environment_variables",
    "opentelemetry.instrumentation.environment_variables",
)
_NEAR = 0.84
"""A name with at least this similarity (difflib) to a known name counts as a misspelling of it."""


def known_variables() -> set[str]:
    """Return the variables that this package, the OpenTelemetry SDK and its tools read."""
    names = {option.variable for option in OPTIONS} | set(_ALSO)
    names |= {f"OTEL_EXPORTER_OTLP_{signal}{name}" for signal in _SIGNALS for name in _OTLP}
    for module in _MODULES:
        try:
            constants = vars(import_module(module))
        except ImportError:
            continue
        names |= {
            each for each in constants.values() if isinstance(each, str) and _OURS.match(each)
        }
    return names


def examine_variables(environ: Mapping[str, str]) -> Check:
    """Report which environment variables are read, and which look misspelt."""
    known = known_variables()
    ours = sorted(name for name in environ if _OURS.match(name.upper()))
    read = [name for name in ours if name in known]
    slips: dict[str, str] = {}
    strange: list[str] = []
    for name in ours:
        if name in known or _OTHERS.match(name):
            continue
        near = get_close_matches(name.upper(), known, 1, _NEAR)
        if near:
            slips[name] = near[0]
        else:
            strange.append(name)
    finding = listed(read, 8) if read else "none is set"
    details = {"read": read, "misspelt": slips, "unknown": strange}
    if slips:
        meant = ", ".join(f"{name} (did you mean {near}?)" for name, near in slips.items())
        return warning("variables", f"these are not read: {meant}", "rename it", **details)
    lost = [name for name in strange if name.startswith("CIRRON_")]
    if lost:
        return warning(
            "variables",
            f"{finding}; not an option: {listed(lost)}",
            "docs/configuration.md lists all names",
            **details,
        )
    if strange:
        finding += f"; unknown: {listed(strange)}"
    return ok("variables", finding, **details)


def examine_configuration(resolved: Resolved, environ: Mapping[str, str]) -> Iterator[Check]:
    """Check the configuration, and report settings that switch tracing or sending off."""
    exports = exports_of(resolved.config, environ)
    problems = [*resolved.problems, *exports.problems]
    for problem in problems:
        yield warning("configuration", problem, "correct it")
    if not resolved.config.enabled:
        why = "OTEL_SDK_DISABLED" if is_sdk_disabled(environ) else resolved.places["enabled"]
        yield warning("configuration", f"tracing is disabled by {why}", "unset it to trace")
    silent = _unsent(resolved, environ)
    if silent:
        yield warning("configuration", *silent)
    elif not problems and resolved.config.enabled:
        places = sorted({place for place in resolved.places.values() if place != "the default"})
        yield ok(
            "configuration",
            f"from {listed(places)}" if places else "all options have their defaults",
        )


def _unsent(resolved: Resolved, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return a warning and its remedy if an endpoint is set but another setting prevents sending;
    else None.
    """
    set_ = [
        name
        for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
        if environ.get(name, "").strip()
    ]
    if not set_ or Export.OTLP in exports_of(resolved.config, environ).targets:
        return None
    if resolved.config.exporters != ("auto",):
        by, what = resolved.places["exporters"], ",".join(resolved.config.exporters) or "none"
    else:
        by, what = "OTEL_TRACES_EXPORTER", environ.get("OTEL_TRACES_EXPORTER", "")
    return (
        f"{set_[-1]} is set, but nothing is sent there: {by} is {what[:40]!r}",
        f"set {by} to otlp, or unset it",
    )
