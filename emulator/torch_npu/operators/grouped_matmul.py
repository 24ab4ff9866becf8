"""Products of many small matrices: npu_grouped_matmul, MindSpeed's npu_gmm with gradients, products added to float32.

Signatures: op-plugin 691bf15 (op_plugin_functions.yaml, GroupedMatmulKernelNpuOpApi.cpp, LinearAtb.cpp); npu_gmm and
npu_groupmatmul_add_fp32: MindSpeed 35da6ac, ops/csrc/cann/gmm.cpp and ops/csrc/atb/*.cpp. Products accumulate in
float32.

group_type 0 cuts the rows of x, one weight a group: [M, K] x G x [K, N] -> [M, N].
group_type 2 cuts the inner dimension, one product a group: [M, K] x [K, N] -> [G, M, N].
group_list, int64: ends of the groups (group_list_type 0) or their sizes (group_list_type 1).
"""

import torch

from .registry import check, operator, unwritten

_NAME = "npu_grouped_matmul"


def _sizes(name: str, group_list, group_list_type: int) -> list[int]:
    """Group sizes from either kind of list."""
    check(
        group_list_type in (0, 1),
        f"{name}: the emulator implements group_list_type 0 (ends) and 1 (sizes), not {group_list_type}",
    )
    if isinstance(group_list, torch.Tensor):
        check(
            group_list.dtype == torch.int64,
            lambda: f"{name}: group_list must be int64, but is {group_list.dtype}; pass group_list.to(torch.int64)",
        )
        group_list = group_list.tolist()
    sizes = list(group_list)
    if group_list_type == 0:
        sizes = [end - start for start, end in zip([0, *sizes[:-1]], sizes, strict=True)]
    check(
        all(s >= 0 for s in sizes),
        lambda: f"{name}: group_list must not fall (group_list_type 0) or be negative (1), but is {list(group_list)}",
    )
    return sizes


def _weights(name: str, weight: list[torch.Tensor], groups: int) -> list[torch.Tensor]:
    """One matrix [K, N] a group."""
    matrices = list(weight[0]) if len(weight) == 1 and weight[0].dim() == 3 else list(weight)
    check(
        len(matrices) == groups,
        lambda: f"{name}: group_list has {groups} groups, but there are {len(matrices)} weights",
    )
    return matrices


def _check_inner(name: str, left: int, right: int) -> None:
    check(left == right, f"{name}: x has {left} columns, but the weight has {right} rows")


def rows_by_group(name: str, x, weight, biases, sizes: list[int]) -> torch.Tensor:
    """group_type 0. Rows beyond the last group stay unwritten."""
    matrices = _weights(name, weight, len(sizes))
    check(
        sum(sizes) <= x.shape[0],
        lambda: f"{name}: group_list adds up to {sum(sizes)} rows, but x has {x.shape[0]}",
    )
    out = unwritten(x, (x.shape[0], matrices[0].shape[1]))
    start = 0
    for group, (size, matrix) in enumerate(zip(sizes, matrices, strict=True)):
        _check_inner(name, x.shape[1], matrix.shape[0])
        if size:
            product = x[start : start + size] @ matrix
            out[start : start + size] = product + biases[group] if biases else product
        start += size
    return out


def inner_by_group(name: str, x, y, sizes: list[int]) -> torch.Tensor:
    """group_type 2. A group without columns gives zeros."""
    _check_inner(name, x.shape[1], y.shape[0])
    check(
        sum(sizes) <= x.shape[1],
        lambda: f"{name}: group_list adds up to {sum(sizes)} columns, but x has {x.shape[1]}",
    )
    used = sum(sizes)
    parts = zip(x[:, :used].split(sizes, 1), y[:used].split(sizes, 0), strict=True)
    return torch.stack([left @ right for left, right in parts])


def _check_grouped(a) -> None:
    check(a.group_type is not None, "Requires manual passing group_type, current is None.")
    check(
        a.group_type in (-1, 0, 2),
        f"Use Tensor input with current cann version, The group type must be -1, 0 or 2, but now is [{a.group_type}]",
    )
    check(
        len(a.x) > 0 and len(a.weight) > 0,
        "Invalid inputs: neither x nor weight could be empty.",
    )
    check(
        a.split_item in (0, 1, 2, 3),
        f"Invalid value of split_item [{a.split_item}], which should only be one of 0/1/2/3.",
    )
    for argument in ("scale", "offset", "antiquant_scale", "antiquant_offset", "per_token_scale", "activation_input"):
        check(not getattr(a, argument), f"{_NAME}: the emulator does not implement {argument}", NotImplementedError)
    check(not a.act_type, f"{_NAME}: the emulator does not implement act_type {a.act_type}", NotImplementedError)
    kinds = {t.dtype for t in (*a.x, *a.weight)}
    check(len(kinds) == 1, lambda: f"{_NAME}: x and weight must have one type, but have {sorted(map(str, kinds))}")
    if a.group_type == -1:
        check(
            a.split_item in (0, 1) and a.group_list is None and len(a.x) == len(a.weight),
            f"{_NAME}: group_type -1 wants split_item 0 or 1, no group_list and as many x as weight, but found "
            f"split_item {a.split_item}, {len(a.x)} x and {len(a.weight)} weight",
        )
        return
    check(
        len(a.x) == 1 and a.group_list is not None,
        f"{_NAME}: the emulator implements group_type {a.group_type} with one x and a group_list, but found {len(a.x)} "
        f"x and group_list {'None' if a.group_list is None else 'given'}",
    )
    check(
        a.group_type == 0 or (a.split_item in (2, 3) and len(a.weight) == 1),
        f"When group_type is 2 and split_item is 2/3, the length of weight must equal x; found split_item "
        f"{a.split_item} and {len(a.weight)} weight",
    )


def _grouped(a) -> list[torch.Tensor]:
    _check_grouped(a)
    biases = list(a.bias or [])
    if a.group_type == -1:
        results = [x @ w for x, w in zip(a.x, a.weight, strict=True)]
        results = [r + b for r, b in zip(results, biases, strict=True)] if biases else results
    else:
        sizes = _sizes(_NAME, a.group_list, a.group_list_type)
        if a.group_type == 2:
            results = [inner_by_group(_NAME, a.x[0], a.weight[0], sizes)]
        else:
            biases = list(biases[0]) if len(biases) == 1 and biases[0].dim() == 2 else biases
            results = [rows_by_group(_NAME, a.x[0], a.weight, biases, sizes)]
            if a.split_item in (0, 1):
                results = [part.clone() for part in results[0][: sum(sizes)].split(sizes)]
    return [r if a.output_dtype is None else r.to(a.output_dtype) for r in results]


def _grouped_meta(a) -> list[torch.Tensor]:
    """Result shapes; group_type 0 with split_item 0 or 1 has shapes that depend on data and is not traced."""
    check(a.group_type is not None, "Requires manual passing group_type, current is None.")
    kind = a.output_dtype or a.x[0].dtype
    columns = a.weight[0].shape[-1]
    if a.group_type == -1:
        pairs = zip(a.x, a.weight, strict=True)
        return [x.new_empty((*x.shape[:-1], w.shape[-1]), dtype=kind) for x, w in pairs]
    rows = a.x[0].shape[0]
    if a.group_type == 2:
        groups = a.group_list.shape[0] if isinstance(a.group_list, torch.Tensor) else len(a.group_list)
        return [a.x[0].new_empty((groups, rows, columns), dtype=kind)]
    check(a.split_item in (2, 3), f"{_NAME}: split_item {a.split_item} cannot be traced, its shapes depend on data")
    return [a.x[0].new_empty((rows, columns), dtype=kind)]


_LISTS = "Tensor[]? bias=None, Tensor[]? scale=None, Tensor[]? offset=None, Tensor[]? antiquant_scale=None, "
_MORE_LISTS = "Tensor[]? antiquant_offset=None, Tensor[]? per_token_scale=None, "
_ACTIVATION = (
    "Tensor[]? activation_input=None, Tensor[]? activation_quant_scale=None, Tensor[]? activation_quant_offset=None, "
)
_GROUPS = "int? split_item=0, int? group_type=None, int? group_list_type=0, int? act_type=0, "

operator(
    f"npu_grouped_matmul(Tensor[] x, Tensor[] weight, *, {_LISTS}{_MORE_LISTS}Tensor? group_list=None, "
    f"{_ACTIVATION}{_GROUPS}int[]? tuning_config=None, ScalarType? output_dtype=None) -> Tensor[]",
    meta=_grouped_meta,
    gathered=True,
)(_grouped)

operator(
    f"npu_grouped_matmul.List(Tensor[] x, Tensor[] weight, *, {_LISTS}{_MORE_LISTS}int[]? group_list=None, "
    f"{_ACTIVATION}{_GROUPS}ScalarType? output_dtype=None) -> Tensor[]",
    meta=_grouped_meta,
    gathered=True,
)(_grouped)


def _gmm(x, weight, bias, group_list, group_type, group_list_type):
    check(group_type in (0, 2), f"npu_gmm: group_type must be 0 or 2, but is {group_type}")
    check(len(x) == 1 and len(weight) == 1, f"npu_gmm wants one x and one weight, but found {len(x)} and {len(weight)}")
    sizes = _sizes("npu_gmm", group_list, group_list_type)
    if group_type == 2:
        return [inner_by_group("npu_gmm", x[0], weight[0], sizes)]
    return [rows_by_group("npu_gmm", x[0], weight, list(bias), sizes)]


def _gmm_backward(grad, x, weight, group_list, group_list_type):
    sizes = _sizes("npu_gmm_backward", group_list, group_list_type)
    dx = rows_by_group("npu_gmm_backward", grad[0], [weight[0].transpose(-1, -2)], [], sizes)
    dw = inner_by_group("npu_gmm_backward", x[0].transpose(0, 1), grad[0], sizes)
    return [dx], [dw.reshape(weight[0].shape)], []


def _gmm_backward_fusion(grad, weight, group_list, group_list_type):
    sizes = _sizes("npu_gmm_backward_fusion", group_list, group_list_type)
    return [rows_by_group("npu_gmm_backward_fusion", grad[0], [weight[0].transpose(-1, -2)], [], sizes)], [], []


def _gmm_meta(x, weight, bias, group_list, group_type, group_list_type):
    shape = (x[0].shape[0], weight[0].shape[-1])
    if group_type == 2:
        shape = (group_list.shape[0] if isinstance(group_list, torch.Tensor) else len(group_list), *shape)
    return [x[0].new_empty(shape)]


def _register_gmm(overload: str, group_list: str) -> None:
    """MindSpeed's extension has every function twice: group_list as a list and as a tensor."""

    def extension(name, arguments, result, kernel, meta, phase="forward"):
        operator(
            f"{name}{overload}({arguments}, {group_list}, {result}",
            meta=meta,
            namespace="mindspeed_extension",
            phase=phase,
            export=False,
        )(kernel)

    three = "int? group_list_type) -> (Tensor[], Tensor[], Tensor[])"
    extension(
        "npu_gmm",
        "Tensor[] x, Tensor[] weight, Tensor[] bias",
        "int? group_type, int? group_list_type) -> Tensor[]",
        _gmm,
        _gmm_meta,
    )
    extension(
        "npu_gmm_backward",
        "Tensor[] grad, Tensor[] x, Tensor[] weight",
        three,
        _gmm_backward,
        lambda grad, x, weight, group_list, kind: ([torch.empty_like(x[0])], [torch.empty_like(weight[0])], []),
        "backward",
    )
    extension(
        "npu_gmm_backward_fusion",
        "Tensor[] grad, Tensor[] weight",
        three,
        _gmm_backward_fusion,
        lambda grad, weight, group_list, kind: ([grad[0].new_empty((grad[0].shape[0], weight[0].shape[-2]))], [], []),
        "backward",
    )


_register_gmm("", "Tensor? group_list")
_register_gmm(".List", "int[]? group_list")


@operator(
    "npu_groupmatmul_add_fp32(Tensor x, Tensor weight, Tensor group_list, Tensor(a!) grad) -> ()",
    meta=lambda *_: None,
    namespace="mindspeed_extension",
    phase="backward",
    export=False,
)
def npu_groupmatmul_add_fp32(x, weight, group_list, grad):
    """grad[g] += x[rows of g]^T @ weight[rows of g], grad in float32; group_list holds the ends of the groups."""
    _check_float32("npu_groupmatmul_add_fp32", "grad", grad)
    sizes = _sizes("npu_groupmatmul_add_fp32", group_list, 0)
    product = inner_by_group("npu_groupmatmul_add_fp32", x.float().transpose(0, 1), weight.float(), sizes)
    grad.add_(product.reshape(grad.shape))


def _add_product(x, weight, C):
    _check_float32("npu_matmul_add_fp32", "C", C)
    left, right = (t.float().reshape(-1, t.shape[-1]) for t in (x, weight))
    C.add_((left.transpose(0, 1) @ right).reshape(C.shape))


def _check_float32(name: str, argument: str, tensor: torch.Tensor) -> None:
    check(
        tensor.dtype == torch.float32,
        lambda: f"{name}: {argument} must be float32, but is {tensor.dtype}",
    )


# C += x^T @ weight: the weight gradient straight into float32; ATB has it for vllm-ascend's warm-up, MindSpeed as its
# own
operator("_npu_matmul_add_fp32(Tensor x, Tensor weight, Tensor(a!) C) -> ()", meta=lambda *_: None, namespace="atb")(
    _add_product
)
operator(
    "npu_matmul_add_fp32(Tensor x, Tensor weight, Tensor(a!) C) -> ()",
    meta=lambda *_: None,
    namespace="mindspeed_extension",
    phase="backward",
    export=False,
)(_add_product)
