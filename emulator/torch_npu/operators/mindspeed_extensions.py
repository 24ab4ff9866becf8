"""The functions of the C++ extensions that MindSpeed compiles on first use.

Source: mindspeed/op_builder/*.py and mindspeed/ops/csrc at 35da6ac and 1cdd0ab.

MindSpeed calls them by position, as pybind functions; behind each is a registered operator. An extension that is not
in the table has no emulation: loading it should say so.
"""

import torch

_ops = torch.ops.mindspeed_extension


def npu_fusion_attention_v2(
    query,
    key,
    value,
    head_num,
    input_layout,
    pse,
    padding_mask,
    atten_mask,
    scale,
    keep_prob,
    pre_tokens,
    next_tokens,
    inner_precise,
    prefix,
    actual_seq_qlen,
    actual_seq_kvlen,
    sparse_mode,
    gen_mask_parallel,
    sync,
    pse_type,
    q_start_idx,
    kv_start_idx,
):
    """-> result, softmax_max, softmax_sum, softmax_out, seed, offset, numels (csrc/cann/fusion_attention_v2.cpp)."""
    return torch.ops.npu.npu_fusion_attention_v2(
        query,
        key,
        value,
        head_num,
        input_layout,
        pse=pse,
        padding_mask=padding_mask,
        atten_mask=atten_mask,
        scale=scale,
        keep_prob=keep_prob,
        pre_tokens=pre_tokens,
        next_tokens=next_tokens,
        inner_precise=inner_precise,
        prefix=prefix,
        actual_seq_qlen=actual_seq_qlen,
        actual_seq_kvlen=actual_seq_kvlen,
        sparse_mode=sparse_mode,
        gen_mask_parallel=gen_mask_parallel,
        sync=sync,
        pse_type=pse_type,
        q_start_idx=q_start_idx,
        kv_start_idx=kv_start_idx,
    )


def npu_fusion_attention_grad_v2(
    query,
    key,
    value,
    dy,
    head_num,
    input_layout,
    pse,
    padding_mask,
    atten_mask,
    softmax_max,
    softmax_sum,
    softmax_in,
    attention_in,
    scale_value,
    keep_prob,
    pre_tokens,
    next_tokens,
    inner_precise,
    seed,
    offset,
    numels,
    prefix,
    actual_seq_qlen,
    actual_seq_kvlen,
    sparse_mode,
    gen_mask_parallel,
    sync,
    pse_type,
    q_start_idx,
    kv_start_idx,
):
    """-> gradients of query, key, value and pse."""
    return torch.ops.npu.npu_fusion_attention_grad_v2(
        query,
        key,
        value,
        dy,
        head_num,
        input_layout,
        pse=pse,
        padding_mask=padding_mask,
        atten_mask=atten_mask,
        softmax_max=softmax_max,
        softmax_sum=softmax_sum,
        softmax_in=softmax_in,
        attention_in=attention_in,
        scale_value=scale_value,
        keep_prob=keep_prob,
        pre_tokens=pre_tokens,
        next_tokens=next_tokens,
        inner_precise=inner_precise,
        seed=seed,
        offset=offset,
        numels=numels,
        prefix=prefix,
        actual_seq_qlen=actual_seq_qlen,
        actual_seq_kvlen=actual_seq_kvlen,
        sparse_mode=sparse_mode,
        gen_mask_parallel=gen_mask_parallel,
        sync=sync,
        pse_type=pse_type,
        q_start_idx=q_start_idx,
        kv_start_idx=kv_start_idx,
    )[:4]


def npu_apply_fused_adamw_v2(
    param,
    grad,
    exp_avg,
    exp_avg_sq,
    max_exp_avg_sq,
    state_step,
    lr,
    beta1,
    beta2,
    weight_decay,
    eps,
    amsgrad,
    maximize,
):
    """One AdamW step in place. Without amsgrad MindSpeed passes a CPU tensor for max_exp_avg_sq, which is not used."""
    largest = max_exp_avg_sq if amsgrad else None
    _ops.npu_apply_fused_adamw_v2(
        param,
        grad,
        exp_avg,
        exp_avg_sq,
        largest,
        state_step,
        lr,
        beta1,
        beta2,
        weight_decay,
        eps,
        amsgrad,
        maximize,
    )


_GMM = {name: getattr(_ops, name) for name in ("npu_gmm", "npu_gmm_backward", "npu_gmm_backward_fusion")}

JIT_EXTENSIONS = {
    "fusion_attention_v2": {
        "npu_fusion_attention_v2": npu_fusion_attention_v2,
        "npu_fusion_attention_grad_v2": npu_fusion_attention_grad_v2,
    },
    "grouped_matmul": _GMM,
    "grouped_matmul_v2": _GMM,
    "npu_apply_fused_adamw_v2": {"npu_apply_fused_adamw_v2": npu_apply_fused_adamw_v2},
    "npu_groupmatmul_add_fp32": {"npu_groupmatmul_add_fp32": _ops.npu_groupmatmul_add_fp32},
    "npu_matmul_add_fp32": {"npu_matmul_add_fp32": _ops.npu_matmul_add_fp32},
    "npu_moe_token_permute": {"npu_moe_token_permute": torch.ops.npu.npu_moe_token_permute},
    "npu_moe_token_unpermute": {"npu_moe_token_unpermute": torch.ops.npu.npu_moe_token_unpermute},
    "npu_ring_attention_update": {"npu_ring_attention_update": _ops.npu_ring_attention_update},
    "npu_rotary_position_embedding": {"npu_rotary_position_embedding": _ops.npu_rotary_position_embedding},
}
"""Name of an extension -> its functions by name."""
