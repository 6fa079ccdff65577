"""Hooks into frameworks, which are imported only once the program imports the framework."""
