"""Graphs that are captured."""

from patches.patch import Added, Edits, Patch
from patches.shapes import either, imports, replace

PATCH = Patch(
    id="verl/real-compile",
    problem="F4",
    matrices=("performance", "commercial"),
    why="MindSpeed replaces torch.compile by an identity: graph mode captures nothing, and the log says that it did",
    upstream="#4209 (37a01f080) tries it and does nothing: it calls the attribute is_applied and swallows the error",
    targets=(
        Edits(
            "verl.workers.megatron_workers",
            imports("from verl.utils.rl_real_compile import real_compile"),
            either(
                *(
                    replace("ActorRolloutRefWorker.init_model", call, "with real_compile():\n    ...")
                    for call in (
                        'self._build_rollout(trust_remote_code=self.config.model.get("trust_remote_code", False))',
                        "self.rollout, self.sharding_manager = self._build_rollout("
                        'trust_remote_code=self.config.model.get("trust_remote_code", False))',
                    )
                )
            ),
        ),
        Edits(
            "verl.workers.rollout.vllm_rollout.vllm_rollout_spmd",
            imports("from verl.utils.rl_real_compile import real_compile"),
            either(
                *(
                    replace("vLLMAsyncRollout._loop_forever", call, "with real_compile():\n    ...")
                    for call in (
                        "result = await self._execute_method(method, *args, **kwargs)",
                        "result = self.execute_method(method, *args, **kwargs)",
                    )
                )
            ),
        ),
        Added("verl.utils.rl_real_compile"),
    ),
)
