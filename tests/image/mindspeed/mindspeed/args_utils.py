"""Arguments of MindSpeed and Megatron."""


def get_mindspeed_args():
    """MindSpeed's own, none here."""
    return None


def get_full_args():
    """Megatron's where it has them, else MindSpeed's."""
    try:
        from megatron.training.global_vars import _GLOBAL_ARGS, get_args  # noqa: F401

        full_args = get_args()
        if full_args is None:
            full_args = get_mindspeed_args()
    except ImportError:
        full_args = get_mindspeed_args()
    return full_args
