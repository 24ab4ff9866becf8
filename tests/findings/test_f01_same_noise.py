"""F1: rollout engines draw the same samples, as the first `trainer_mode()` overwrites the state seeded per rank."""

import pytest

STACKS = ("installed", "performance")


def draws(cure):
    """What this rank's rollout would draw first: verl's own `_build_rollout` on two data-parallel ranks."""
    import tiny
    import torch
    from omegaconf import OmegaConf
    from verl.workers import megatron_workers
    from verl.workers.config import HFModelConfig, RolloutConfig

    class Rollout:
        """The place of vLLM, which draws nothing while it is built."""

        def __init__(self, config, model_config, device_mesh):
            self.config, self.device_mesh = config, device_mesh

        async def release(self):
            pass

    tiny.ranks()
    rollout = RolloutConfig(name="vllm", mode="sync", tensor_model_parallel_size=1)
    values = {RolloutConfig: rollout, HFModelConfig: None}
    megatron_workers.omega_conf_to_dataclass = lambda config, dataclass_type=RolloutConfig: values[dataclass_type]
    megatron_workers.get_rollout_class = lambda name, mode: Rollout
    kind = megatron_workers.ActorRolloutRefWorker
    kind.generate_sequences = lambda worker, prompts: worker.gen_random_states
    if cure == "plugin":
        tiny.plugins()
        from rl_plugins import rollout_seeds

        rollout_seeds.install()
    elif cure == "patch verl/rollout-seeds":
        keep_the_seeded_state(kind)

    worker = kind.__new__(kind)
    worker._world_size = 2
    worker.config = OmegaConf.create(
        {
            "rollout": {"tensor_model_parallel_size": 1, "data_parallel_size": 1, "pipeline_model_parallel_size": 1,
                        "name": "vllm", "free_cache_engine": True},
            "model": {},
            "actor": {"megatron": {"seed": 42}},
        }
    )  # fmt: skip
    worker._register_dispatch_collect_info = lambda *_, **__: None  # for Ray's driver, which is not here
    worker._is_actor, worker.bridge, worker.actor_model_config, worker.dtype = True, object(), None, None
    worker.actor = type("Actor", (), {"actor_module": []})
    torch.npu.manual_seed(42)
    worker._build_rollout()
    prompts = type("Prompts", (), {"meta_info": {"global_steps": 1}})
    torch.npu.set_rng_state(worker.generate_sequences(prompts))
    return torch.rand(4, device="npu").tolist()


def keep_the_seeded_state(kind):
    """Stands for the patch: the first `trainer_mode` is not the end of a rollout, so it keeps the rollout's state."""
    build = kind._build_rollout

    def build_and_keep(worker, *arguments, **named):
        switch = worker.trainer_mode

        async def first_switch():
            seeded = worker.gen_random_states
            await switch()
            worker.gen_random_states = seeded

        worker.trainer_mode = first_switch
        build(worker, *arguments, **named)
        del worker.trainer_mode

    kind._build_rollout = build_and_keep


def test_two_engines_draw_the_same(on):
    first, second = on(draws, None, ranks=2)
    assert first == second


@pytest.mark.parametrize("cure", ["plugin", "patch verl/rollout-seeds"])
def test_with_a_cure_they_differ(on, cure):
    first, second = on(draws, cure, ranks=2)
    assert first != second
