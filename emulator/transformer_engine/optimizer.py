"""FusedAdam with TransformerEngine's contract towards Megatron's distributed optimizer."""

import torch


class FusedAdam(torch.optim.Optimizer):
    """AdamW whose step counter lies in the parameter group.

    Megatron's distributed optimizer saves parameter groups and the two moments, nothing else: torch.optim.AdamW, which
    counts steps per parameter, does not survive its checkpoints. State per parameter: exp_avg, exp_avg_sq (dtype and
    shape of the parameter). Each parameter is updated by the same sequence of operators whatever its neighbours, so a
    resumed run repeats the unbroken one bit for bit.
    """

    def __init__(
        self,
        params,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ):
        defaults = {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps}
        super().__init__(params, defaults | {"weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        """One update of all parameters that have a gradient. A closure is not supported."""
        if closure is not None:
            raise ValueError("FusedAdam.step takes no closure, found one; compute the gradients before the call")
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def _update(self, parameter, group):
        state = self.state[parameter]
        if not state:
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        beta1, beta2 = group["betas"]
        first, second = (1 - beta ** group["step"] if group["bias_correction"] else 1.0 for beta in group["betas"])
        gradient = parameter.grad
        state["exp_avg"].lerp_(gradient, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        denominator = state["exp_avg_sq"].sqrt().div_(second**0.5).add_(group["eps"])
        parameter.addcdiv_(state["exp_avg"], denominator, value=-group["lr"] / first)
