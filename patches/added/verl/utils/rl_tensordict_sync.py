"""Makes tensordict wait for the accelerator, whichever it is, after it copied to the host."""


def install() -> None:
    """Does nothing from tensordict 0.10.0 on, which waits by itself."""
    import tensordict
    from packaging.version import parse

    if parse(tensordict.__version__) < parse("0.10.0"):
        tensordict.base.TensorDictBase._sync_all = _wait


def _wait(_) -> None:
    import torch

    device = torch.accelerator.current_accelerator()
    if device is not None:
        torch.accelerator.synchronize()
