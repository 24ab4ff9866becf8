"""Pipeline parallelism without `megatron.training`."""

from patches.patch import Edits, Patch
from patches.shapes import replace

REGISTER = """
patch_manager.register_patch(
    "megatron.training.arguments.core_transformer_config_from_args",
    core_transformer_config_from_args_wrapper,
)
"""

PATCH = Patch(
    id="mindspeed/p2p-guard",
    problem="S9",
    matrices=("commercial",),
    why="pipeline_model_parallel_size in override_transformer_config: ModuleNotFoundError, megatron.training is "
    "not in the package megatron-core",
    upstream="20846686 (2025-09-02)",
    targets=(
        Edits(
            "mindspeed.features_manager.pipeline_parallel.optimize_p2p_comm",
            replace(
                "OptimizeP2PCommFeature.register_patches",
                REGISTER,
                """
                from importlib.util import find_spec

                if find_spec("megatron.training") is not None:
                    ...
                """,
                fixed="megatron_training_available = is_megatron_training_available()",
            ),
        ),
    ),
)
