"""Norms and activations: npu_rms_norm, npu_add_rms_norm, npu_swiglu, npu_fast_gelu, npu_scaled_masked_softmax.

Signatures: op-plugin 691bf15, op_plugin_functions.yaml; result types: _meta_registrations.py and
RmsNormBackwardKernelOpApi.cpp there. Everything is computed in float32 and rounded once, at the end.
"""

import torch

from .registry import check, gradient, operator


def _normalise(x: torch.Tensor, gamma: torch.Tensor, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    wide = x.float()
    dims = tuple(range(x.dim() - gamma.dim(), x.dim()))
    rstd = torch.rsqrt(wide.square().mean(dims, keepdim=True) + epsilon)
    return (wide * rstd * gamma.float()).to(x.dtype), rstd


def _check_gamma(name: str, x: torch.Tensor, gamma: torch.Tensor) -> None:
    check(
        0 < gamma.dim() <= x.dim() and x.shape[x.dim() - gamma.dim() :] == gamma.shape,
        lambda: f"{name}: gamma must have the last dimensions of x, {tuple(x.shape)}, but it is {tuple(gamma.shape)}",
    )


def _rstd_like(x: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
    kept = x.dim() - gamma.dim()
    return x.new_empty((*x.shape[:kept], *(1,) * gamma.dim()), dtype=torch.float32)


def _rms_norm_meta(self, gamma, epsilon):
    return torch.empty_like(self), _rstd_like(self, gamma)


@operator(
    "npu_rms_norm(Tensor self, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor)",
    meta=_rms_norm_meta,
)
def npu_rms_norm(self, gamma, epsilon):
    """-> self / rms(self) * gamma, and 1 / rms in float32. The norm is over the dimensions of gamma."""
    _check_gamma("npu_rms_norm", self, gamma)
    return _normalise(self, gamma, epsilon)


@operator(
    "npu_rms_norm_backward(Tensor dy, Tensor self, Tensor gamma, Tensor rstd) -> (Tensor, Tensor)",
    meta=lambda dy, self, gamma, rstd: (torch.empty_like(self), torch.empty_like(gamma, dtype=torch.float32)),
    phase="backward",
)
def npu_rms_norm_backward(dy, self, gamma, rstd):
    """-> gradient of self (its type) and of gamma (float32)."""
    dims = tuple(range(self.dim() - gamma.dim(), self.dim()))
    normal = self.float() * rstd
    scaled = dy.float() * gamma.float()
    grad = rstd * (scaled - normal * (scaled * normal).mean(dims, keepdim=True))
    kept = tuple(range(self.dim() - gamma.dim()))
    grad_gamma = (dy.float() * normal).sum(kept) if kept else dy.float() * normal
    return grad.to(self.dtype), grad_gamma


@gradient("npu_rms_norm", saves=("self", "gamma"), saves_outputs=(1,), inputs=("self", "gamma"))
def _rms_norm_gradient(saved, grad, _):
    dx, dgamma = torch.ops.npu.npu_rms_norm_backward(grad, saved.self, saved.gamma, saved.outputs[1])
    return {"self": dx, "gamma": dgamma}


@operator(
    "npu_add_rms_norm(Tensor x1, Tensor x2, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor, Tensor)",
    meta=lambda x1, x2, gamma, epsilon: (torch.empty_like(x1), _rstd_like(x1, gamma), torch.empty_like(x1)),
)
def npu_add_rms_norm(x1, x2, gamma, epsilon):
    """-> norm of x1 + x2, 1 / rms, x1 + x2. The sum is rounded to its type before it is normalised."""
    _check_gamma("npu_add_rms_norm", x1, gamma)
    total = x1 + x2
    normal, rstd = _normalise(total, gamma, epsilon)
    return normal, rstd, total


def _swiglu_meta(self, dim):
    shape = list(self.shape)
    shape[dim] //= 2
    return self.new_empty(shape)


def _halves(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    check(
        x.shape[dim] % 2 == 0,
        lambda: f"npu_swiglu: dimension {dim} must be even to be halved, but x has shape {tuple(x.shape)}",
    )
    gate, up = x.float().chunk(2, dim)
    return gate, up


@operator("npu_swiglu(Tensor self, int dim=-1) -> Tensor", meta=_swiglu_meta)
def npu_swiglu(self, dim):
    """silu(first half) * second half along dim."""
    gate, up = _halves(self, dim)
    return (torch.nn.functional.silu(gate) * up).to(self.dtype)


@operator(
    "npu_swiglu_backward(Tensor grad_output, Tensor self, int dim=-1) -> Tensor",
    meta=lambda grad_output, self, dim: torch.empty_like(self),
    phase="backward",
)
def npu_swiglu_backward(grad_output, self, dim):
    """Gradient of both halves, side by side as in self."""
    gate, up = _halves(self, dim)
    grad = grad_output.float()
    chance = torch.sigmoid(gate)
    grad_gate = grad * up * chance * (1 + gate * (1 - chance))
    return torch.cat((grad_gate, grad * gate * chance), dim).to(self.dtype)


@gradient("npu_swiglu", saves=("self",), inputs=("self",))
def _swiglu_gradient(saved, grad):
    return {"self": torch.ops.npu.npu_swiglu_backward(grad, saved.self, saved.dim)}


_FAST_GELU = 1.702


@operator("npu_fast_gelu(Tensor self) -> Tensor", meta=lambda self: torch.empty_like(self))
def npu_fast_gelu(self):
    """self * sigmoid(1.702 * self)."""
    wide = self.float()
    return (wide * torch.sigmoid(_FAST_GELU * wide)).to(self.dtype)


@operator(
    "npu_fast_gelu_backward(Tensor grad, Tensor self) -> Tensor",
    meta=lambda grad, self: torch.empty_like(self),
    phase="backward",
)
def npu_fast_gelu_backward(grad, self):
    """Gradient of npu_fast_gelu."""
    wide = self.float()
    chance = torch.sigmoid(_FAST_GELU * wide)
    return (grad.float() * chance * (1 + _FAST_GELU * wide * (1 - chance))).to(self.dtype)


@gradient("npu_fast_gelu", saves=("self",), inputs=("self",))
def _fast_gelu_gradient(saved, grad):
    return {"self": torch.ops.npu.npu_fast_gelu_backward(grad, saved.self)}


_MASKED_SCORE = -10000.0
"""What a masked score becomes; a row that is masked throughout therefore gives equal shares, not NaN."""


def _softmax_mask(x, mask, fixed_triu_mask):
    if fixed_triu_mask:
        return torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
    check(
        mask.dtype == torch.bool,
        lambda: f"npu_scaled_masked_softmax: mask must be bool, but is {mask.dtype}",
    )
    return mask


@operator(
    "npu_scaled_masked_softmax(Tensor x, Tensor mask, Scalar scale=1, bool fixed_triu_mask=False) -> Tensor",
    meta=lambda x, mask, scale, fixed_triu_mask: torch.empty_like(x),
)
def npu_scaled_masked_softmax(x, mask, scale, fixed_triu_mask):
    """softmax(scale * x) over the last dimension, where mask is True as if x were -10000 / scale.

    fixed_triu_mask  the causal mask instead of `mask`, whose content is then ignored.
    """
    blocked = _softmax_mask(x, mask, fixed_triu_mask)
    return (x.float() * scale).masked_fill(blocked, _MASKED_SCORE).softmax(-1).to(x.dtype)


@operator(
    "npu_scaled_masked_softmax_backward(Tensor y_grad, Tensor y, Tensor mask, Scalar scale, bool fixed_triu_mask) "
    "-> Tensor",
    meta=lambda y_grad, y, mask, scale, fixed_triu_mask: torch.empty_like(y),
    phase="backward",
)
def npu_scaled_masked_softmax_backward(y_grad, y, mask, scale, fixed_triu_mask):
    """Gradient of x from the result y."""
    blocked = _softmax_mask(y, mask, fixed_triu_mask)
    weights, grad = y.float(), y_grad.float()
    grad_scores = weights * (grad - (grad * weights).sum(-1, keepdim=True))
    return (grad_scores * scale).masked_fill(blocked, 0).to(y.dtype)


@gradient("npu_scaled_masked_softmax", saves=("mask",), saves_outputs=(0,), inputs=("x",))
def _scaled_masked_softmax_gradient(saved, grad):
    return {
        "x": torch.ops.npu.npu_scaled_masked_softmax_backward(
            grad, saved.outputs[0], saved.mask, saved.scale, saved.fixed_triu_mask
        )
    }
