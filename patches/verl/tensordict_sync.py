"""Batches that have arrived before they are read."""

from patches.patch import Added, Edits, Patch
from patches.shapes import append

PATCH = Patch(
    id="verl/tensordict-sync",
    problem="S8",
    matrices=("commercial",),
    why="tensordict before 0.10.0 copies to the host without waiting and then waits for CUDA and MPS only: what "
    "comes from an NPU may be read before it is there",
    upstream="tensordict 0.10.0; verl #3222",
    targets=(
        Edits(
            "verl",
            append(
                "",
                """
                from .utils import rl_tensordict_sync  # noqa: E402

                rl_tensordict_sync.install()
                """,
                fixed="TensorDictBase._sync_all = _sync_all_patch",
            ),
        ),
        Added("verl.utils.rl_tensordict_sync"),
    ),
)
