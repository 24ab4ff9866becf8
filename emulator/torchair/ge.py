"""Types of the compiler's graphs, named in annotations."""


class Tensor:
    """A value of a graph."""


class TensorSpec:
    """A value's type and shape."""


class DataType:
    """An element type."""
