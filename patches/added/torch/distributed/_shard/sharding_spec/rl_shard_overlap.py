"""Shards that overlap, found without comparing all pairs."""

Side = tuple[list[int], list[int], int]  # where each shard begins and ends in one dimension, where the last one ends
Groups = dict[int, list[int]]  # bits -> shards that have them, by where they begin in the last dimension


def find(shards: list, sharded_dims: list[int]) -> tuple[int, int] | None:
    """Two of the ShardMetadata that overlap in all of sharded_dims, the lower index first; None if there are none.

    n shards in d dimensions take O(n log^(d-1) n), however they lie; a grid O(n log n).
    """
    *dims, last = sorted((_side(shards, dim) for dim in sharded_dims), key=lambda side: side[2])
    return _search({0: sorted(range(len(shards)), key=last[0].__getitem__)}, dims, last, 0)


def _side(shards: list, dim: int) -> Side:
    """The dimension with ranks for coordinates.

    A side without length overlaps those that begin before and end behind it, and no other one without length: each gets
    a place of its own, between the ends of those before it and the begins of those behind.
    """
    width = len(shards) + 1
    begins, ends = [], []
    for i, shard in enumerate(shards):
        begin, size = shard.shard_offsets[dim] * width, shard.shard_sizes[dim]
        begins.append(begin + (width - 1 if size else i))
        ends.append(begin + (size * width if size else i + 1))
    rank = {place: i for i, place in enumerate(sorted({*begins, *ends}))}
    return [rank[place] for place in begins], [rank[place] for place in ends], len(rank) - 1


def _search(groups: Groups, dims: list[Side], last: Side, full: int) -> tuple[int, int] | None:
    """Halves the first dimension until each shard covers the parts that it touches.

    Two shards are compared in the largest part that one of them covers and the other touches, by the dimensions that
    are left. So each dimension gives a shard a bit, whether it covers the part; `full` are all bits given so far, and
    a pair counts only if each of them is set in one of the two.
    """
    if not dims:
        return _sweep(groups, last, full)
    (begins, ends, furthest), *rest = dims
    parts = [(groups, 0, furthest)]
    while parts:
        groups, low, high = parts.pop()
        if not any(a | b == full for a in groups for b in groups):
            continue
        covering = {b: [i for i in g if begins[i] <= low and ends[i] >= high] for b, g in groups.items()}
        if any(covering.values()):
            groups = {b: [i for i in g if begins[i] > low or ends[i] < high] for b, g in groups.items()}
            marked = {2 * b + 1: g for b, g in covering.items() if g} | {2 * b: g for b, g in groups.items() if g}
            if found := _search(marked, rest, last, 2 * full + 1):
                return found
        middle = (low + high) // 2
        lower = {b: some for b, g in groups.items() if (some := [i for i in g if begins[i] < middle])}
        upper = {b: some for b, g in groups.items() if (some := [i for i in g if ends[i] > middle])}
        parts += (lower, low, middle), (upper, middle, high)
    return None


def _sweep(groups: Groups, last: Side, full: int) -> tuple[int, int] | None:
    """In the last dimension two shards overlap if the one that begins first ends behind the other's begin."""
    begins, ends, _ = last
    bits = {i: b for b, g in groups.items() for i in g}
    longest = {}  # bits -> the shard with them that ends last so far
    for i in sorted(bits, key=begins.__getitem__):
        mine = bits[i]
        for others, j in longest.items():
            if ends[j] > begins[i] and mine | others == full:
                return min(i, j), max(i, j)
        if mine not in longest or ends[i] > ends[longest[mine]]:
            longest[mine] = i
    return None
