"""Gives Adam's moments back to a run that resumes.

verl asks Megatron for the list of tensors to load without saying that it loads (`generate_state_dict` calls
`sharded_state_dict` without `is_loading`, megatron_checkpoint_manager.py at 796871d, 21271aa and 0.6.0; mended later by
its #3850). Megatron then lists the moments that exist, which are none before the first update: they are saved, never
loaded, and start from zero again while the step count goes on. No message, other weights from the second step on.
"""

import functools

from verl.utils.checkpoint.megatron_checkpoint_manager import MegatronCheckpointManager


def install() -> None:
    """Makes the moments exist before a checkpoint is loaded, by Megatron's own initialisation."""
    MegatronCheckpointManager.load_checkpoint = _initialized(MegatronCheckpointManager.load_checkpoint)


def _initialized(load_checkpoint):
    @functools.wraps(load_checkpoint)
    def load(manager, *args, **kwargs):
        if manager.should_load_optimizer and manager.optimizer is not None:
            for optimizer in getattr(manager.optimizer, "chained_optimizers", [manager.optimizer]):
                optimizer.init_state_fn(optimizer.optimizer, optimizer.config)
        return load_checkpoint(manager, *args, **kwargs)

    return load
