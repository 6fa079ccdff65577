"""The error of recordings that the reducer cannot read."""


class NotReducibleError(Exception):
    """All records must be read into columns first; the message is the reason."""
