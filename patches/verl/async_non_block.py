"""vLLM 0.11.0's executor interface."""

from patches.patch import Edits, Patch
from patches.shapes import parameter, replace

CALL = "ExternalZeroMQDistributedExecutor.collective_rpc"

PATCH = Patch(
    id="verl/async-non-block",
    problem="F9",
    matrices=("performance",),
    why="rollout.mode=async dies at the first engine step: vLLM 0.11.0 passes non_block, which verl's executor lacks",
    upstream="later executors of verl have it",
    targets=(
        Edits(
            "verl.workers.rollout.vllm_rollout.vllm_async_server",
            parameter(CALL, "non_block: bool = False"),
            replace(
                CALL,
                "return outputs",
                """
                if non_block:  # vLLM waits for futures then; these are there already
                    from concurrent.futures import Future

                    results, outputs = outputs, [Future() for _ in outputs]
                    for future, result in zip(outputs, results, strict=True):
                        future.set_result(result)
                ...
                """,
            ),
        ),
    ),
)
