"""Marks for the profiler. Nothing listens."""


def mark(message=None, stream=None, domain="default") -> None:
    """A point in time."""


def range_start(message=None, stream=None, domain="default") -> int:
    """A span begins; its number, 0: none."""
    return 0


def range_end(range_id=0, domain="default") -> None:
    """A span ends."""


def mstx_range(message=None, stream=None, domain="default"):
    """Decorator: the function's calls are spans."""
    return lambda function: function
