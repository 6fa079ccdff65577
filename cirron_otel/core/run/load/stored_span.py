"""A span that is rebuilt from columns."""

from __future__ import annotations

from ...records.rows import IndexedSpan


class StoredSpan(IndexedSpan):
    """A span whose attributes are columns: those that figures need."""

    message: str | None = None
    peaks: tuple[int | None, int | None] = (None, None)
    has_samples: bool = False
    has_sums: bool = False
    has_origin: bool = False
    training: int = 0

    @property
    def error(self) -> str | None:
        """The span's error message; None if the span has no error."""
        return self.message

    @property
    def has_attributes(self) -> bool:
        """Whether the span may have peaks."""
        return True

    @property
    def device_peaks(self) -> tuple[int | None, int | None]:
        """The peaks of the device's memory, allocated and reserved, bytes."""
        return self.peaks

    @property
    def is_peak_sampled(self) -> bool:
        """Whether the peaks are the largest samples, and not exact."""
        return self.has_samples

    @property
    def phases_are_sums(self) -> bool:
        """Whether only the sums of its phases are recorded."""
        return self.has_sums

    @property
    def is_summary(self) -> bool:
        """Whether it is from the summary of a step."""
        return self.has_origin
