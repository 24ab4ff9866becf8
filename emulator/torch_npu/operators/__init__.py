"""torch_npu's operators in plain torch, one module a subject. `registry` says how one is declared.

`EXPORTS`: what torch_npu exports, name -> operator. `JIT_EXTENSIONS`: the functions of MindSpeed's compiled extensions.
"""

from . import (  # noqa: F401
    formats,
    fused_infer_attention,
    fusion_attention,
    grouped_matmul,
    histogram,
    moe_exchange,
    moe_gating,
    moe_permutation,
    moe_routing,
    norm_activation,
    optimizer,
    paged_attention,
    prefetch,
    refused,
    ring_attention,
    rotary,
    sampling,
)
from .mindspeed_extensions import JIT_EXTENSIONS  # noqa: F401
from .registry import EXPORTS  # noqa: F401
