"""Configurations for tests: a file written and loaded, and one good value for every key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from cirron_otel.collector.service.config_file import ConfigError, Loaded, load_options
from cirron_otel.collector.service.options import CollectorOptions

GOOD: dict[str, tuple[Any, str]] = {
    "spool.directory": ("there", "there"),
    "spool.max_bytes": ("3GB", "3000000000"),
    "receivers.grpc.address": ("[::1]:0", "[::1]:0"),
    "receivers.grpc.tls.cert": ("FILE", "FILE"),
    "receivers.grpc.tls.key": ("FILE", "FILE"),
    "receivers.grpc.tls.client_ca": ("FILE", "FILE"),
    "receivers.grpc.max_concurrent_streams": (7, "7"),
    "receivers.grpc.max_connections": (7, "7"),
    "receivers.grpc.keepalive.time_s": (5, "5.0"),
    "receivers.grpc.keepalive.min_time_s": ("5.5", "5.5"),
    "receivers.grpc.keepalive.max_connection_age_s": (5, "5.0"),
    "receivers.grpc.keepalive.max_connection_age_grace_s": (5, "5.0"),
    "receivers.http.address": ("a.example:65535", "a.example:65535"),
    "receivers.http.tls.cert": ("FILE", "FILE"),
    "receivers.http.tls.key": ("FILE", "FILE"),
    "receivers.http.tls.client_ca": ("FILE", "FILE"),
    "receivers.http.max_connections": (5, "5"),
    "receivers.http.idle_s": (5, "5.0"),
    "receivers.http.cors.allowed_origins": (
        "https://a.example,http://*.b:3000",
        "['https://a.example', 'http://*.b:3000']",
    ),
    "receivers.http.cors.allowed_headers": ("X-A,*", "['x-a', '*']"),
    "receivers.http.cors.max_age": (600, "600"),
    "receivers.traceml.address": ("127.0.0.3:29765", "127.0.0.3:29765"),
    "receivers.traceml.allow": ("10.0.0.0/8,fd00::/8", "['10.0.0.0/8', 'fd00::/8']"),
    "receivers.traceml.forward": ("127.0.0.2:29765", "127.0.0.2:29765"),
    "receivers.traceml.max_connections": (5, "5"),
    "receivers.traceml.idle_s": (5, "5.0"),
    "receivers.auth.tokens": (["sesame1", "sesame2"], "['****', '****']"),
    "receivers.auth.tokens_file": ("FILE", "FILE"),
    "receivers.headers.pass": ("X-Scope-OrgID,x-b", "['x-scope-orgid', 'x-b']"),
    "receivers.signals.logs": ("Accept", "accept"),
    "receivers.signals.metrics": ("accept", "accept"),
    "limits.request_bytes": ("1MiB", "1048576"),
    "limits.request_elements": (5, "5"),
    "limits.in_flight_bytes": ("65MiB", "68157440"),
    "limits.journal_bytes": ("129MiB", "135266304"),
    "limits.request_seconds": (5, "5.0"),
    "limits.upload_bytes": (5, "5"),
    "dedup.hours": (48, "48.0"),
    "storage.url": ("postgresql://u:sesame@h/db", "postgresql://h/db"),
    "storage.timeout_s": (5, "5.0"),
    "storage.retention_days": (0.5, "0.5"),
    "storage.retention_share": (1, "1.0"),
    "storage.retention_confirmed": ("2026-08-31", "2026-08-31T00:00:00+00:00"),
    "storage.context.workspace": ("w", "w"),
    "storage.context.run": (12, "12"),
    "storage.context.pipeline": ("p", "p"),
    "storage.context.deployment": ("d", "d"),
    "storage.context.model": ("m", "m"),
    "blobs.url": ("s3://bucket/prefix", "s3://bucket/prefix"),
    "parquet.url": ("s3://bucket/prefix", "s3://bucket/prefix"),
    "parquet.roll_bytes": ("1MiB", "1048576"),
    "parquet.roll_s": (5, "5.0"),
    "parquet.compact_bytes": ("2MiB", "2097152"),
    "parquet.retention_days": (0.5, "0.5"),
    "parquet.retention_share": (1, "1.0"),
    "parquet.retention_confirmed": ("2026-08-31", "2026-08-31T00:00:00+00:00"),
    "exporters[otlp].type": ("otlp", "otlp"),
    "exporters[otlp].endpoint": ("https://other:4317/", "https://other:4317"),
    "exporters[otlp].protocol": ("http/json", "http/json"),
    "exporters[otlp].headers": ({"X-Key": "ses ame"}, "{'x-key': '****'}"),
    "exporters[otlp].headers_file": ("HEADERS", "HEADERS"),
    "exporters[otlp].headers_from": (["X-Scope-OrgID"], "['x-scope-orgid']"),
    "exporters[otlp].tenant": ("t", "t"),
    "exporters[otlp].tls.ca": ("FILE", "FILE"),
    "exporters[otlp].tls.cert": ("FILE", "FILE"),
    "exporters[otlp].tls.key": ("FILE", "FILE"),
    "exporters[otlp].compression": ("none", "none"),
    "exporters[otlp].timeout_s": (3, "3.0"),
    "exporters[otlp].requests_in_flight": (3, "3"),
    "exporters[cirron].type": ("cirron", "cirron"),
    "exporters[cirron].endpoint": ("http://localhost:1", "http://localhost:1"),
    "exporters[cirron].ingest_path": ("x", "/x"),
    "exporters[cirron].api_key": ("sesame", "****"),
    "exporters[cirron].api_key_file": ("FILE", "FILE"),
    "exporters[cirron].headers_from": (["X-Cirron-Run-Id"], "['x-cirron-run-id']"),
    "exporters[cirron].ca": ("FILE", "FILE"),
    "exporters[cirron].timeout_s": (3, "3.0"),
    "exporters[cirron].requests_in_flight": (3, "3"),
    "health.address": ("0.0.0.0:13133", "0.0.0.0:13133"),
    "health.enabled": (False, "False"),
    "metrics.prometheus": ("no", "False"),
    "metrics.otlp.endpoint": ("http://h:4317", "http://h:4317"),
    "metrics.otlp.protocol": ("http/protobuf", "http/protobuf"),
    "metrics.otlp.headers": ({"a": "sesame"}, "{'a': '****'}"),
    "metrics.otlp.interval_s": (3, "3.0"),
    "logs.level": ("DEBUG", "debug"),
    "logs.format": ("text", "text"),
    "drain_s": (3, "3.0"),
}
"""For each key a value, and how `tree_of` shows it; FILE and HEADERS are files that there are."""

_BESIDE: dict[str, Any] = {
    "exporters[otlp]": {"type": "otlp", "endpoint": "https://host:4317"},
    "exporters[otlp].tls": {"cert": "FILE"},
    "exporters[cirron]": {"type": "cirron", "api_key": "sesame"},
    "receivers.grpc.tls": {"cert": "FILE", "key": "FILE"},
    "receivers.http.tls": {"cert": "FILE", "key": "FILE"},
    "metrics.otlp": {"endpoint": "http://h:4317"},
}
"""What must stand beside a key."""


def tree_with(path: str, value: Any) -> dict[str, Any]:
    """A configuration with `value` at a documented path, and what must stand beside it."""
    names = path.replace("[", ".[").split(".")
    tree: Any = value
    for at in range(len(names) - 1, -1, -1):
        name, above = names[at], ".".join(names[:at]).replace(".[", "[")
        if name.startswith("["):
            tree = [tree]
        elif path.endswith("api_key_file") and above == "exporters[cirron]":
            tree = {"type": "cirron", name: tree}
        else:
            tree = {**_BESIDE.get(above, {}), name: tree}
    return dict(tree)


def value_at(tree: Any, path: str) -> Any:
    """The value at a documented path of what `tree_of` gives."""
    for name in path.replace("[otlp]", ".0").replace("[cirron]", ".0").split("."):
        tree = tree[int(name)] if isinstance(tree, list) else tree[name]
    return tree


def load(
    directory: Path, config: Any, environ: Mapping[str, str] | None = None, **flags: str
) -> Loaded:
    """Load a file with `config`, text or a tree. Raises ConfigError."""
    file = directory / "collector.yaml"
    file.write_text(config if isinstance(config, str) else yaml.safe_dump(config))
    given = {f"--{name.replace('_', '-')}": value for name, value in flags.items()}
    return load_options(file, given, environ or {})


def options(directory: Path, config: Any) -> CollectorOptions:
    return load(directory, config).options


def problems(
    directory: Path, config: Any, environ: Mapping[str, str] | None = None, **flags: str
) -> list[str]:
    """What is wrong with `config`, without the name of its directory."""
    try:
        load(directory, config, environ, **flags)
    except ConfigError as error:
        return [each.replace(f"{directory}/", "") for each in error.problems]
    return []
