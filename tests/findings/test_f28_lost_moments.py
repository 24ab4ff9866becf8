"""F28: verl saves Adam's moments and does not load them: it asks for the tensors without saying that it loads."""

STACKS = ("installed", "performance")


def resumed(cured, folder):
    """Whether Adam's moments, and its step, are those of the run that saved: verl's manager saves and loads."""
    import tiny
    import torch
    from omegaconf import OmegaConf
    from verl.utils.checkpoint.megatron_checkpoint_manager import MegatronCheckpointManager
    from verl.utils.megatron.optimizer import get_megatron_optimizer, init_megatron_optim_config

    tiny.megatron()
    if tiny.has_mindspeed():
        tiny.take_extra_state()
    if cured:
        tiny.plugins()
        from rl_plugins import optimizer_resume

        optimizer_resume.install()
    adam = {"optimizer": "adam", "lr": 1e-2, "min_lr": 0.0, "clip_grad": 1.0, "weight_decay": 0.1}
    contents = ["model", "optimizer"]

    def run():
        trainer = tiny.Trainer()
        optimizer = get_megatron_optimizer(trainer.chunks, init_megatron_optim_config(OmegaConf.create(adam)))
        manager = MegatronCheckpointManager(
            config=OmegaConf.create({"model": {"path": None}}),
            checkpoint_config=OmegaConf.create(
                {"save_contents": contents, "load_contents": contents, "async_save": False}
            ),
            model_config=trainer.hf,
            transformer_config=trainer.config,
            role="actor",
            model=trainer.chunks,
            arch="Qwen3MoeForCausalLM",
            hf_config=trainer.hf,
            param_dtype=torch.bfloat16,
            share_embeddings_and_output_weights=False,
            processing_class=None,
            optimizer=optimizer,
            optimizer_scheduler=None,
            use_distributed_optimizer=True,
        )
        return trainer, optimizer, manager

    def moments(optimizer):
        parts = [part.optimizer for part in getattr(optimizer, "chained_optimizers", [optimizer])]
        kept = [part.state.get(one, {}) for part in parts for group in part.param_groups for one in group["params"]]
        return [state.get("exp_avg") for state in kept]

    trainer, optimizer, manager = run()
    trainer.step()
    optimizer.step()
    manager.save_checkpoint(folder)
    _, again, manager = run()
    manager.load_checkpoint(folder)
    pairs = list(zip(moments(optimizer), moments(again), strict=True))
    return all(other is not None and torch.equal(one, other) for one, other in pairs) and len(pairs) > 0


def test_the_moments_are_lost(on, tmp_path):
    assert on(resumed, False, tmp_path) is False


def test_with_the_plugin_they_are_there(on, tmp_path):
    assert on(resumed, True, tmp_path) is True
