"""The programs, a module for each framework."""
