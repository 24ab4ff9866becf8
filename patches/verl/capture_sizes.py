"""The sizes of graphs that a recipe asks for."""

from patches.patch import Edits, Patch
from patches.shapes import swap

PATCH = Patch(
    id="verl/capture-sizes",
    problem="F5",
    matrices=("performance",),
    why="rollout.cudagraph_capture_sizes is ignored with a warning: it has become a list, an OmegaConf list is wanted",
    upstream="none; 796871d has no such key",
    targets=(
        Edits(
            "verl.workers.rollout.vllm_rollout.vllm_rollout_spmd",
            swap(
                "vLLMRollout.__init__",
                "isinstance(cudagraph_capture_sizes, ListConfig)",
                "isinstance(cudagraph_capture_sizes, list | ListConfig)",
            ),
        ),
    ),
)
