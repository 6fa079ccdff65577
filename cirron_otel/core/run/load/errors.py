"""The error of recordings that the reducer cannot read alone."""


class NeedsIndexError(Exception):
    """The recording must be read through a database; the message is the reason."""
