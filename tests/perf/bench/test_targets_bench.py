"""The section of the collector's targets runs and prints its figures."""

from __future__ import annotations

from tests.conftest import leave_out

from .printing import has_rows, printed_by


def test_every_figure_is_printed() -> None:
    from tests.kit.backends.build import missing as missing_binary
    from tests.kit.backends.postgres import missing

    if reason := missing() or missing_binary("versitygw"):
        leave_out(reason)
    printed = printed_by("targets")
    for load in ("ResourceSpans of 500", "ResourceSpans of 50", "batches of an SDK"):
        for row in (
            rf"{load} +Parquet, directory +\d+\.\d+ µs",
            rf"{load} +Parquet, S3 +\d+\.\d+ µs",
            rf"{load} +SQLite +\d+\.\d+ µs",
            rf"{load} +PostgreSQL +\d+\.\d+ µs, server +\d+\.\d+ µs",
        ):
            assert has_rows(printed, row), printed
