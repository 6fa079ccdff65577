"""The real OpenTelemetry Collector and Jaeger, started for a test and stopped after it.

```python
with otelcol(SPLIT, tmp_path) as collector:
    ...send to collector.otlp_grpc or collector.otlp_http...
    lines = collector.wait_for_spans(100)
```

A configuration, from collector-config/ or a test's own, takes its endpoints (`127.0.0.1:port`)
from the environment: OTLP_GRPC, OTLP_HTTP, HEALTH (a health_check extension there is a must), for
Jaeger QUERY and QUERY_GRPC as well; DIR is the folder for what it writes.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .build import PINS, binary, missing
from .process import (
    BackendError,
    Process,
    get,
    running,
)

FILE = PINS / "otelcol-file.yaml"
SPLIT = PINS / "otelcol-split.yaml"
PROCESSORS = PINS / "otelcol-processors.yaml"
JAEGER = PINS / "jaeger.yaml"
WAIT_SECONDS = 180.0
POLL_SECONDS = 0.05

Spans = list[dict[str, Any]]


@dataclass(frozen=True)
class Backend:
    """What every running backend has."""

    process: Process
    otlp_grpc: str
    """`127.0.0.1:port`, without TLS."""
    otlp_http: str
    """`http://127.0.0.1:port`; traces go to `/v1/traces` below it."""


@dataclass(frozen=True)
class Otelcol(Backend):
    """A running Collector."""

    output: Path
    """The file exporter's `spans.jsonl`: OTLP JSON, one TracesData a line."""

    def wait_for_spans(
        self, wanted: int | Set[str], seconds: float = WAIT_SECONDS, position: int = 0
    ) -> list[dict[str, Any]]:
        """The lines of `output` from `position` on, once they hold what is wanted."""
        return wait_for_spans(self.output, wanted, seconds, position)


@dataclass(frozen=True)
class Jaeger(Backend):
    """A running Jaeger."""

    query: str
    """`http://127.0.0.1:port`, with `/api/v3/` below it."""

    def get_trace(self, trace_id: str) -> list[dict[str, Any]]:
        """The spans of a trace (32 hex digits) as OTLP JSON; empty where Jaeger has none of it.

        Each has its resource under `resource` and its scope under `scope` beside its own fields.
        Jaeger orders attributes by key and writes an empty `status`. Its warnings about missing
        parents are left out: the in-memory storage keeps those of a request that came before the
        parents did.
        """
        status, body = get(f"{self.query}/api/v3/traces/{trace_id}", timeout=WAIT_SECONDS)
        if status == 404:
            return []
        if status != 200:
            raise BackendError(f"Jaeger answered {status} for trace {trace_id}: {body[:300]!r}")
        spans = spans_of(_chunks(body.decode()))
        for span in spans:
            _drop_early_warnings(span)
        return spans

    def wait_for_trace(
        self, trace_id: str, wanted: int | Set[str], seconds: float = WAIT_SECONDS
    ) -> list[dict[str, Any]]:
        """The spans of a trace once Jaeger shows that many of them, or the spans of these ids."""
        return wait_for_shown("Jaeger", self.get_trace, trace_id, wanted, seconds)


def _drop_early_warnings(span: dict[str, Any]) -> None:
    attributes = span.get("attributes", [])
    for attribute in attributes:
        if attribute.get("key") == "@jaeger@warnings":
            values = attribute["value"]["arrayValue"]["values"]
            values[:] = [w for w in values if "is not in the trace" not in w["stringValue"]]
            if not values:
                attributes.remove(attribute)
                return


def wait_for_shown(
    name: str,
    get_trace: Callable[[str], Spans],
    trace_id: str,
    wanted: int | Set[str],
    seconds: float,
) -> Spans:
    """The spans of a trace once the backend of that name shows what is wanted of it.

    `wanted` is a number of spans, at least, or a set of span ids. A span that was sent twice counts
    once. A number is no use for a trace of a running job: the spans that announce open scopes count
    as well.
    """
    deadline = time.monotonic() + seconds
    while True:
        spans = get_trace(trace_id)
        shown = {span["spanId"] for span in spans}
        if len(shown) >= wanted if isinstance(wanted, int) else wanted <= shown:
            return spans
        if time.monotonic() > deadline:
            found, among = (
                (len(shown), wanted)
                if isinstance(wanted, int)
                else (len(wanted & shown), len(wanted))
            )
            raise BackendError(
                f"{name} shows {found} of {among} spans of {trace_id} after {seconds} s"
            )
        time.sleep(POLL_SECONDS)


@contextlib.contextmanager
def otelcol(
    config: Path | str, directory: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Otelcol]:
    """Run the Collector with `config`, a file or YAML text; it writes below `directory`."""
    command = [binary_of("otelcol"), "--config", str(config_file(config, directory))]
    names = ("OTLP_GRPC", "OTLP_HTTP", "HEALTH")
    settings = {**(environment or {}), "DIR": str(directory)}
    with running(command, names, "/", directory, settings) as (process, endpoints):
        yield Otelcol(
            process=process,
            otlp_grpc=endpoints["OTLP_GRPC"],
            otlp_http=f"http://{endpoints['OTLP_HTTP']}",
            output=directory / "spans.jsonl",
        )


@contextlib.contextmanager
def jaeger(
    directory: Path,
    config: Path | str = JAEGER,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Jaeger]:
    """Run Jaeger (in memory, unless `config` says otherwise); its log goes to `directory`."""
    command = [binary_of("jaeger"), "--config", str(config_file(config, directory))]
    names = ("OTLP_GRPC", "OTLP_HTTP", "HEALTH", "QUERY", "QUERY_GRPC")
    settings = {**(environment or {}), "DIR": str(directory)}
    with running(command, names, "/status", directory, settings) as (process, endpoints):
        yield Jaeger(
            process=process,
            otlp_grpc=endpoints["OTLP_GRPC"],
            otlp_http=f"http://{endpoints['OTLP_HTTP']}",
            query=f"http://{endpoints['QUERY']}",
        )


def binary_of(name: str) -> str:
    """Its path; BackendError where it is not built, or not as pinned."""
    if reason := missing(name):
        raise BackendError(f"{reason}: run `make backends`")
    return str(binary(name))


def config_file(config: Path | str, directory: Path) -> Path:
    """The file of a configuration; that of a text is written to `directory`."""
    if isinstance(config, Path):
        return config
    path = directory / "config.yaml"
    path.write_text(config)
    return path


def spans_of(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every span of OTLP JSON messages, each with its `resource` and `scope` beside its fields."""
    return [
        {**span, "resource": group.get("resource", {}), "scope": scoped.get("scope", {})}
        for message in messages
        for group in message.get("resourceSpans", [])
        for scoped in group.get("scopeSpans", [])
        for span in scoped.get("spans", [])
    ]


def wait_for_spans(
    path: Path, wanted: int | Set[str], seconds: float = WAIT_SECONDS, position: int = 0
) -> list[dict[str, Any]]:
    """The lines of a file exporter's output, once they hold what is wanted together.

    `wanted` is a number of spans, at least, or a set of span ids; a number is no use for a running
    job, as in `wait_for_shown`. The lines before `position` are left out. Raises BackendError after
    `seconds`. A line that is not complete yet is left for later.
    """
    deadline = time.monotonic() + seconds
    lines: list[dict[str, Any]] = []
    seen: list[str] = []
    while True:
        for line in _complete_lines(path, position):
            position += len(line)
            lines.append(json.loads(line))
            seen += [span["spanId"] for span in spans_of(lines[-1:])]
        if len(seen) >= wanted if isinstance(wanted, int) else wanted <= set(seen):
            return lines
        if time.monotonic() > deadline:
            count = wanted if isinstance(wanted, int) else len(wanted)
            raise BackendError(f"{path} holds {len(seen)} of {count} spans after {seconds} s")
        time.sleep(POLL_SECONDS)


def end_of_lines(path: Path) -> int:
    """The size of a file exporter's output, once its last line is complete; 0 without output.

    The exporter writes the end of a line by itself. Raises BackendError if it does not come.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        content = path.read_bytes() if path.exists() else b""
        if not content or content.endswith(b"\n"):
            return len(content)
        if time.monotonic() > deadline:
            raise BackendError(f"{path} ends within a line")
        time.sleep(POLL_SECONDS)


def _complete_lines(path: Path, position: int) -> list[bytes]:
    """The lines from `position` on, without a last one that is not complete.

    The file is read once: what is appended while its lines are taken apart is left for later.
    """
    if not path.exists():
        return []
    with path.open("rb") as handle:
        handle.seek(position)
        return [line + b"\n" for line in handle.read().split(b"\n")[:-1]]


def _chunks(text: str) -> list[dict[str, Any]]:
    """The messages of a streamed answer: JSON objects one after another, bare or in `result`."""
    decoder = json.JSONDecoder()
    messages, position = [], 0
    while position < len(text):
        message, position = decoder.raw_decode(text, position)
        messages.append(message.get("result", message))
        while position < len(text) and text[position].isspace():
            position += 1
    return messages
