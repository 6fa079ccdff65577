"""The checks of `cirron-otel doctor`, one module for each kind of problem.

No check raises an exception for a problem that it detects, and none exceeds its time limit. No
check changes anything, except that one span is sent, and one file is created in the spool's
directory and removed immediately.
"""

from __future__ import annotations

from .check import Check, CheckState
from .examine import DoctorRequest, examine

__all__ = ["Check", "CheckState", "DoctorRequest", "examine"]
