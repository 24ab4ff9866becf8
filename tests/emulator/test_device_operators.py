"""Every aten operator gives on the npu what it gives on the CPU, bit for bit: values and gradients.

The operators and their arguments are torch's own (OpInfo, some 700 entries). An entry that cannot be compared stands
in a table below with the reason, and must fail as long as it stands there.
"""

import collections
import itertools
import sys
import types
import unittest

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

SHARDS = 8
TYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)  # those that an entry knows
SAMPLES = 16  # at most, of each entry in each type; the first ones are the plain cases, the time is bounded by this

# Entries whose comparison fails, and why that is not a fault of the device.
EXCEPTIONS = {
    "sparse.sampled_addmm": "takes sparse tensors; the emulated NPU has none",
    "sparse.mm.reduce": "takes sparse tensors; the emulated NPU has none",
    "to_sparse": "makes a sparse tensor; the emulated NPU has none",
    "tensor_split": "wants its index tensor on the CPU, as on every device",
    "mode": "its out= form allows the CPU, CUDA and XPU by name",
    # in bfloat16; torch chooses by the type of the device how it adds up (linear_cross_entropy_options.py)
    "nn.functional.linear_cross_entropy.chunked": "another order of additions than on the CPU",
    "nn.functional.linear_cross_entropy.chunked_none": "another order of additions than on the CPU",
}
if torch.__version__.startswith("2.7."):
    EXCEPTIONS["nanmean"] = "its out= form calls a CPU kernel with the tensors it is given, whatever their device"
# Entries whose samples cannot be made on this CPU.
WITHOUT_SAMPLES = {
    "torch._scaled_mm": "OpInfo has no samples for the CPU",
    "torch._scaled_mm_v2": "OpInfo has no samples for the CPU",
    "torch.ops.aten._flash_attention_forward": "OpInfo has no type for the CPU",
    "torch.ops.aten._efficient_attention_forward": "OpInfo has no type for the CPU",
}
# Samples that two calls on the CPU do not answer alike, by keyword argument.
UNREPEATABLE = {
    "linalg.lstsq": ("driver", "gelsy"),  # torch hands LAPACK its pivots uninitialised
}
# Entries that return memory nobody has written to: they run, their values are not compared.
UNINITIALISED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}

totals = collections.Counter()


@pytest.fixture(scope="module")
def entries():
    """The entries by name. Imported here: it takes seconds and no other test needs it."""
    # torch's module imports this package for a base class of its own test cases, none of which runs here.
    stand_in = types.ModuleType("expecttest")  # hypothesis hashes all that is in sys.modules
    stand_in.TestCase = unittest.TestCase
    sys.modules.setdefault("expecttest", stand_in)
    from torch.testing._internal.common_methods_invocations import op_db

    return {full_name(entry): entry for entry in op_db}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shard", range(SHARDS))
def test_operators_equal_the_cpus(entries, shard):
    failures = {}
    for name in list(entries)[shard::SHARDS]:
        outcome = compare(entries[name])
        totals[outcome.kind] += 1
        totals["samples"] += outcome.samples
        if outcome.kind == "failed":
            failures[name] = outcome.reason
    expected = {name for name in list(entries)[shard::SHARDS] if name in EXCEPTIONS}
    wrong = {name: reason for name, reason in failures.items() if name not in EXCEPTIONS}
    assert not wrong, "\n".join(f"{name}: {reason}" for name, reason in wrong.items())
    assert expected <= set(failures), f"these exceptions pass now, remove them: {expected - set(failures)}"


def test_nearly_all_entries_pass(entries):
    done = sum(totals[kind] for kind in ("compared", "ran", "failed", "skipped"))
    if done < len(entries):
        pytest.skip("the shards ran in several processes, or not all of them")
    print(f"\n{len(entries)} entries, {totals['samples']} samples: {dict(totals)}")
    assert totals["ran"] <= len(UNINITIALISED)
    assert totals["compared"] + totals["ran"] >= len(entries) - 11


Outcome = collections.namedtuple("Outcome", "kind samples reason", defaults=("",))


def compare(entry):
    """Run an entry's samples on the CPU and on the npu: compared, ran (values not comparable), failed or skipped."""
    if full_name(entry) in WITHOUT_SAMPLES:
        return Outcome("skipped", 0)
    count = 0
    for dtype in (dtype for dtype in TYPES if dtype in entry.dtypes):
        differentiable = entry.supports_autograd and dtype is torch.float32
        for arguments in samples(entry, dtype, differentiable):
            moved = try_on_npu(arguments)  # before the CPU's call: some operators write to their arguments
            try:
                expected = call(entry, arguments)
            except Exception:
                continue  # the CPU refuses this sample
            count += 1
            reason = difference(entry, arguments, expected, moved, differentiable)
            if not reason and dtype is TYPES[0]:
                reason = out_difference(entry, arguments, expected) or in_place_difference(entry, arguments)
            if reason:
                return Outcome("failed", count, f"{dtype}: {reason}")
    return Outcome("ran" if entry.name in UNINITIALISED else "compared", count)


def samples(entry, dtype, differentiable):
    """The first samples of an entry: (input, args, kwargs)."""
    name, value = UNREPEATABLE.get(entry.name, (None, None))
    found = entry.sample_inputs("cpu", dtype, requires_grad=differentiable)
    for sample in itertools.islice(found, SAMPLES):
        if name is None or sample.kwargs.get(name) != value:
            yield sample.input, sample.args, sample.kwargs


def difference(entry, arguments, expected, moved, differentiable):
    """What differs between the CPU's result and the npu's for one sample; "" when nothing does."""
    if isinstance(moved, Exception):
        return first_line(moved)
    try:
        actual = call(entry, moved)
        if entry.name in UNINITIALISED:
            return ""
        if reason := unequal(expected, actual):
            return reason
        if differentiable:
            return gradient_difference(arguments, expected, moved, actual)
    except Exception as error:
        return first_line(error)
    return ""


def first_line(error):
    return f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"


def gradient_difference(arguments, expected, moved, actual):
    """As difference(), for the gradients of the sum of all results."""
    sources, targets = with_gradient(arguments), with_gradient(expected)
    if not sources or not targets:
        return ""
    try:
        wanted = torch.autograd.grad([t.sum() for t in targets], sources, allow_unused=True)
    except RuntimeError:
        return ""  # the CPU has no gradient here
    found = torch.autograd.grad([t.sum() for t in with_gradient(actual)], with_gradient(moved), allow_unused=True)
    reason = unequal(wanted, found)
    return f"gradient: {reason}" if reason else ""


def out_difference(entry, arguments, expected):
    """As difference(), for out= variants that fill tensors which are too small."""
    results = expected if isinstance(expected, tuple) else (expected,)
    if not entry.supports_out or not all(isinstance(t, torch.Tensor) for t in results):
        return ""
    positional, args, kwargs = detached(arguments)
    cpu_out, npu_out = (tuple(torch.empty(0, dtype=t.dtype, device=d) for t in results) for d in ("cpu", "npu"))
    try:
        call(entry, (positional, args, {**kwargs, "out": cpu_out[0] if len(results) == 1 else cpu_out}))
    except Exception:
        return ""  # the CPU refuses this
    moved, moved_args, moved_kwargs = on_npu((positional, args, kwargs))
    try:
        call(entry, (moved, moved_args, {**moved_kwargs, "out": npu_out[0] if len(results) == 1 else npu_out}))
    except Exception as error:
        return f"out=: {first_line(error)}"
    reason = "" if entry.name in UNINITIALISED else unequal(cpu_out, npu_out)
    return f"out=: {reason}" if reason else ""


def in_place_difference(entry, arguments):
    """As difference(), for in-place variants; what they return must be what they were given."""
    if entry.inplace_variant is None or not isinstance(arguments[0], torch.Tensor):
        return ""
    positional, args, kwargs = detached(arguments)
    moved = on_npu((positional, args, kwargs))
    try:
        torch.manual_seed(0)
        entry.inplace_variant(positional, *args, **kwargs)
    except Exception:
        return ""  # the CPU refuses this
    try:
        torch.manual_seed(0)
        returned = entry.inplace_variant(moved[0], *moved[1], **moved[2])
    except Exception as error:
        return f"in place: {first_line(error)}"
    if returned is not moved[0]:
        return "in place: another tensor is returned"
    reason = unequal(positional, moved[0])
    return f"in place: {reason}" if reason else ""


def detached(arguments):
    """The same arguments without gradients, in memory of their own."""
    return pytree.tree_map(lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x, arguments)


def call(entry, arguments):
    torch.manual_seed(0)  # the npu's generators as well
    positional, args, kwargs = arguments
    with sdpa_kernel(SDPBackend.MATH):  # the CPU has a fused attention of its own, which rounds differently
        return entry.op(positional, *args, **kwargs)


def try_on_npu(arguments):
    """The arguments on the npu, or the exception that says why they cannot be there."""
    try:
        return on_npu(arguments)
    except Exception as error:
        return error


def on_npu(value):
    """The same arguments on the npu: tensors, and what names the CPU as a device."""

    def move(leaf):
        if isinstance(leaf, torch.Tensor):
            return with_storage(leaf).requires_grad_(leaf.requires_grad)
        if isinstance(leaf, torch.device) or leaf == "cpu":
            return torch.device("npu")
        return leaf

    return pytree.tree_map(move, value)


def with_storage(tensor):
    """The tensor on the npu at the same place of as large a storage: views of a part stay that, alignment too."""
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        return tensor.to("npu")
    whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    moved = whole.to("npu").as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
    moved = moved.conj() if tensor.is_conj() else moved
    return torch._neg_view(moved) if tensor.is_neg() else moved


def with_gradient(value):
    leaves = pytree.tree_leaves(value)
    return [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad and t.is_floating_point()]


def unequal(expected, actual):
    """The first difference between two results; "" when they are equal bit for bit (NaN equals NaN)."""
    left, right = pytree.tree_leaves(expected), pytree.tree_leaves(actual)
    if len(left) != len(right):
        return f"{len(left)} results on the CPU, {len(right)} on the npu"
    for a, b in zip(left, right, strict=True):
        if not isinstance(a, torch.Tensor):
            if a != b and a == a:
                return f"{a!r} on the CPU, {b!r} on the npu"
            continue
        if a.layout != torch.strided:
            return f"a result of layout {a.layout}"
        if b.device.type != "npu":
            return f"a result on {b.device}"
        b = b.cpu()
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{tuple(a.shape)} {a.dtype} on the CPU, {tuple(b.shape)} {b.dtype} on the npu"
        if not torch.equal(bits(a), bits(b)):
            return f"values differ (shape {tuple(a.shape)})"
    return ""


def bits(tensor):
    """The tensor's bytes, with one pattern for every NaN."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    tensor = tensor.resolve_neg().detach()
    if tensor.is_floating_point():
        tensor = tensor.masked_fill(tensor.isnan(), torch.nan)
    return tensor.reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8)


def full_name(entry):
    return f"{entry.name}.{entry.variant_test_name}" if entry.variant_test_name else entry.name
