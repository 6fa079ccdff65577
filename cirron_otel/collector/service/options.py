"""The table of the collector's options. docs/collector.md shows it; a test compares the two.

Each section of the file is a struct, and each of its keys is a field, annotated with its parser and
its meaning.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec

from ...core.config.engine import Key
from ...core.config.parsing import BOOLEAN, SIZE, TEXT, integer, number, number_above, one_of
from .exporter_options import SECONDS, CirronExporter, MetricsPushOptions, OtlpExporter, Section
from .receiver_options import ReceiverOptions
from .values import (
    ADDRESS,
    BLOBS,
    DATABASE,
    FOLDER,
    MOMENT,
    ListenAddress,
    SecretUrl,
    between,
)

# gRPC counts the bytes of a message in a signed 32-bit integer.
_MESSAGE = between(SIZE, 1024, 2**31 - 1)


class SpoolOptions(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The spool of batches."""

    directory: Annotated[
        Path, Key(FOLDER, "the directory that holds `spool/`, `state/` and `snapshots/`")
    ] = Path(".cirron")
    max_bytes: Annotated[
        int,
        Key(SIZE, "the cap of the spool, above which its oldest batches are evicted", "bytes"),
    ] = 100_000_000_000


class LimitOptions(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of requests, the journal and uploads."""

    request_bytes: Annotated[
        int, Key(_MESSAGE, "the largest body of a request after decompression", "bytes")
    ] = 64 * 1024**2
    request_elements: Annotated[
        int,
        Key(
            integer(1),
            "the maximum number of spans, events, links and attributes in one request",
            "elements",
            at_once=True,
        ),
    ] = 200_000
    in_flight_bytes: Annotated[
        int,
        Key(
            SIZE,
            "unacknowledged request bodies; above this limit, clients must retry later",
            "bytes",
        ),
    ] = 256 * 1024**2
    journal_bytes: Annotated[
        int,
        Key(
            SIZE,
            "requests that wait for translation; above this limit, clients must retry later",
            "bytes",
        ),
    ] = 1024**3
    request_seconds: Annotated[
        float, Key(SECONDS, "the longest time for a request to arrive", "s")
    ] = 30.0
    upload_bytes: Annotated[int, Key(SIZE, "the largest snapshot file", "bytes")] = 64 * 1024**3


class DedupOptions(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The detection of duplicates."""

    hours: Annotated[
        float,
        Key(
            number_above(0, 744, "hours"),
            "how long requests are remembered: a duplicate is acknowledged, but not stored",
            "h",
        ),
    ] = 24.0


class ContextOptions(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The owner of rows if neither the resource nor a header specifies it."""

    workspace: Annotated[str, Key(TEXT, "`workspaceId`", at_once=True)] = "default"
    run: Annotated[str | None, Key(TEXT, "`runId`; null: the session's id", at_once=True)] = None
    pipeline: Annotated[str | None, Key(TEXT, "`pipelineId`", at_once=True)] = None
    deployment: Annotated[str | None, Key(TEXT, "`deploymentId`", at_once=True)] = None
    model: Annotated[str | None, Key(TEXT, "`modelId`", at_once=True)] = None


RetentionDays = Annotated[
    float | None,
    Key(
        number_above(0, 36_500, "days"),
        "rows of older batches are removed; null: no rows are removed",
        "days",
        at_once=True,
    ),
]
RetentionShare = Annotated[
    float,
    Key(
        number(0, 1),
        "if a larger share of the batches has expired, none is removed without confirmation",
        at_once=True,
    ),
]
RetentionConfirmed = Annotated[
    datetime | None,
    Key(
        MOMENT,
        "confirms the removal of batches created before this time, however many they are",
        at_once=True,
    ),
]


class StorageOptions(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The database with the platform's tables."""

    url: Annotated[
        SecretUrl | None,
        Key(
            DATABASE,
            "the database: `sqlite:///FILE` or `postgresql://…`; null: no database",
            is_secret=True,
        ),
    ] = None
    timeout_s: Annotated[
        float,
        Key(
            SECONDS,
            "the longest time for a statement on PostgreSQL: the connection is then closed, and the"
            " batches are sent again over a new one",
            "s",
        ),
    ] = 60.0
    retention_days: RetentionDays = None
    retention_share: RetentionShare = 0.5
    retention_confirmed: RetentionConfirmed = None
    context: ContextOptions = msgspec.field(default_factory=ContextOptions)


class BlobOptions(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The store of snapshot files."""

    url: Annotated[
        str | None,
        Key(
            BLOBS, "a directory or `s3://BUCKET/PREFIX`; null: files stay in the spool's directory"
        ),
    ] = None


class ParquetOptions(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The columnar tables."""

    url: Annotated[
        str | None, Key(BLOBS, "a directory or `s3://BUCKET/PREFIX`; null: no tables")
    ] = None
    roll_bytes: Annotated[
        int,
        Key(
            between(SIZE, 1024, 256 * 1024**2),
            "batches are written when so many wait",
            "bytes",
        ),
    ] = 32 * 1024**2
    roll_s: Annotated[
        float, Key(SECONDS, "batches are written when the oldest has waited so long", "s")
    ] = 60.0
    compact_bytes: Annotated[
        int,
        Key(
            between(SIZE, 1024, 1024**3),
            "smaller groups are merged, up to so many bytes of batches",
            "bytes",
        ),
    ] = 128 * 1024**2
    retention_days: RetentionDays = None
    retention_share: RetentionShare = 0.5
    retention_confirmed: RetentionConfirmed = None


class HealthOptions(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The health endpoints."""

    enabled: Annotated[bool, Key(BOOLEAN, "answer `/health` and `/ready`")] = True
    address: Annotated[
        ListenAddress | None,
        Key(
            ADDRESS,
            "an address for `/health`, `/ready` and `/metrics` without TLS, in addition to that of"
            " the HTTP receiver; `off`: none",
        ),
    ] = None


class MetricsOptions(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The collector's own metrics."""

    prometheus: Annotated[bool, Key(BOOLEAN, "answer `/metrics` on the HTTP receiver")] = True
    otlp: MetricsPushOptions | None = None


class LogOptions(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The collector's logs on stderr."""

    level: Annotated[
        str,
        Key(
            one_of("debug", "info", "warning", "error"),
            "the lowest level that is written: `debug`, `info`, `warning` or `error`",
            at_once=True,
        ),
    ] = "info"
    format: Annotated[
        str,
        Key(one_of("json", "text"), "`json`, one object per line, or `text`", at_once=True),
    ] = "json"


class CollectorOptions(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All options of one collector, each with a valid value."""

    spool: SpoolOptions = msgspec.field(default_factory=SpoolOptions)
    receivers: ReceiverOptions = msgspec.field(default_factory=ReceiverOptions)
    limits: LimitOptions = msgspec.field(default_factory=LimitOptions)
    dedup: DedupOptions = msgspec.field(default_factory=DedupOptions)
    storage: StorageOptions = msgspec.field(default_factory=StorageOptions)
    blobs: BlobOptions = msgspec.field(default_factory=BlobOptions)
    parquet: ParquetOptions = msgspec.field(default_factory=ParquetOptions)
    exporters: tuple[OtlpExporter | CirronExporter, ...] = ()
    health: HealthOptions = msgspec.field(default_factory=HealthOptions)
    metrics: MetricsOptions = msgspec.field(default_factory=MetricsOptions)
    logs: LogOptions = msgspec.field(default_factory=LogOptions)
    drain_s: Annotated[
        float,
        Key(
            SECONDS,
            "the longest time for shutdown: open requests, waiting translations, and one last"
            " attempt of each exporter",
            "s",
            at_once=True,
        ),
    ] = 30.0
