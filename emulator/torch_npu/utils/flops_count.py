"""Counter of floating point operations: imported by MindSpeed, not emulated."""


class FlopsCounter:
    """Raises when it is made: there is nothing behind it."""

    def __init__(self):
        raise NotImplementedError("The emulated NPU does not count floating point operations.")
