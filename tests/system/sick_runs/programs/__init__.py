"""Real training programs, each with a planted cause and a healthy twin."""

from . import ends, in_all_steps, in_some_steps, ranks  # they register their programs
from .job import PROGRAMS, Program

__all__ = ["PROGRAMS", "Program", "ends", "in_all_steps", "in_some_steps", "ranks"]
