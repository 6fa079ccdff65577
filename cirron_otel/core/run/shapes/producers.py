"""The producers of recordings.

A recording in the canonical form needs no shape: its units are the scopes named `step`, its
evaluations those named `eval`. This package and its importers record that form. If a recording of
theirs has no steps, its units are its requests, or else the repeated scopes that directly contain
phases of training, as in recordings of Stormlog.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Final

from ...records.rows import IndexedBatch

REQUEST: Final = "request"
"""The name of the units of a recording of this package without steps."""
TRAINING: Final = frozenset({"backward", "optimizer_step"})
"""The phases of training that mark the scope around them as a unit if there are no others."""
_OWN_VERSION: Final = "+cirron-otel"
_SDK_VERSION: Final = re.compile(r"\d+\.\d+[\w.+-]*", re.ASCII)
_FOREIGN_SPANS: Final = b'"resource_spans"'


class Producer(IntEnum):
    """A producer whose spans need a shape."""

    CIRRON_SDK = 1
    FOREIGN = 2
    """Another service, whose spans were received or read as OTLP."""


NAMES: Final = {Producer.CIRRON_SDK: "cirron-sdk", Producer.FOREIGN: "another service"}
"""The producers in messages."""


def is_cirron_sdk(version: str | None) -> bool:
    """Return whether a batch with this `sdk_version` is from cirron-sdk."""
    return (
        version is not None
        and _OWN_VERSION not in version
        and _SDK_VERSION.fullmatch(version) is not None
    )


def producer_of(rows: IndexedBatch) -> Producer | None:
    """Return the producer of a batch; None if its spans have the canonical form.

    A collector stores the spans and logs of other services with a version without a suffix.
    """
    if _FOREIGN_SPANS in bytes(rows.otel):
        return Producer.FOREIGN
    if rows.spans and is_cirron_sdk(rows.sdk_version):
        return Producer.CIRRON_SDK
    return None
