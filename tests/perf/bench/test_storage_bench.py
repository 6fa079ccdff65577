"""The section of the storage runs and prints its figures."""

from __future__ import annotations

from tests.conftest import leave_out

from .printing import has_rows, printed_by


def test_every_figure_is_printed() -> None:
    from tests.kit.backends.postgres import missing

    if reason := missing():
        leave_out(reason)
    printed = printed_by("storage")
    for row in (
        r"COPY, as stored +writer +\d+\.\d+ µs, server +\d+\.\d+ µs: +1\.00 x COPY",
        r"INSERT row by row +writer +\d+\.\d+ µs",
        r"COPY, binary +writer",
        r"COPY, 90 days of partitions +writer",
        r"1 writer +[\d,]+ spans/s +1\.00 x one, +\d+\.\d+ µs of CPU",
        r"2 writers +[\d,]+ spans/s",
    ):
        assert has_rows(printed, row), printed
