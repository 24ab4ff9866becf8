"""F5: verl ignores rollout.cudagraph_capture_sizes, as it has made a list of what it then wants to be a ListConfig."""

STACKS = ("installed", "performance")
SIZES = [1, 2, 4]


def compilation(settings):
    """What verl's rollout with these settings gives vLLM as compilation_config."""
    from types import SimpleNamespace

    import tiny
    from omegaconf import OmegaConf
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.rollout.vllm_rollout import vllm_rollout_spmd

    tiny.ranks()
    given = {}

    class Started(Exception):
        pass

    def engine(**arguments):
        given.update(arguments)
        raise Started

    vllm_rollout_spmd.LLM = engine
    config = {"_target_": "verl.workers.config.RolloutConfig", "name": "vllm", "enforce_eager": False,
              "tensor_model_parallel_size": 1, "prompt_length": 16, "response_length": 16}  # fmt: skip
    rollout = omega_conf_to_dataclass(OmegaConf.create(config | settings))
    model = SimpleNamespace(
        local_path="model", tokenizer=None, hf_config=tiny.hf_config(), trust_remote_code=False, lora_rank=0
    )
    try:
        vllm_rollout_spmd.vLLMRollout(rollout, model, device_mesh=None)
    except Started:
        return given.get("compilation_config")


def test_the_key_is_ignored(on):
    assert on(compilation, {"cudagraph_capture_sizes": SIZES}) is None


def test_engine_kwargs_arrive(on):
    wanted = {"cudagraph_capture_sizes": SIZES}
    assert on(compilation, {"engine_kwargs": {"vllm": {"compilation_config": wanted}}}) == wanted
