"""Hooks into frameworks. Each is imported only once the program imports its framework."""
