"""Program, one process: checks of the stand-in's modules on one emulated NPU, without a model.

usage: modules.py RESULTS.json       a check's name -> "" or what went wrong
"""

import contextlib
import itertools
import json
import os
import sys
import traceback
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state as mpu
from megatron.core.extensions import transformer_engine as te
from megatron.core.fusions import fused_bias_swiglu
from megatron.core.models.common.embeddings import rope_utils
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker, model_parallel_cuda_manual_seed
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import get_te_version
from npu_transformer_engine import attention, install

HEADS, GROUPS, WIDTH = 4, 2, 16


def config(**changes) -> TransformerConfig:
    return TransformerConfig(
        num_layers=1, hidden_size=HEADS * WIDTH, num_attention_heads=HEADS, num_query_groups=GROUPS, kv_channels=WIDTH,
        normalization="RMSNorm", add_bias_linear=False, attention_dropout=0.0, layernorm_epsilon=1e-6, **changes,
    )  # fmt: skip


def npu(*shape, dtype=torch.float32, requires_grad=True):
    """Random numbers, from the CPU so that they do not depend on the device's generator."""
    return torch.randn(*shape).to(dtype).npu().requires_grad_(requires_grad)


def close(found, expected, tolerance=2e-5):
    torch.testing.assert_close(found.detach().cpu(), expected.detach().cpu(), rtol=tolerance, atol=tolerance)


@contextlib.contextmanager
def refused(*words):
    """The block raises ValueError, and the message holds the words."""
    try:
        yield
    except ValueError as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"{missing} not in: {error}"
    else:
        raise AssertionError(f"expected a ValueError with {words}")


def plain_attention(q, k, v, boundaries, causal=True):
    """Every sequence by itself through torch's attention on the CPU; q [t, heads, d], k and v [t, groups, d]."""
    out = []
    for start, stop in itertools.pairwise(boundaries):
        parts = (x[start:stop].transpose(0, 1)[None] for x in (q, k, v))
        out.append(F.scaled_dot_product_attention(*parts, is_causal=causal, enable_gqa=True)[0].transpose(0, 1))
    return torch.cat(out)


def attention_module(**changes):
    return te.TEDotProductAttention(config(**changes), 1, AttnMaskType.causal, "self")


def packed(boundaries):
    ends = torch.tensor(boundaries, dtype=torch.int32).npu()
    return PackedSeqParams(qkv_format="thd", cu_seqlens_q=ends, cu_seqlens_kv=ends)


def qkv(tokens):
    return npu(tokens, HEADS, WIDTH), npu(tokens, GROUPS, WIDTH), npu(tokens, GROUPS, WIDTH)


def check_packed_attention_keeps_sequences_apart():
    boundaries = [0, 7, 7, 20, 21]  # one sequence is empty
    inputs, weights = qkv(21), torch.randn(21, HEADS, WIDTH)
    copies = [x.detach().cpu().requires_grad_() for x in inputs]
    expected = plain_attention(*copies, boundaries)
    found = attention_module()(*inputs, None, AttnMaskType.causal, packed_seq_params=packed(boundaries))
    close(found, expected.flatten(1))
    found.backward(weights.flatten(1).npu())
    expected.backward(weights)
    for one, other in zip(inputs, copies, strict=True):
        close(one.grad, other.grad)


def check_tokens_behind_the_last_sequence_give_zeros():
    out = attention_module()(*qkv(10), None, packed_seq_params=packed([0, 4, 8]))
    assert out.shape == (10, HEADS * WIDTH) and out[:8].any(1).all() and not out[8:].any()


def check_sbhd_attention_and_mask_types():
    inputs = [x.unflatten(0, (6, 2)) for x in qkv(12)]
    for mask_type, causal in ((AttnMaskType.causal, True), (AttnMaskType.no_mask, False)):
        found = attention_module()(*inputs, None, mask_type)
        for b in range(2):
            expected = plain_attention(*(x[:, b].cpu() for x in inputs), [0, 6], causal)
            close(found[:, b], expected.flatten(1))


def check_softmax_scale():
    inputs = qkv(5)
    module = te.TEDotProductAttention(config(), 1, AttnMaskType.causal, "self", softmax_scale=0.5 / WIDTH**0.5)
    expected = plain_attention(inputs[0].cpu() / 2, *(x.cpu() for x in inputs[1:]), [0, 5])
    close(module(*inputs, None, packed_seq_params=packed([0, 5])), expected.flatten(1))


def check_zigzag_equals_the_whole_sequence():
    """All ranks of a context-parallel group in one process: what each would gather is put together by hand."""
    for cp, causal in itertools.product((2, 3, 4), (True, False)):
        boundaries = [0, 2 * cp, 2 * cp, 8 * cp, 10 * cp]
        inputs = qkv(10 * cp)
        expected = plain_attention(*(x.detach().cpu() for x in inputs), boundaries, causal)
        places = [zigzag_places(boundaries, cp, rank) for rank in range(cp)]
        gathered = [x[torch.cat(places).npu()] for x in inputs[1:]]
        module = attention_module()
        for rank, mine in enumerate(places):
            lengths = attention.zigzag(tuple(boundaries), cp, rank, causal)
            keys, values = (x[lengths.order.npu()] for x in gathered)
            found = module.attend_pieces(inputs[0][mine.npu()], keys, values, lengths, causal)
            close(found, expected[mine])


def zigzag_places(boundaries, cp, rank):
    """Global positions of a rank's tokens, sequence by sequence: chunks rank and 2 * cp - 1 - rank."""
    places = []
    for start, stop in itertools.pairwise(boundaries):
        chunks = torch.arange(start, stop).chunk(2 * cp) if stop > start else [torch.arange(0)] * 2 * cp
        places += [chunks[rank], chunks[2 * cp - 1 - rank]]
    return torch.cat(places)


def check_zigzag_wants_whole_chunks():
    with refused("multiples of 4", "6 tokens"):
        attention.zigzag((0, 8, 14), 2, 0, True)


def check_attention_dropout_draws_from_the_tracker():
    module, inputs = attention_module().train(), qkv(32)
    module.dropout = 0.5

    def run():
        return module(*inputs, None, packed_seq_params=packed([0, 32])).detach().cpu()

    tracker = get_cuda_rng_tracker()
    states = dict(tracker.get_states())
    first, second = run(), run()
    tracker.set_states(states)
    assert torch.equal(first, run()) and not torch.equal(first, second)
    module.eval()
    close(run(), plain_attention(*(x.detach().cpu() for x in inputs), [0, 32]).flatten(1))


def check_attention_refusals():
    with refused("window_size=(4, 0)"):
        attention_module(window_size=(4, 0))
    with refused("attention_bias"):
        attention_module()(*qkv(4), None, attention_bias=npu(1), packed_seq_params=packed([0, 4]))
    with refused("padding_causal, padding with packed", "found arbitrary"):
        attention_module()(*qkv(4), None, AttnMaskType.arbitrary, packed_seq_params=packed([0, 4]))
    with refused("causal, no_mask without packed", "found padding"):
        attention_module()(*(x.unsqueeze(1) for x in qkv(4)), None, AttnMaskType.padding)


def check_keys_and_queries_of_different_lengths():
    """Queries stand at the end of their keys, as when a prefix is there already."""
    query, key, value = npu(5, HEADS, WIDTH), npu(12, GROUPS, WIDTH), npu(12, GROUPS, WIDTH)
    lengths = packed([0, 2, 4])
    lengths.cu_seqlens_kv = torch.tensor([0, 6, 11], dtype=torch.int32).npu()
    found = attention_module()(query, key, value, None, AttnMaskType.padding_causal, packed_seq_params=lengths)
    expected = plain_attention(
        torch.cat((query.new_zeros(4, HEADS, WIDTH), query[:2], query.new_zeros(3, HEADS, WIDTH), query[2:4])).cpu(),
        key.cpu(), value.cpu(), [0, 6, 11],
    )[[4, 5, 9, 10]]  # fmt: skip
    close(found[:4], expected.flatten(1))


def check_grouped_linear_with_idle_experts():
    """Tokens per expert 3, 0, 5, 0: forward, gradients, zeros for experts without tokens."""
    sizes = [3, 0, 5, 0]
    layer = grouped(te.TEColumnParallelGroupedLinear, len(sizes), 24, 40)
    x, weights = npu(sum(sizes), 24), torch.randn(sum(sizes), 40)
    copy = x.detach().cpu().requires_grad_()
    matrices = [getattr(layer, f"weight{i}").detach().cpu().requires_grad_() for i in range(len(sizes))]
    expected = torch.cat([part @ w.T for part, w in zip(copy.split(sizes), matrices, strict=True)])
    found, bias = layer(x, sizes)
    assert bias is None
    close(found, expected)
    found.backward(weights.npu())
    expected.backward(weights)
    close(x.grad, copy.grad)
    for i, matrix in enumerate(matrices):
        close(getattr(layer, f"weight{i}").grad, torch.zeros(40, 24) if matrix.grad is None else matrix.grad)


def grouped(kind, experts, inputs, outputs, **changes):
    arguments = {"bias": False, "skip_bias_add": True, "is_expert": True} | changes
    return kind(experts, inputs, outputs, config=config(), init_method=torch.nn.init.normal_, **arguments)


def check_grouped_linear_without_any_token():
    layer = grouped(te.TERowParallelGroupedLinear, 2, 8, 16)
    out, _ = layer(npu(0, 8), [0, 0])
    out.sum().backward()
    assert out.shape == (0, 16) and not layer.weight0.grad.any() and not layer.weight1.grad.any()


def check_grouped_linear_refusals_and_warning():
    with refused("bias=True"):
        grouped(te.TEColumnParallelGroupedLinear, 1, 8, 8, bias=True)
    drifting = config()
    drifting.tensor_model_parallel_size = 2
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        te.TEColumnParallelGroupedLinear(
            1, 8, 8, config=drifting, init_method=torch.nn.init.normal_, bias=False, skip_bias_add=True, is_expert=True
        )
    assert any("copies drift apart" in str(warning.message) for warning in seen)


def check_norms():
    for zero_centred in (False, True):
        settings = config(layernorm_zero_centered_gamma=zero_centred)
        norm, x = te.TENorm(settings, 24, eps=1e-3), npu(5, 24)
        close(norm(x), F.rms_norm(x.detach().cpu(), (24,), None, 1e-3))  # the initial weight changes nothing
        with torch.no_grad():
            norm.weight.copy_(torch.rand(24))
        weight = norm.weight.detach().cpu() + zero_centred
        close(norm(x), F.rms_norm(x.detach().cpu(), (24,), weight, 1e-3))
        settings.normalization = "LayerNorm"
        norm = te.TENorm(settings, 24, eps=1e-3)
        with torch.no_grad():
            norm.weight.copy_(torch.rand(24))
            norm.bias.copy_(torch.rand(24))
        weight, bias = norm.weight.detach().cpu() + zero_centred, norm.bias.detach().cpu()
        close(norm(x), F.layer_norm(x.detach().cpu(), (24,), weight, bias, 1e-3))
    settings.normalization = "none"
    with refused("RMSNorm or LayerNorm", "'none'"):
        te.TENorm(settings, 24)


def check_norm_inside_the_linear_layer():
    for kind in ("RMSNorm", "LayerNorm"):
        settings = config()
        settings.normalization = kind
        layer = te.TELayerNormColumnParallelLinear(
            24, 40, config=settings, init_method=torch.nn.init.normal_, gather_output=False, bias=False,
            skip_bias_add=False, is_expert=False,
        )  # fmt: skip
        names = {"weight", "layer_norm_weight"} | ({"layer_norm_bias"} if kind == "LayerNorm" else set())
        assert {name for name, _ in layer.named_parameters()} == names
        with torch.no_grad():
            layer.layer_norm_weight.copy_(torch.rand(24))
        x, weight = npu(5, 1, 24), layer.layer_norm_weight.detach().cpu()
        plain = F.rms_norm if kind == "RMSNorm" else F.layer_norm
        expected = plain(x.detach().cpu(), (24,), weight, eps=1e-6) @ layer.weight.detach().cpu().T
        close(layer(x)[0], expected, 1e-4)


def check_linear_layers_refuse_what_transformer_engine_refuses():
    common = {"config": config(), "init_method": torch.nn.init.normal_, "bias": False, "skip_bias_add": False}
    with refused("gather_output=False only"):
        te.TEColumnParallelLinear(8, 8, gather_output=True, is_expert=False, **common)
    with refused("TERowParallelLinear"):
        te.TERowParallelLinear(8, 8, input_is_parallel=False, is_expert=False, **common)
    with refused("'duplicated'", "'column'"):
        te.TELinear(8, 8, parallel_mode="column", skip_weight_param_allocation=False, **common)


def check_duplicated_linear():
    layer = te.TELinear(
        8, 6, parallel_mode="duplicated", config=config(), init_method=torch.nn.init.normal_, bias=True,
        skip_bias_add=True, skip_weight_param_allocation=False,
    )  # fmt: skip
    with torch.no_grad():
        layer.bias.fill_(2)
    x = npu(3, 8)
    out, bias = layer(x)
    close(out, x.detach().cpu() @ layer.weight.detach().cpu().T)
    assert bias is layer.bias
    assert {"l.weight", "l.bias"} == set(layer.sharded_state_dict("l."))


def check_swiglu():
    x, weights = npu(7, 16), npu(7, 1)
    a, b = x.detach().cpu().chunk(2, -1)
    expected = F.silu(a) * b
    close(fused_bias_swiglu.bias_swiglu_impl(x, None), expected)
    close(fused_bias_swiglu.weighted_bias_swiglu_impl(x, None, weights), expected * weights.detach().cpu())
    bias = npu(16)
    a, b = (x + bias).detach().cpu().chunk(2, -1)
    close(fused_bias_swiglu.bias_swiglu_impl(x, bias), F.silu(a) * b)
    half = fused_bias_swiglu.weighted_bias_swiglu_impl(x.bfloat16(), None, weights)
    assert half.dtype == torch.bfloat16
    with refused("activation_func_fp8_input_store"):
        fused_bias_swiglu.bias_swiglu_impl(x, None, True)


def check_fused_rotary_equals_megatrons_plain_one():
    freqs = torch.rand(12, 1, 1, WIDTH // 2).repeat(1, 1, 1, 2)[..., : WIDTH - 4].npu()  # rotates a part of the width
    t = npu(12, 3, HEADS, WIDTH, requires_grad=False)
    close(te.fused_apply_rotary_pos_emb(t, freqs), rope_utils._apply_rotary_pos_emb_bshd(t, freqs))
    ends = torch.tensor([0, 4, 4, 12], dtype=torch.int32).npu()
    t = npu(12, HEADS, WIDTH, requires_grad=False)
    whole = te.fused_apply_rotary_pos_emb_thd(t, ends, freqs)
    close(whole, rope_utils._apply_rotary_pos_emb_thd(t, ends, freqs))
    for rank in range(2):
        mine = zigzag_places([0, 4, 4, 12], 2, rank).npu()
        close(te.fused_apply_rotary_pos_emb_thd(t[mine], ends, freqs, cp_size=2, cp_rank=rank), whole[mine])
    with refused("rotary_interleaved"):
        te.fused_apply_rotary_pos_emb(t, freqs, interleaved=True)


def check_what_needs_transformer_engine_says_so():
    for name in ("TEDelayedScaling", "TECudaRNGStatesTracker", "te_checkpoint"):
        try:
            getattr(te, name)()
        except NotImplementedError as error:
            assert name in str(error) and "fp8" in str(error)
        else:
            raise AssertionError(f"{name} did not raise")


def check_installation():
    assert te.__file__.endswith("extension.py") and str(get_te_version()) == install.TE_VERSION
    before = torch.Tensor.type
    install.install()
    assert torch.Tensor.type is before
    assert (
        npu(1, dtype=torch.bfloat16).type() == "torch.cuda.BFloat16Tensor"
        and torch.ones(1).type() == "torch.FloatTensor"
    )


def main(results: Path):
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK="0", WORLD_SIZE="1")
    dist.init_process_group("hccl", store=dist.HashStore(), rank=0, world_size=1)
    mpu.initialize_model_parallel()
    model_parallel_cuda_manual_seed(0)
    found = {}
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            torch.manual_seed(0)
            try:
                check()
                found[name] = ""
            except Exception:
                found[name] = traceback.format_exc()
    results.write_text(json.dumps(found, indent=1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
