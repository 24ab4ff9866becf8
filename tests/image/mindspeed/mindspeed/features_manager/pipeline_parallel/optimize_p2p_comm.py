"""A feature that patches Megatron's training."""


def core_transformer_config_from_args_wrapper(function):
    """Changes nothing."""
    return function


class OptimizeP2PCommFeature:
    """Sends and receives of pipeline stages."""

    def register_patches(self, patch_manager, args):
        """Registers what the feature replaces."""
        if int(args.pipeline_model_parallel_size) >= 2:
            patch_manager.register_patch(
                "megatron.training.arguments.core_transformer_config_from_args",
                core_transformer_config_from_args_wrapper,
            )
