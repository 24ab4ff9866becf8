"""Rollout attention over a paged cache against attention row by row over the sequences the cache was filled from."""

import itertools

import pytest
import torch
import torch_npu

from tests.emulator.operators.attention_formula import attention
from tests.emulator.operators.comparison import FLOATS, ROUNDING, assert_close, seeded

HEADS, GROUPS, WIDTH, BLOCK = 4, 2, 8, 4
SCALE = 0.3
UNTOUCHED = 7.0


class Sequences:
    """Sequences with random queries, keys and values, and a cache whose blocks lie in random order."""

    def __init__(self, contexts, news, dtype, seed=0):
        self.contexts, self.news = contexts, news
        g = seeded("sequences", contexts, news, dtype, seed)
        self.queries = [torch.randn(n, HEADS, WIDTH, generator=g).to(dtype) for n in news]
        self.keys, self.values = (
            [torch.randn(c, GROUPS, WIDTH, generator=g).to(dtype) for c in contexts] for _ in range(2)
        )
        self.blocks = [-(-c // BLOCK) for c in contexts]
        free = torch.randperm(sum(self.blocks) + 2, generator=g).tolist()
        widest = max(self.blocks, default=0) + 1
        # unused entries of the table name no block, unused places of the cache are not numbers
        self.table = torch.full((len(contexts), widest), 2**30, dtype=torch.int32)
        self.caches = [torch.full((len(free), BLOCK, GROUPS, WIDTH), float("nan"), dtype=dtype) for _ in range(2)]
        for row, (context, count) in enumerate(zip(contexts, self.blocks, strict=True)):
            own, free = free[:count], free[count:]
            self.table[row, :count] = torch.tensor(own, dtype=torch.int32)
            for i in range(context):
                place = (own[i // BLOCK], i % BLOCK)
                self.caches[0][place], self.caches[1][place] = self.keys[row][i], self.values[row][i]

    def query(self, padding=0):
        return torch.cat([*self.queries, torch.zeros(padding, HEADS, WIDTH, dtype=self.queries[0].dtype)])

    def expected(self, causal=True):
        results = []
        for query, key, value in zip(self.queries, self.keys, self.values, strict=True):
            shift = len(key) - len(query) if causal else len(key)
            results.append(
                attention(query.double(), key.double(), value.double(), SCALE, lambda i, j, s=shift: j <= i + s)
            )
        return torch.cat(results)


def host(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


def triangle(size, dtype):
    return torch.ones(size, size).triu(1).to(dtype).npu()


def out_for(query):
    return torch.full_like(query, UNTOUCHED)


def check_rows(out, expected):
    """The rows of the sequences, and that nothing else was written."""
    assert_close(out[: len(expected)], expected)
    assert (out[len(expected) :].cpu() == UNTOUCHED).all()


@pytest.mark.parametrize(("dtype", "shift"), itertools.product(FLOATS, (0, 1)))
def test_flash_attention_of_prompts(dtype, shift):
    lengths = [3, 1, 6]
    s = Sequences(lengths, lengths, dtype, shift)
    query = s.query(padding=2).npu()
    out = out_for(query)
    key, value = (torch.cat([*t, torch.zeros(2, GROUPS, WIDTH, dtype=dtype)]).npu() for t in (s.keys, s.values))
    torch_npu._npu_flash_attention(
        query=query,
        key=key,
        value=value,
        mask=triangle(6 + shift, dtype),
        seq_len=host(*lengths),
        scale_value=SCALE,
        num_heads=HEADS,
        num_kv_heads=GROUPS,
        out=out,
    )
    check_rows(out, s.expected())


def test_flash_attention_obeys_the_content_of_the_mask():
    s = Sequences([4], [4], torch.float32)
    query = s.query().npu()
    out = out_for(query)
    torch_npu._npu_flash_attention(
        query, s.keys[0].npu(), s.values[0].npu(), torch.zeros(4, 4).npu(), host(4), SCALE, HEADS, GROUPS, out
    )
    assert_close(out, s.expected(causal=False))


@pytest.mark.parametrize("dtype", FLOATS)
def test_flash_attention_of_prompts_with_a_cached_beginning(dtype):
    s = Sequences([9, 4, 5], [2, 4, 1], dtype)
    query = s.query(padding=1).npu()
    out = out_for(query)
    torch_npu._npu_flash_attention_qlens(
        query=query,
        key_cache=s.caches[0].npu(),
        value_cache=s.caches[1].npu(),
        block_table=s.table.npu(),
        mask=triangle(128, dtype),
        seq_len=host(*s.news),
        context_lens=host(*s.contexts),
        num_kv_heads=GROUPS,
        num_heads=HEADS,
        scale_value=SCALE,
        out=out,
    )
    check_rows(out, s.expected())


@pytest.mark.parametrize("dtype", FLOATS)
def test_splitfuse_of_chunks_and_single_tokens(dtype):
    s = Sequences([9, 4, 5], [2, 4, 1], dtype)
    query = s.query().npu()
    out = out_for(query)
    positions = torch.cat([torch.arange(c - n, c) for c, n in zip(s.contexts, s.news, strict=True)])
    mask = (torch.arange(9)[None] > positions[:, None]).to(dtype) * -10000
    torch_npu._npu_paged_attention_splitfuse(
        query=query,
        key_cache=s.caches[0].npu(),
        value_cache=s.caches[1].npu(),
        mask=mask.npu(),
        block_table=s.table.npu(),
        seq_len=host(*s.news),
        context_lens=host(*s.contexts),
        num_kv_heads=GROUPS,
        num_heads=HEADS,
        scale_value=SCALE,
        out=out,
    )
    check_rows(out, s.expected())


@pytest.mark.parametrize(("dtype", "flat"), itertools.product(FLOATS, (False, True)))
def test_paged_attention_of_one_token_each(dtype, flat):
    """flat: query and out as [tokens, heads * width]."""
    s = Sequences([9, 1, 4, 8], [1, 1, 1, 1], dtype)
    query = s.query(padding=2).npu()
    query = query.flatten(1) if flat else query
    out = out_for(query)
    call = {
        "query": query,
        "key_cache": s.caches[0].npu(),
        "value_cache": s.caches[1].npu(),
        "num_kv_heads": GROUPS,
        "num_heads": HEADS,
        "scale_value": SCALE,
        "block_table": s.table.npu(),
        "context_lens": host(*s.contexts),
        "out": out,
    }
    workspace = torch_npu._npu_paged_attention_get_workspace(**call)
    assert workspace.dtype == torch.uint8 and workspace.device.type == "npu"
    torch_npu._npu_paged_attention(**call, workspace=workspace)
    check_rows(out, s.expected().reshape(4, *query.shape[1:]))


def test_paged_attention_skips_the_padding_of_a_graph():
    s = Sequences([5], [1], torch.float32)
    query, table = s.query(padding=2).npu(), torch.cat((s.table, torch.zeros_like(s.table), torch.zeros_like(s.table)))
    out = out_for(query)
    torch_npu._npu_paged_attention(
        query, s.caches[0].npu(), s.caches[1].npu(), GROUPS, HEADS, SCALE, table.npu(), host(5, 0, 0), out
    )
    check_rows(out, s.expected())
    before = out.clone()
    torch_npu._npu_paged_attention(
        query, s.caches[0].npu(), s.caches[1].npu(), GROUPS, HEADS, SCALE, table.npu(), host(0, 0, 0), out
    )
    assert torch.equal(out, before)


@pytest.mark.parametrize("dtype", FLOATS)
def test_fused_infer_attention_score_over_the_cache(dtype):
    s = Sequences([9, 4, 5], [2, 4, 1], dtype)
    ends = torch.tensor(s.news).cumsum(0)
    out, statistics = torch_npu.npu_fused_infer_attention_score(
        query=s.query().npu(),
        key=s.caches[0].flatten(2).npu(),
        value=s.caches[1].flatten(2).npu(),
        atten_mask=triangle(2048, torch.int8),
        block_table=s.table.npu(),
        input_layout="TND",
        block_size=BLOCK,
        actual_seq_lengths=ends.tolist(),
        actual_seq_lengths_kv=s.contexts,
        num_key_value_heads=GROUPS,
        num_heads=HEADS,
        scale=SCALE,
        sparse_mode=3,
    )
    assert_close(out, s.expected())
    assert statistics.numel() == 0


def test_fused_infer_attention_score_of_packed_keys():
    s = Sequences([3, 4], [2, 4], torch.float32)
    out, statistics = torch_npu.npu_fused_infer_attention_score(
        s.query().npu(),
        torch.cat(s.keys).npu(),
        torch.cat(s.values).npu(),
        input_layout="TND",
        actual_seq_lengths=[2, 6],
        actual_seq_lengths_kv=[3, 7],
        num_key_value_heads=GROUPS,
        num_heads=HEADS,
        scale=SCALE,
        softmax_lse_flag=True,
    )
    assert_close(out, s.expected(causal=False))
    scores = torch.einsum("qd,kd->qk", s.queries[0][:, 3].double(), s.keys[0][:, 1].double()) * SCALE
    assert_close(statistics[:2, 3, 0], scores.logsumexp(-1))


def test_fused_infer_attention_score_takes_lengths_as_tensors():
    """vllm-ascend passes query_start_loc[1:] on the device and seq_lens on the host."""
    s = Sequences([5], [2], torch.float32)
    out, _ = torch_npu.npu_fused_infer_attention_score(
        s.query().npu(),
        s.caches[0].flatten(2).npu(),
        s.caches[1].flatten(2).npu(),
        atten_mask=triangle(2048, torch.int8),
        block_table=s.table.npu(),
        input_layout="TND",
        block_size=BLOCK,
        actual_seq_lengths=host(2).npu(),
        actual_seq_lengths_kv=host(5),
        num_key_value_heads=GROUPS,
        num_heads=HEADS,
        scale=SCALE,
        sparse_mode=3,
    )
    assert_close(out, s.expected())


@pytest.mark.parametrize("dtype", FLOATS)
def test_reshape_and_cache(dtype):
    g = seeded(dtype)
    key, value = (torch.randn(5, GROUPS, WIDTH, generator=g).to(dtype) for _ in range(2))
    caches = [torch.full((3, BLOCK, GROUPS, WIDTH), UNTOUCHED, dtype=dtype).npu() for _ in range(2)]
    slots = [11, 0, -1, 6, 5]
    torch_npu._npu_reshape_and_cache(key.npu(), value.npu(), *caches, host(*slots).npu())
    for fresh, cache in zip((key, value), caches, strict=True):
        found = cache.cpu()
        for block, place in itertools.product(range(3), range(BLOCK)):
            slot = block * BLOCK + place
            want = fresh[slots.index(slot)] if slot in slots else torch.full_like(fresh[0], UNTOUCHED)
            assert torch.equal(found[block, place], want)


def test_cached_attention_equals_attention_of_the_prompt():
    """The same numbers from both kernels to within float32: what keeps a rollout's log-probs near the trainer's."""
    s = Sequences([6], [6], torch.bfloat16)
    query = s.query().npu()
    whole, cached = out_for(query), out_for(query)
    torch_npu._npu_flash_attention(
        query, s.keys[0].npu(), s.values[0].npu(), triangle(6, query.dtype), host(6), SCALE, HEADS, GROUPS, whole
    )
    for i in range(6):
        torch_npu._npu_paged_attention(
            query[i : i + 1],
            s.caches[0].npu(),
            s.caches[1].npu(),
            GROUPS,
            HEADS,
            SCALE,
            s.table.npu(),
            host(i + 1),
            cached[i : i + 1],
        )
    assert (whole.float() - cached.float()).abs().max().item() <= ROUNDING[torch.bfloat16]


def prefill(**change):
    s = Sequences([4], [4], torch.float32)
    call = {
        "query": s.query().npu(),
        "key": s.keys[0].npu(),
        "value": s.values[0].npu(),
        "mask": triangle(4, torch.float32),
        "seq_len": host(4),
        "scale_value": SCALE,
        "num_heads": HEADS,
        "num_kv_heads": GROUPS,
        "out": s.query().npu(),
    }
    torch_npu._npu_flash_attention(**(call | change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seq_len": host(4).npu()}, r"'seq_len' is read on the host .* lies on npu:0. Pass seq_len\.cpu\(\)"),
        ({"seq_len": torch.tensor([4])}, r"seq_len must be int32, but is torch\.int64"),
        ({"seq_len": host(5)}, "seq_len adds up to 5 tokens, but query has 4"),
        ({"mask": triangle(3, torch.float32)}, r"mask must cover \[4, 4\], but its shape is \(3, 3\)"),
        ({"mask": torch.ones(4, 4)}, "found at least two devices, cpu and npu:0!"),
    ],
)
def test_wrong_arguments_of_a_prefill_are_named(change, message):
    prefill()
    with pytest.raises(RuntimeError, match=message):
        prefill(**change)


def decode(**change):
    s = Sequences([5], [1], torch.float32)
    call = {
        "query": s.query().npu(),
        "key_cache": s.caches[0].npu(),
        "value_cache": s.caches[1].npu(),
        "num_kv_heads": GROUPS,
        "num_heads": HEADS,
        "scale_value": SCALE,
        "block_table": s.table.npu(),
        "context_lens": host(5),
        "out": s.query().npu(),
    }
    torch_npu._npu_paged_attention(**(call | change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"context_lens": host(5).npu()}, r"'context_lens' is read on the host"),
        ({"context_lens": host(5, 5)}, "2 context_lens, but query has 1 tokens and block_table 1 rows"),
        ({"block_table": host(0, 1)[None]}, "found at least two devices, cpu and npu:0!"),
    ],
)
def test_wrong_arguments_of_a_decode_are_named(change, message):
    decode()
    with pytest.raises(RuntimeError, match=message):
        decode(**change)


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        (torch.tensor([0]), r"slot_indices must be int32, but is torch\.int64; pass slot_indices\.to\(torch\.int32\)"),
        (host(12), "slot 12 lies outside the cache of 12 slots"),
    ],
)
def test_wrong_slots_are_named(slots, message):
    key = torch.ones(1, GROUPS, WIDTH).npu()
    cache = torch.zeros(3, BLOCK, GROUPS, WIDTH).npu()
    with pytest.raises(RuntimeError, match=message):
        torch_npu._npu_reshape_and_cache(key, key, cache, cache, slots.npu())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_layout": "BSH"}, "implements input_layout TND, not BSH"),
        ({"sparse_mode": 4}, "implements sparse_mode 0 and 3, not 4"),
        ({"sparse_mode": 3, "atten_mask": triangle}, "compressed atten_mask of 2048x2048"),
        ({"actual_seq_lengths": None}, "needs actual_seq_lengths and actual_seq_lengths_kv"),
        ({"actual_seq_lengths": [1]}, r"to end at the number of query tokens, 2"),
        ({"pse_shift": torch.ones(1)}, "does not implement pse_shift"),
    ],
)
def test_wrong_arguments_of_fused_infer_attention_score_are_named(change, message):
    x = torch.ones(2, GROUPS, WIDTH)
    call = {
        "query": x,
        "key": x,
        "value": x,
        "input_layout": "TND",
        "actual_seq_lengths": [2],
        "actual_seq_lengths_kv": [2],
        "num_heads": GROUPS,
    } | change
    call = {k: v(128, torch.int8) if v is triangle else v for k, v in call.items()}
    call = {k: v.npu() if isinstance(v, torch.Tensor) else v for k, v in call.items()}
    with pytest.raises((RuntimeError, NotImplementedError), match=message):
        torch_npu.npu_fused_infer_attention_score(**call)
