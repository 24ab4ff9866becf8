"""The state of attention, from the lengths of this step."""

from patches.patch import Edits, Patch
from patches.shapes import replace

STATE = "attn_state = self._build_attn_state(num_reqs, num_scheduled_tokens, num_valid_tokens)"

PATCH = Patch(
    id="vllm-ascend/attention-state",
    problem="F3",
    matrices=("performance",),
    why="the kind of attention is chosen by the last step's lengths: after a prefix-cache hit tokens can be "
    "wrong, and first prefills take a slower path",
    upstream="broken by 81bd6e4c99, mended by 4b3bd4f397 four days after the pin; 1de16ea sets the lengths first",
    targets=(
        Edits(
            "vllm_ascend.worker.model_runner_v1",
            replace(
                "NPUModelRunner._prepare_inputs",
                STATE,
                """
                self.seq_lens_np[:num_reqs] = self.input_batch.num_computed_tokens_cpu[:num_reqs] + num_scheduled_tokens
                ...
                """,
                fixed=f"seq_lens_cpu = self.seq_lens_cpu[:num_reqs]\n{STATE}",
            ),
        ),
    ),
)
