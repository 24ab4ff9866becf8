"""Which of MindSpeed's features this worker's arguments switch on."""

import sys

from rl_probes import journal


def install() -> None:
    """Writes their names as they are now: verl has given MindSpeed its arguments before it builds a model."""
    if "mindspeed.megatron_adaptor" in sys.modules:
        journal.write("features", {"active": active()})


def active() -> list[str]:
    """The features whose condition holds, in MindSpeed's order (features_manager.py, apply_features_patches)."""
    from mindspeed.args_utils import get_full_args
    from mindspeed.features_manager.features_manager import MindSpeedFeaturesManager

    arguments = get_full_args()
    return [one.feature_name for one in MindSpeedFeaturesManager.FEATURES_LIST if one.is_need_apply(arguments)]
