"""Profiles that are switched on from outside while a run goes on: never here."""


def init(path) -> None:
    """Watch a configuration."""


def step() -> None:
    """The next step begins."""
