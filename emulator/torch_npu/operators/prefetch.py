"""npu_prefetch, a hint to load weights into the cache (op-plugin 691bf15): checks its arguments and is counted."""

from .registry import check, operator


def _check(self, dependency, max_size, offset):
    check(max_size > 0, f"The max_size should be greater than zero, but got {max_size}.")
    check(offset >= 0, f"The offset should be nonnegative, but got {offset}.")


operator(
    "npu_prefetch(Tensor self, Tensor? dependency, int max_size, int offset=0) -> ()", meta=_check, on_device=True
)(_check)
