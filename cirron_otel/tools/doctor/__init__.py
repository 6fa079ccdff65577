"""The checks of `cirron-otel doctor`, one module for each kind of problem.

No check raises for a problem it detects, or exceeds its time limit. No check changes anything,
except that one span is sent, and one file is created in the spool's directory and removed at once.
"""

from __future__ import annotations

from .check import Check, CheckState
from .examine import DoctorRequest, examine

__all__ = ["Check", "CheckState", "DoctorRequest", "examine"]
