"""Shards of a checkpoint, checked without comparing all pairs."""

from patches.patch import Added, Edits, Patch
from patches.shapes import body, imports

PATCH = Patch(
    id="torch/shard-validation",
    problem="S6",
    matrices=("performance", "commercial"),
    why="loading weights compares all pairs of a tensor's shards, on each rank, for each tensor, actor and reference: "
    "with 96,000 shards, the experts of 94 layers at ETP 4, a quarter of an hour each time",
    upstream="torch 2.13 sweeps along one dimension, for experts a bad one: 200 s; MindSpeed 60b09d7b checks nothing",
    targets=(
        Edits(
            "torch.distributed._shard.sharding_spec._internals",
            imports("from torch.distributed._shard.sharding_spec import rl_shard_overlap"),
            body(
                "_find_nd_overlapping_shards",
                "return rl_shard_overlap.find(shards, sharded_dims)",
                "01506e15897b86ca",  # 2.7.1
                "4ee92737c7f4a159",  # 2.13.0
            ),
        ),
        Added("torch.distributed._shard.sharding_spec.rl_shard_overlap"),
    ),
)
