"""Rotary position embedding, the four operators that training and rollout use.

Signatures: op-plugin 691bf15 (op_plugin_functions.yaml, RopeAtb.cpp); npu_rotary_position_embedding: MindSpeed 35da6ac,
ops/csrc/cann/npu_rotary_position_embedding.cpp. "half" pairs element i with i + D/2 (GPT-NeoX), "interleave" pairs
neighbours (GPT-J). Computed in float32, rounded at the end.
"""

import warnings

import torch

from .registry import check, gradient, operator, view

HALF, INTERLEAVE = "half", "interleave"


def rotate(x: torch.Tensor, mode: str) -> torch.Tensor:
    """A quarter turn of every pair: (a, b) -> (-b, a)."""
    if mode == INTERLEAVE:
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mode: str) -> torch.Tensor:
    """x turned by the angles; cos and sin broadcast to x. float32."""
    wide = x.float()
    return wide * cos.float() + rotate(wide, mode) * sin.float()


def turn_gradient(grad, x, cos, sin, mode: str) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Gradients of x, and where x is given of cos and sin, float32."""
    grad = grad.float()
    grad_x = grad * cos.float() - rotate(grad * sin.float(), mode)
    if x is None:
        return grad_x, None, None
    wide = x.float()
    return grad_x, (grad * wide).sum_to_size(cos.shape), (grad * rotate(wide, mode)).sum_to_size(sin.shape)


def _check_mode(name: str, mode: str, known: tuple[str, ...]) -> None:
    check(mode in known, f"The rotary_mode of {name} should be {' or '.join(known)}, but got {mode}")


@operator(
    "npu_rotary_mul(Tensor self, Tensor r1, Tensor r2, str rotary_mode='half') -> Tensor",
    meta=lambda self, r1, r2, rotary_mode: torch.empty_like(self),
)
def npu_rotary_mul(self, r1, r2, rotary_mode):
    """self * r1 + rotate(self) * r2; r1 and r2 are cosines and sines and take self's type first."""
    _check_mode("npu_rotary_mul", rotary_mode, (HALF, INTERLEAVE))
    return turn(self, r1.to(self.dtype), r2.to(self.dtype), rotary_mode).to(self.dtype)


@operator(
    "npu_rotary_mul_backward(Tensor grad, Tensor self, Tensor r1, Tensor r2, str rotary_mode='half') "
    "-> (Tensor, Tensor, Tensor)",
    meta=lambda grad, self, r1, r2, rotary_mode: (
        torch.empty_like(grad, dtype=self.dtype),
        torch.empty_like(r1, dtype=self.dtype),
        torch.empty_like(r2, dtype=self.dtype),
    ),
    phase="backward",
)
def npu_rotary_mul_backward(grad, self, r1, r2, rotary_mode):
    """-> gradients of self, r1, r2, all of self's type."""
    _check_mode("npu_rotary_mul_backward", rotary_mode, (HALF, INTERLEAVE))
    grads = turn_gradient(grad.to(self.dtype), self, r1.to(self.dtype), r2.to(self.dtype), rotary_mode)
    return tuple(g.to(self.dtype) for g in grads)


@gradient("npu_rotary_mul", saves=("self", "r1", "r2"), inputs=("self", "r1", "r2"))
def _rotary_mul_gradient(saved, grad):
    grads = torch.ops.npu.npu_rotary_mul_backward(grad, saved.self, saved.r1, saved.r2, saved.rotary_mode)
    return dict(zip(("self", "r1", "r2"), grads, strict=True))


_LAYOUTS = ("BSH", "BSND", "BNSD", "SBND", "TND")


@operator(
    "npu_apply_rotary_pos_emb(Tensor(a!) query, Tensor(b!) key, Tensor cos, Tensor sin, str layout='BSH', "
    "str rotary_mode='half') -> (Tensor(a!), Tensor(b!))",
    meta=lambda query, key, *_: (query, key),
)
def npu_apply_rotary_pos_emb(query, key, cos, sin, layout, rotary_mode):
    """Turns query and key in place and returns them; cos and sin broadcast to both.

    torch_npu's own schema does not say that it writes (ApplyRotaryPosEmbNpuOpApi.cpp does); this one does, so that a
    compiler that trusts the schema keeps the call.
    """
    check(
        rotary_mode in (HALF, INTERLEAVE),
        f"npu_apply_rotary_pos_emb: the emulator implements rotary_mode half and interleave, not {rotary_mode}",
    )
    check(layout in _LAYOUTS, f"npu_apply_rotary_pos_emb: layout must be one of {', '.join(_LAYOUTS)}, found {layout}")
    for tensor in (query, key):
        tensor.copy_(turn(tensor, cos, sin, rotary_mode))
    return query, key


_cache_sums: dict[tuple, float] = {}
"""Address and shape of every cos_sin_cache seen -> sum of its values."""
_MOST_CACHES = 64
"""More are not looked at: whoever makes a new one at every call has been warned."""


def _compare_with_first(cache: torch.Tensor) -> None:
    """Warns once when a second, different cache appears: the real operator would go on with the first."""
    key = (cache.data_ptr(), tuple(cache.shape))
    if key in _cache_sums or len(_cache_sums) == _MOST_CACHES:
        return
    _cache_sums[key] = cache.double().sum().item()
    if len(set(_cache_sums.values())) == 2:
        warnings.warn(
            "_npu_rotary_embedding got a second cos_sin_cache. The operator of op-plugin 691bf15 (RopeAtb.cpp) "
            "keeps the first one of the process for every later call; the emulator uses the one it is given.",
            stacklevel=3,
        )


@operator(
    "_npu_rotary_embedding(Tensor positions, Tensor(a!) query, Tensor(b!) key, int head_size, Tensor cos_sin_cache, "
    "bool is_neox_style) -> ()",
    meta=lambda *_: None,
    namespace="atb",
)
def _npu_rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox_style):
    """Turns query and key [tokens, heads * head_size] in place by the angles of their positions.

    cos_sin_cache [positions, rotary width]: cosines, then sines, of the first half of the pairs. A head wider than
    that is turned in its first part only.
    """
    for name, tensor in (("query", query), ("key", key)):
        check(
            tensor.is_contiguous(),
            f"_npu_rotary_embedding: {name} is written in place and must be contiguous; pass {name}.contiguous()",
        )
    _compare_with_first(cos_sin_cache)
    angles = cos_sin_cache.index_select(0, positions.flatten())
    mode = HALF if is_neox_style else INTERLEAVE
    cos, sin = (_both_of_pair(a, mode)[:, None] for a in angles.chunk(2, -1))
    width = cos_sin_cache.shape[-1]
    for tensor in (query, key):
        per_head = width if tensor.shape[-1] % head_size else head_size
        heads = view(tensor, (positions.numel(), -1, per_head))[..., :width]
        heads.copy_(turn(heads, cos, sin, mode))


def _both_of_pair(angles: torch.Tensor, mode: str) -> torch.Tensor:
    return torch.cat((angles, angles), -1) if mode == HALF else angles.repeat_interleave(2, -1)


_MODES = (HALF, INTERLEAVE)


def _check_position_embedding(x, cos, sin, mode):
    for name, tensor in (("x", x), ("cos", cos), ("sin", sin)):
        check(
            tensor.dtype in (torch.float16, torch.bfloat16, torch.float32),
            lambda n=name,
            t=tensor: f"Input tensor {n} dtype [{t.dtype}] is invalid, should be float32, float16 or bfloat16",
        )
        check(
            tensor.dim() == 4,
            lambda n=name, t=tensor: f"The dims of input {n} should be 4 dimensional, but got {t.dim()}-dimensional.",
        )
    check(
        x.shape[3] % 2 == 0,
        lambda: f"The head_dim length of input must be an even number, but got {x.shape[3]}.",
    )
    check(cos.shape == sin.shape, "The shape of input Tensor cos and sin should be same.")
    check(mode in (0, 1), f"The mode of rotate should be 0(rotate_half) or 1(rotate_interleaved), but got {mode}.")


@operator(
    "npu_rotary_position_embedding(Tensor x, Tensor cos, Tensor sin, int mode=0) -> Tensor",
    meta=lambda x, cos, sin, mode: torch.empty_like(x),
    namespace="mindspeed_extension",
    export=False,
)
def npu_rotary_position_embedding(x, cos, sin, mode):
    """x [.., .., .., D] turned by cos and sin, which broadcast to it; mode 0 half, 1 interleaved."""
    _check_position_embedding(x, cos, sin, mode)
    return turn(x, cos, sin, _MODES[mode]).to(x.dtype)


@operator(
    "npu_rotary_position_embedding_grad(Tensor dy, Tensor cos, Tensor sin, Tensor? x, int mode) "
    "-> (Tensor, Tensor, Tensor)",
    meta=lambda dy, cos, sin, x, mode: (
        torch.empty_like(dy),
        None if x is None else torch.empty_like(cos),
        None if x is None else torch.empty_like(sin),
    ),
    namespace="mindspeed_extension",
    phase="backward",
    export=False,
)
def npu_rotary_position_embedding_grad(dy, cos, sin, x, mode):
    """-> gradients of x, and where x is given of cos and sin."""
    grads = turn_gradient(dy, x, cos, sin, _MODES[mode])
    return tuple(g if g is None else g.to(t.dtype) for g, t in zip(grads, (dy, cos, sin), strict=True))


@gradient(
    "npu_rotary_position_embedding",
    saves=("x", "cos", "sin"),
    inputs=("x", "cos", "sin"),
    namespace="mindspeed_extension",
)
def _position_embedding_gradient(saved, grad):
    x = saved.x if {"cos", "sin"} <= saved.wanted else None
    grads = torch.ops.mindspeed_extension.npu_rotary_position_embedding_grad(grad, saved.cos, saved.sin, x, saved.mode)
    return dict(zip(("x", "cos", "sin"), grads, strict=True))
