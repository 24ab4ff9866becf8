"""torch/shard-validation: the patched file of the installed torch against its own comparison of two shards."""

import importlib
import importlib.util
import itertools
import random

import pytest
import torch.distributed._shard.sharding_spec as sharding_spec
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharding_spec import _internals

from patches import bench, engine
from patches.places import Place, place
from patches.torch.shard_validation import PATCH

USERS = (
    "torch.distributed._shard.sharding_spec.api",
    "torch.distributed._shard.sharded_tensor.api",
    "torch.distributed._shard.sharded_tensor.utils",
)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with the patched file."""
    found = tmp_path_factory.mktemp("packages")
    path = found / "torch/distributed/_shard/sharding_spec/_internals.py"
    path.parent.mkdir(parents=True)
    path.write_bytes(place(None).module(_internals.__name__).read_bytes())
    engine.apply(engine.judge([PATCH], Place(found, found)))
    return found


@pytest.fixture(scope="module")
def patched(root):
    """The patched file as a module."""
    folder = root / "torch/distributed/_shard/sharding_spec"
    sharding_spec.__path__.append(str(folder))
    spec = importlib.util.spec_from_file_location(f"{_internals.__name__}_patched", folder / "_internals.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sharding_spec.__path__.remove(str(folder))


def shard(*sides):
    """A shard from (begin, size) of each dimension."""
    return ShardMetadata([begin for begin, _ in sides], [size for _, size in sides])


def sides(shards):
    """(begin, size) of each dimension, of each shard."""
    return [list(zip(each.shard_offsets, each.shard_sizes, strict=True)) for each in shards]


def error(module, shards):
    """The message of the validation's ValueError, None where it passes."""
    try:
        module.validate_non_overlapping_shards_metadata(shards)
    except ValueError as found:
        return str(found)
    return None


def errors(shards):
    """Messages for all pairs that torch finds to overlap in the dimensions in which not all shards are the same."""
    sharded = [dim for dim, every in enumerate(zip(*sides(shards), strict=True)) if len(set(every)) > 1]
    assume(len(sharded) > 1)
    reduced = [shard(*(each[dim] for dim in sharded)) for each in sides(shards)]
    pairs = itertools.combinations(range(len(shards)), 2)
    overlap = _internals._check_shard_metadata_pair_overlap
    return [f"Shards {shards[i]} and {shards[j]} overlap" for i, j in pairs if overlap(reduced[i], reduced[j])]


def agree(patched, shards):
    """Passes where no pair overlaps, else names one that does."""
    assert error(patched, shards) in (errors(shards) or [None])


@st.composite
def partitions(draw):
    """A tensor of 2 to 4 dimensions cut into shards, by cuts that need not go through, in any order."""
    dims = draw(st.integers(2, 4))
    shards = [shard(*((0, draw(st.integers(4, 12))) for _ in range(dims)))]
    for _ in range(draw(st.integers(2, 24))):
        place = draw(st.integers(0, len(shards) - 1))
        dim = draw(st.integers(0, dims - 1))
        whole = shards[place]
        if (size := whole.shard_sizes[dim]) < 2:
            continue
        sides = list(zip(whole.shard_offsets, whole.shard_sizes, strict=True))
        begin, cut = sides[dim][0], draw(st.integers(1, size - 1))
        halves = [(begin, cut), (begin + cut, size - cut)]
        shards[place : place + 1] = [shard(*sides[:dim], half, *sides[dim + 1 :]) for half in halves]
    return draw(st.permutations(shards))


@settings(max_examples=200, deadline=None)
@given(partitions())
def test_no_false_alarm(patched, shards):
    assert error(patched, shards) is None


@settings(max_examples=200, deadline=None)
@given(partitions(), st.data())
def test_a_planted_overlap_is_found(patched, shards, data):
    """One shard begins one earlier or ends one later than it should; outwards that overlaps nothing."""
    grown = data.draw(st.sampled_from(shards))
    dim = data.draw(st.integers(0, len(grown.shard_sizes) - 1))
    if grown.shard_offsets[dim] and data.draw(st.booleans()):
        grown.shard_offsets[dim] -= 1
    grown.shard_sizes[dim] += 1
    agree(patched, shards)


side = st.tuples(st.integers(0, 6), st.integers(0, 4))


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 4).flatmap(lambda dims: st.lists(st.tuples(*[side] * dims), min_size=2, max_size=14)))
def test_any_shards_are_judged_as_by_comparing_all(patched, given_sides):
    """Also those without length, which overlap what they are inside of."""
    agree(patched, [shard(*each) for each in given_sides])


@pytest.mark.parametrize("dims", [2, 3, 4])
def test_one_overlap_among_thousands_is_found(patched, dims):
    """At every place alike: the first, the last, and some between, of a grid and of its shards in any order."""
    rng = random.Random(dims)
    places = list(itertools.product(range(round(4000 ** (1 / dims))), repeat=dims))
    for planted in (0, len(places) - 1, *(rng.randrange(len(places)) for _ in range(8))):
        shards = [shard(*((8 * i, 8) for i in place)) for place in places]
        inside = shard(*((8 * i + 3, 2) for i in places[planted]))
        pair = f"Shards {shards[planted]} and {inside} overlap"
        rng.shuffle(shards)
        assert error(patched, shards) is None
        assert error(patched, [*shards, inside]) == pair


def test_time_grows_with_the_number_of_shards_not_with_its_square(patched):
    """Comparisons counted, not seconds: each one asks for a coordinate's rank."""
    counts = [_places_read(patched, (layers, 32, 8)) for layers in (4, 16)]
    assert counts[1] / counts[0] < 6, counts  # 4 times as many shards: 4 log 4; all pairs: 16


@pytest.fixture(scope="module")
def source_271():
    """The file with the check as torch 2.7.1 has it."""
    return bench.source_271() or pytest.skip("torch 2.7.1 is not to be had from the package index")


@pytest.mark.network
def test_torch_271_compares_all_pairs_and_ours_does_not(patched, source_271):
    """Both in one run, 640 to 2,560 shards of experts: four times as many. Growth of processor time, not seconds."""
    modules = bench.module_of(source_271), patched
    theirs, ours = (bench.check_times(module, bench.DOUBLED, 3) for module in modules)
    print(f"torch 2.7.1: {theirs}, ours: {ours}")
    assert theirs[-1] / theirs[0] > 10, "all pairs: 16"
    assert ours[-1] / ours[0] < 8 and theirs[-1] / ours[-1] > 8


@pytest.mark.network
def test_torch_271_patched_judges_as_unpatched(patched, source_271, tmp_path):
    path = tmp_path / "torch/distributed/_shard/sharding_spec/_internals.py"
    path.parent.mkdir(parents=True)
    path.write_text(source_271)
    judged = engine.judge([PATCH], Place(tmp_path, tmp_path))
    assert judged.verdicts[0].state == "pending"
    engine.apply(judged)
    before, after = bench.module_of(source_271), bench.module_of(path.read_text())
    rng = random.Random(271)
    found = []
    for _ in range(300):
        shards = [shard(*((rng.randrange(12), rng.randint(1, 4)) for _ in range(2))) for _ in range(rng.randint(2, 8))]
        messages = [error(module, shards) for module in (before, after)]
        assert (messages[0] is None) == (messages[1] is None)
        found.append(messages[0])
    assert None in found and len(set(found)) > 50


def _places_read(patched, grid):
    """How often `find` reads where a shard begins or ends, on the shards of experts [layers, experts, parts]."""
    reads = 0

    class Counted(list):
        def __getitem__(self, place):
            nonlocal reads
            reads += 1
            return super().__getitem__(place)

    overlap = patched.rl_shard_overlap
    side = overlap._side
    places = itertools.product(*map(range, grid))
    shards = [shard((a, 1), (b, 1), (c * 384, 384), (0, 4096)) for a, b, c in places]
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(overlap, "_side", lambda *a: (Counted((s := side(*a))[0]), Counted(s[1]), s[2]))
        assert error(patched, shards) is None
    return reads


def test_reached_by_every_name(patched, monkeypatch):
    """Modules of torch that import the validation by name run what the patch puts in."""
    monkeypatch.setattr(_internals, "_find_nd_overlapping_shards", patched._find_nd_overlapping_shards)
    calls = []
    found = patched.rl_shard_overlap.find
    monkeypatch.setattr(patched.rl_shard_overlap, "find", lambda *a: calls.append(a) or found(*a))
    shards = [shard((i, 1 + i), (j, 1)) for i in range(2) for j in range(2)]
    for number, name in enumerate(USERS):
        importlib.import_module(name).validate_non_overlapping_shards_metadata(shards)
        assert len(calls) == number + 1
    shards[0].shard_sizes[0] = 2
    for each in shards:
        each.placement = "rank:0/cpu"
    with pytest.raises(ValueError, match="overlap"):
        sharding_spec.EnumerableShardingSpec(shards)


def test_all_who_import_it_are_known():
    folder = place(None).folder("torch") / "torch"
    found = {
        ".".join(path.relative_to(folder.parent).with_suffix("").parts)
        for path in (folder / "distributed").rglob("*.py")
        if "validate_non_overlapping_shards_metadata" in path.read_text()
    }
    assert found == {*USERS, _internals.__name__}


def test_patched_once(root):
    judged = engine.judge([PATCH], Place(root, root))
    assert judged.verdicts[0].state == "applied" and not judged.changes


def test_another_body_is_not_replaced(tmp_path):
    path = tmp_path / "torch/distributed/_shard/sharding_spec/_internals.py"
    path.parent.mkdir(parents=True)
    text = place(None).module(_internals.__name__).read_text()
    path.write_text(text.replace("cutoff = bisect_right", "cutoff = 1 + bisect_right"))
    verdict = engine.judge([PATCH], Place(tmp_path, tmp_path)).verdicts[0]
    assert verdict.state == "drifted" and "_find_nd_overlapping_shards" in verdict.reason
