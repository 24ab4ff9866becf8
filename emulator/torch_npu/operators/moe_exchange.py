"""Tokens to the experts of other ranks and back in one operator each: npu_moe_distribute_dispatch_v2 and _combine_v2.

Signatures and result shapes: op-plugin 691bf15, op_plugin_functions.yaml and _meta_registrations.py. Every rank of the
group calls both with the same number of tokens; the exchange is made of the group's own collectives. The emulator
implements experts without quantisation, shared expert ranks or a split over tensor-parallel ranks (what vllm-ascend
15b2e5c asks for on an Atlas A3).
"""

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from .registry import check, operator, unwritten

_INFO = 128
"""Places of assist_info_for_combine a row; the first three hold the row's rank, token and choice."""


def _group(name: str, operator_name: str, world: int, rank: int) -> dist.ProcessGroup:
    """The process group whose communicator has this name (ProcessGroupHCCL.get_hccl_comm_name)."""
    found = {}
    for group in list(c10d._world.pg_map):
        if group.size() == world and group.rank() == rank and _communicator(group) == name:
            found[tuple(dist.get_process_group_ranks(group))] = group
    check(
        len(found) == 1,
        lambda: (
            f"{operator_name}: group_ep is {name!r}, ep_world_size {world} and ep_rank_id {rank}; expected one process "
            f"group that fits, found {len(found)}{''.join(f', {list(ranks)}' for ranks in found)}"
        ),
    )
    return next(iter(found.values()))


def _communicator(group: dist.ProcessGroup) -> str | None:
    try:
        backend = group._get_backend(torch.device("npu"))
    except RuntimeError:
        return None
    named = getattr(backend, "get_hccl_comm_name", None)
    return named(group.rank()) if named else None


def _capacity(a) -> int:
    """Rows that may arrive at a rank at most."""
    tokens = a.global_bs or a.x.shape[0] * a.ep_world_size
    return tokens * min(a.moe_expert_num // a.ep_world_size, a.expert_ids.shape[1])


def _check(name: str, a) -> None:
    check(
        0 <= a.ep_rank_id < a.ep_world_size,
        lambda: f"ep_rank_id should be in [0, ep_world_size), but got {a.ep_world_size=}, {a.ep_rank_id=}.",
    )
    check(
        a.moe_expert_num % a.ep_world_size == 0,
        f"{name}: moe_expert_num {a.moe_expert_num} cannot be shared evenly by ep_world_size {a.ep_world_size} ranks",
    )
    for argument, plain in (
        ("shared_expert_rank_num", (0,)),
        ("tp_world_size", (0, 1)),
        ("zero_expert_num", (0,)),
        ("copy_expert_num", (0,)),
        ("const_expert_num", (0,)),
    ):
        value = getattr(a, argument)
        check(value in plain, f"{name}: the emulator does not implement {argument} {value}", NotImplementedError)
    check(a.elastic_info is None, f"{name}: the emulator does not implement elastic_info", NotImplementedError)


def _dispatch_meta(a):
    rows, local = _capacity(a), a.moe_expert_num // a.ep_world_size
    pairs = a.expert_ids.numel()
    return (
        a.x.new_empty((rows, a.x.shape[1])),
        a.x.new_empty((rows,), dtype=torch.float32),
        a.x.new_empty((max(pairs, rows * _INFO),), dtype=torch.int32),
        a.x.new_empty((local,), dtype=torch.int64),
        a.x.new_empty((a.ep_world_size * local,), dtype=torch.int32),
        a.x.new_empty((a.tp_world_size,), dtype=torch.int32),
        a.x.new_empty((rows if a.expert_scales is not None else 0,), dtype=torch.float32),
    )


_RANKS = "str group_ep, int ep_world_size, int ep_rank_id, int moe_expert_num, *, "
_TENSOR_PARALLEL = 'str group_tp="", int tp_world_size=0, int tp_rank_id=0, '
_SHARED = "int expert_shard_type=0, int shared_expert_num=1, int shared_expert_rank_num=0, "
_KINDS = 'str comm_alg="", int zero_expert_num=0, int copy_expert_num=0, int const_expert_num=0'


@operator(
    f"npu_moe_distribute_dispatch_v2(Tensor x, Tensor expert_ids, {_RANKS}Tensor? scales=None, "
    "Tensor? x_active_mask=None, Tensor? expert_scales=None, Tensor? elastic_info=None, "
    f"{_TENSOR_PARALLEL}{_SHARED}int quant_mode=0, int global_bs=0, int expert_token_nums_type=1, {_KINDS}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    meta=_dispatch_meta,
    on_device=True,
    gathered=True,
)
def npu_moe_distribute_dispatch_v2(a):
    """Sends every token [T, H] to the ranks of its k experts; a rank's rows are sorted by expert, rank, token.

    x_active_mask  bool [T]: tokens that go nowhere are False.
    -> rows [capacity, H], dynamic_scales (unused), assist_info_for_combine, tokens of each of this rank's experts,
    summed up (expert_token_nums_type 0) or not (1), ep_recv_counts (summed up by expert and rank), tp_recv_counts and
    expand_scales (unused).
    """
    name = "npu_moe_distribute_dispatch_v2"
    _check(name, a)
    check(a.quant_mode == 0 and a.scales is None, f"{name}: the emulator does not quantise", NotImplementedError)
    check(
        a.expert_token_nums_type in (0, 1),
        f"{name}: expert_token_nums_type must be 0 (ends) or 1 (counts), but is {a.expert_token_nums_type}",
    )
    group = _group(a.group_ep, name, a.ep_world_size, a.ep_rank_id)
    local = a.moe_expert_num // a.ep_world_size
    experts = a.expert_ids.long()
    if a.x_active_mask is not None:
        experts = experts.masked_fill(~a.x_active_mask.bool()[:, None], -1)
    # [world, T, ..]: a token's place is its rank, number and choice
    tokens, experts = (_all_gather(t, group) for t in (a.x, experts))
    place = ((experts >= a.ep_rank_id * local) & (experts < (a.ep_rank_id + 1) * local)).nonzero()
    own = experts[tuple(place.t())] - a.ep_rank_id * local
    order = own.argsort(stable=True)
    place, own = place[order], own[order]
    count = len(place)

    rows = unwritten(a.x, (_capacity(a), a.x.shape[1]))
    rows[:count] = tokens[place[:, 0], place[:, 1]]
    info = a.x.new_full((max(a.expert_ids.numel(), len(rows) * _INFO),), -1, dtype=torch.int32)
    info[: len(rows) * _INFO].reshape(len(rows), _INFO)[:count, :3] = place.int()
    by_rank = torch.bincount(own * a.ep_world_size + place[:, 0], minlength=local * a.ep_world_size)
    numbers = by_rank.reshape(local, -1).sum(1)
    return (
        rows,
        unwritten(a.x, (len(rows),), torch.float32),
        info,
        numbers.cumsum(0) if a.expert_token_nums_type == 0 else numbers,
        by_rank.cumsum(0).int(),
        a.x.new_zeros((a.tp_world_size,), dtype=torch.int32),
        unwritten(a.x, (len(rows) if a.expert_scales is not None else 0,), torch.float32),
    )


def _combine_meta(a):
    return a.expand_x.new_empty((a.expert_ids.shape[0], a.expand_x.shape[1]))


@operator(
    "npu_moe_distribute_combine_v2(Tensor expand_x, Tensor expert_ids, Tensor assist_info_for_combine, "
    f"Tensor ep_send_counts, Tensor expert_scales, {_RANKS}Tensor? tp_send_counts=None, Tensor? x_active_mask=None, "
    "Tensor? expand_scales=None, Tensor? shared_expert_x=None, Tensor? elastic_info=None, Tensor? ori_x=None, "
    "Tensor? const_expert_alpha_1=None, Tensor? const_expert_alpha_2=None, Tensor? const_expert_v=None, "
    f"{_TENSOR_PARALLEL}{_SHARED}int global_bs=0, int comm_quant_mode=0, {_KINDS}) -> Tensor",
    meta=_combine_meta,
    on_device=True,
    gathered=True,
)
def npu_moe_distribute_combine_v2(a):
    """Brings the experts' rows back and adds each token's up, weighted by expert_scales [T, k] float32 -> [T, H].

    Tokens that x_active_mask excludes are not written. ep_send_counts: ep_recv_counts of the dispatch.
    """
    name = "npu_moe_distribute_combine_v2"
    _check(name, a)
    check(a.comm_quant_mode == 0, f"{name}: the emulator does not quantise", NotImplementedError)
    check(
        a.expert_scales.dtype == torch.float32,
        lambda: f"{name}: expert_scales must be float32, but is {a.expert_scales.dtype}",
    )
    group = _group(a.group_ep, name, a.ep_world_size, a.ep_rank_id)
    tokens, choices = a.expert_ids.shape
    count = int(a.ep_send_counts[-1])
    width = a.expand_x.shape[1]
    info = a.assist_info_for_combine[: count * _INFO].reshape(count, _INFO)[:, :3].long()
    everyones = a.expand_x.new_zeros((a.ep_world_size, tokens, choices, width), dtype=torch.float32)
    everyones[tuple(info.t())] = a.expand_x[:count].float()
    dist.all_reduce(everyones, group=group)
    result = (everyones[a.ep_rank_id] * a.expert_scales[..., None]).sum(1)
    if a.shared_expert_x is not None:
        result = result + a.shared_expert_x.float()
    result = result.to(a.expand_x.dtype)
    if a.x_active_mask is None:
        return result
    active = a.x_active_mask.bool()[:, None]
    return torch.where(active, result, unwritten(result, result.shape))


def _all_gather(tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """[..] of every rank -> [world, ..]."""
    gathered = tensor.new_empty((group.size() * tensor.shape[0], *tensor.shape[1:]))
    dist.all_gather_into_tensor(gathered, tensor.contiguous(), group=group)
    return gathered.reshape(group.size(), *tensor.shape)
