"""npu_apply_fused_adamw_v2, MindSpeed's AdamW step (35da6ac, ops/csrc/cann/npu_apply_fused_adamw_v2.cpp)."""

import torch

from .registry import check, operator


@operator(
    "npu_apply_fused_adamw_v2(Tensor(a!) param, Tensor grad, Tensor(b!) exp_avg, Tensor(c!) exp_avg_sq, "
    "Tensor(d!)? max_exp_avg_sq, Tensor state_step, float lr, float beta1, float beta2, float weight_decay, float eps, "
    "bool amsgrad, bool maximize) -> ()",
    meta=lambda *_: None,
    namespace="mindspeed_extension",
    export=False,
    gathered=True,
)
def npu_apply_fused_adamw_v2(a):
    """One step of AdamW in place. state_step: the number of this step, from 1. max_exp_avg_sq: with amsgrad only."""
    for name in ("grad", "exp_avg", "exp_avg_sq"):
        tensor = getattr(a, name)
        check(
            tensor.shape == a.param.shape,
            lambda n=name, t=tensor: (
                f"npu_apply_fused_adamw_v2: {n} must have param's shape {tuple(a.param.shape)}, not {tuple(t.shape)}"
            ),
        )
    step = float(a.state_step)
    check(step >= 1, f"npu_apply_fused_adamw_v2: state_step counts from 1, but is {step}")
    # the kernel behind aten's fused AdamW: MindSpeed's plain and swapped optimizers stay bit-identical
    torch._fused_adamw_(
        [a.param],
        [a.grad.to(a.param.dtype)],
        [a.exp_avg],
        [a.exp_avg_sq],
        [a.max_exp_avg_sq] if a.amsgrad else [],
        [torch.tensor(step, device="cpu")],
        lr=a.lr,
        beta1=a.beta1,
        beta2=a.beta2,
        weight_decay=a.weight_decay,
        eps=a.eps,
        amsgrad=a.amsgrad,
        maximize=a.maximize,
    )
