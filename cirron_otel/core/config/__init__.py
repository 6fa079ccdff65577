"""The options of `profile()` and `Cirron()`: one table, and the sources of their values.

No function here raises for a wrong value: it is reported, and the next source is used.
"""
