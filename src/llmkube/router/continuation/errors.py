"""What stops an answer from going on at another engine."""


class JoinError(Exception):
    """What an engine says does not continue what was said; the message says why."""
