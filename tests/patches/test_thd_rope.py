"""megatron/thd-rope: the patched file of the installed Megatron-core against the unpatched one.

Context parallel ranks are Megatron's own, on a process group without communication.
"""

import gc
import importlib.util
import random
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from patches import engine
from patches.megatron.thd_rope import PATCH
from patches.places import place

RANKS = [(cp, rank) for cp in (1, 2, 4, 8) for rank in range(cp)]
CASES = 22  # of each rank: 330


@pytest.fixture(scope="module", autouse=True)
def megatron():
    """Imports it when the tests run: while they are collected it would turn the device of other tests into CUDA's."""
    global parallel_state, embeddings, rope_utils
    from megatron.core import parallel_state
    from megatron.core.models.common import embeddings
    from megatron.core.models.common.embeddings import rope_utils


@pytest.fixture(scope="module")
def root(megatron, tmp_path_factory):
    """A folder with the patched file."""
    found = tmp_path_factory.mktemp("packages")
    path = found / "megatron/core/models/common/embeddings/rope_utils.py"
    path.parent.mkdir(parents=True)
    path.write_bytes(place(None).module(rope_utils.__name__).read_bytes())
    engine.apply(engine.judge([PATCH], place(found)))
    return found


@pytest.fixture(scope="module")
def patched(root):
    """The patched file as a module, and what the patch adds beside it."""
    folder = root / "megatron/core/models/common/embeddings"
    embeddings.__path__.append(str(folder))
    spec = importlib.util.spec_from_file_location(f"{rope_utils.__name__}_patched", folder / "rope_utils.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    embeddings.__path__.remove(str(folder))


@pytest.fixture
def context_parallel():
    """Makes this process one rank of that many."""

    def start(size, rank):
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
        parallel_state.initialize_model_parallel(context_parallel_size=size, create_gloo_process_groups=False)

    yield start
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()


def packed(lengths, size=1, heads=2, dim=8, positions=None, rotated=None, dtype=torch.float32, device="cpu"):
    """Arguments for packed sequences of those lengths, of which this rank has 1 / size."""
    starts = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    t = torch.randn(sum(lengths) // size, heads, dim, dtype=dtype)
    freqs = torch.randn(max(lengths) if positions is None else positions, 1, 1, rotated or dim)
    return t.to(device).requires_grad_(), starts.to(device), freqs.to(device)


def both_ways(module, arguments, **options):
    """Output, and gradient of the rotated tensor."""
    t, starts, freqs = arguments
    out = module._apply_rotary_pos_emb_thd(t, starts, freqs, **options)
    weight = torch.linspace(-1, 1, out.numel()).reshape(out.shape).to(out)
    return out, torch.autograd.grad(out, t, weight)[0]


@pytest.mark.parametrize(("size", "rank"), RANKS)
def test_same_bits_as_the_loop(patched, context_parallel, size, rank):
    context_parallel(size, rank)
    rng = random.Random(100 * size + rank)
    torch.manual_seed(rng.random())
    for _ in range(CASES):
        interleaved = rng.random() < 0.5
        least = 1 if interleaved else 0  # the loop fails for empty sequences there
        lengths = [rng.randint(least, 12) * (2 * size if size > 1 else 1) for _ in range(rng.randint(1, 9))]
        dim = rng.choice((8, 16))
        arguments = packed(
            lengths,
            size,
            heads=rng.randint(1, 3),
            dim=dim,
            positions=max(lengths) + rng.randint(0, 9),
            rotated=rng.choice((dim, dim // 2)),
            dtype=rng.choice((torch.bfloat16, torch.float32)),
        )
        options = {
            "rotary_interleaved": interleaved,
            "multi_latent_attention": rng.random() < 0.3,
            "mscale": rng.choice((1.0, 1.3)),
        }
        for ours, loop in zip(
            both_ways(patched, arguments, **options), both_ways(rope_utils, arguments, **options), strict=True
        ):
            assert ours.dtype == loop.dtype and torch.equal(ours, loop), (lengths, options)


@pytest.mark.parametrize(
    ("size", "starts", "tokens", "positions", "message"),
    [
        (1, [0, 6, 4, 8], 8, 8, "expected cu_seqlens that never decreases, found lengths .6, -2, 4."),
        (1, [0, 3, 8], 8, 4, "expected frequencies for 5 positions, the longest sequence, found 4"),
        (1, [0, 3, 7], 8, 8, "expected 7 tokens on this rank by cu_seqlens, found 8"),
        (2, [0, 8, 12], 8, 16, "expected 6 tokens on this rank by cu_seqlens, found 8"),
        (2, [0, 6, 12], 6, 16, "parallelism of 2 divides into 4 chunks, found .6, 6."),
        (2, [0, 8, 16], 8, 6, "expected frequencies for 8 positions"),
    ],
)
def test_what_the_loop_refuses_is_refused(patched, context_parallel, size, starts, tokens, positions, message):
    """Gathering would take wrong positions in silence."""
    context_parallel(size, 0)
    arguments = torch.randn(tokens, 1, 8), torch.tensor(starts), torch.randn(positions, 1, 1, 8)
    with pytest.raises(RuntimeError):
        rope_utils._apply_rotary_pos_emb_thd(*arguments)
    with pytest.raises(RuntimeError, match=f"RoPE of packed sequences: .*{message}"):
        patched._apply_rotary_pos_emb_thd(*arguments)


class Watch(TorchDispatchMode):
    """Counts operators, and those for which the host has to wait."""

    def __init__(self):
        super().__init__()
        self.operators, self.waits = 0, 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        from torch_npu.npu import host_sync

        self.operators += 1
        self.waits += host_sync.waits(operator, args, kwargs or {})
        return operator(*args, **(kwargs or {}))


def watched(module, arguments):
    with Watch() as watch:
        both_ways(module, arguments)
    return watch


def test_as_many_operators_for_any_number_of_sequences(patched, context_parallel):
    context_parallel(1, 0)
    ours, loop = {}, {}
    for number in (1, 16, 64):
        arguments = packed([4] * number)
        both_ways(patched, arguments)
        ours[number], loop[number] = watched(patched, arguments).operators, watched(rope_utils, arguments).operators
    assert len(set(ours.values())) == 1 and ours[1] <= 40 and ours[1] < loop[1], (ours, loop)
    assert (loop[64] - loop[16]) / 48 > 20


def test_the_host_waits_once_in_a_micro_batch(patched, context_parallel):
    context_parallel(1, 0)
    arguments = packed([3, 5, 4], device="npu")
    assert [watched(patched, arguments).waits for _ in range(3)] == [1, 0, 0]
    assert [watched(rope_utils, arguments).waits for _ in range(3)] == [1, 1, 1]


@pytest.fixture
def made(patched, monkeypatch):
    """Counts layouts that are made."""
    calls = Counter()
    original = patched.rl_thd_rope._new_layout

    def count(*arguments):
        calls["made"] += 1
        return original(*arguments)

    monkeypatch.setattr(patched.rl_thd_rope, "_new_layout", count)
    return calls


def test_positions_are_made_once_in_a_micro_batch(patched, context_parallel, made):
    """Queries and keys of two layers, two micro-batches in flight, and frequencies that recomputation has detached."""
    context_parallel(2, 1)
    before = len(patched.rl_thd_rope._layouts)
    batches = [packed([4, 8], 2), packed([12, 4], 2)]
    for _ in range(4):
        for t, starts, freqs in batches:
            ours = both_ways(patched, (t, starts, freqs.detach()))
            assert torch.equal(ours[0], both_ways(rope_utils, (t, starts, freqs))[0])
    assert made["made"] == 2
    del batches, t, starts, freqs
    gc.collect()
    assert len(patched.rl_thd_rope._layouts) == before


def test_frequencies_are_gathered_once_in_a_micro_batch(patched, context_parallel):
    _, starts, freqs = packed([4, 8], positions=12)
    context_parallel(1, 0)
    gather = patched.rl_thd_rope.gather
    assert gather(freqs.detach(), starts, 12) is gather(freqs, starts, 12)


@pytest.mark.parametrize(
    "changed",
    [
        lambda freqs: freqs.mul_(2),
        lambda freqs: freqs.clone() * 2,
        lambda freqs: freqs[:8],
        lambda freqs: freqs[..., :4],
        lambda freqs: freqs.view(torch.int32),
        lambda freqs: freqs.as_strided(freqs.shape, (0, 8, 8, 1)),
    ],
    ids=["in place", "other memory", "shorter", "fewer", "other type", "other strides"],
)
def test_other_frequencies_are_gathered_anew(patched, context_parallel, changed):
    context_parallel(1, 0)
    t, starts, freqs = packed([4, 8], positions=12)
    both_ways(patched, (t, starts, freqs))
    other = changed(freqs)
    assert torch.equal(both_ways(patched, (t, starts, other))[0], both_ways(rope_utils, (t, starts, other))[0])


def test_learnt_frequencies_have_a_gradient_at_each_layer(patched, context_parallel):
    context_parallel(1, 0)
    t, starts, freqs = packed([4, 8])
    freqs.requires_grad_()
    for _ in range(2):
        ours, loop = (m._apply_rotary_pos_emb_thd(t, starts, freqs).square().sum() for m in (patched, rope_utils))
        assert torch.allclose(torch.autograd.grad(ours, freqs)[0], torch.autograd.grad(loop, freqs)[0], atol=1e-5)


def test_positions_follow_a_change_of_cu_seqlens(patched, context_parallel, made):
    context_parallel(1, 0)
    t, starts, freqs = packed([4, 8], positions=12)
    both_ways(patched, (t, starts, freqs))
    starts[1] = 9
    assert torch.equal(both_ways(patched, (t, starts, freqs))[0], both_ways(rope_utils, (t, starts, freqs))[0])
    assert made["made"] == 2
    with torch.inference_mode():
        starts = starts.clone()
        for middle in (5, 7):
            starts[1] = middle
            ours = patched._apply_rotary_pos_emb_thd(t, starts, freqs)
            assert torch.equal(ours, rope_utils._apply_rotary_pos_emb_thd(t, starts, freqs))


def test_the_fused_operator_runs_once(patched, context_parallel, monkeypatch):
    """MindSpeed puts another function in the place of the module's global: the patched module calls that one."""
    from torch_npu import trace

    operator = torch.ops.mindspeed_extension.npu_rotary_position_embedding

    def fused(t, freqs, rotary_interleaved=False, multi_latent_attention=False, mscale=1.0):
        return operator(t.contiguous(), freqs.cos().to(t.dtype), freqs.sin().to(t.dtype), int(rotary_interleaved))

    context_parallel(1, 0)
    arguments = packed([4] * 16, dim=64, device="npu")
    found = []
    for module in (patched, rope_utils):
        monkeypatch.setattr(module, "_apply_rotary_pos_emb_bshd", fused)
        trace.reset()
        out = both_ways(module, arguments)
        names = "npu_rotary_position_embedding", "npu_rotary_position_embedding_grad"
        found.append(SimpleNamespace(out=out, calls=[sum(trace.calls(n, p) for p in trace.PHASES) for n in names]))
    assert [each.calls for each in found] == [[1, 1], [16, 16]]
    assert all(torch.equal(ours, loop) for ours, loop in zip(found[0].out, found[1].out, strict=True))


def test_patched_once(root):
    judged = engine.judge([PATCH], place(root))
    assert judged.verdicts[0].state == "applied" and not judged.changes


def test_another_body_is_not_replaced(tmp_path):
    path = tmp_path / "megatron/core/models/common/embeddings/rope_utils.py"
    path.parent.mkdir(parents=True)
    text = place(None).module(rope_utils.__name__).read_text()
    path.write_text(text.replace("cu_seqlens = cu_seqlens // cp_size", "cu_seqlens = cu_seqlens // (cp_size or 1)"))
    verdict = engine.judge([PATCH], place(tmp_path)).verdicts[0]
    assert verdict.state == "drifted" and "_apply_rotary_pos_emb_thd" in verdict.reason
