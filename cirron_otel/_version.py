"""The version of this package, in a module that imports nothing."""

from __future__ import annotations

__version__ = "0.1.0"

SDK_VERSION = f"0.3.0+cirron-otel.{__version__}"
"""The `sdk_version` of our own batches. Readers that branch on the version keep working."""
