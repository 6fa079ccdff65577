"""The options of `profile()` and `Cirron()`: one table, and the sources of their values.

An invalid value never ends the program: it is reported, and the next source is used.
"""
