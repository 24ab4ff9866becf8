"""F15: the commercial matrix logs the first data-parallel rank's metrics only: DataProto.concat keeps no other's."""

STACKS = ("installed", "performance", "commercial")


def logged(patched):
    """What the trainer logs of two ranks' pg_loss, 1 and 3: verl's own concat and reduce_metrics."""
    from verl import DataProto
    from verl.utils.metric import reduce_metrics

    concat = DataProto.concat

    def concat_all(data):
        """Stands for the coming patch: every rank's metrics, one list a name."""
        joined = concat(data)
        metrics = [one.meta_info["metrics"] for one in data]
        joined.meta_info["metrics"] = {name: [one[name] for one in metrics] for name in metrics[0]}
        return joined

    if patched:
        DataProto.concat = staticmethod(concat_all)
    ranks = [DataProto(meta_info={"metrics": {"actor/pg_loss": [loss]}}) for loss in (1.0, 3.0)]
    return float(reduce_metrics(DataProto.concat(ranks).meta_info["metrics"])["actor/pg_loss"])


def test_the_commercial_matrix_logs_the_first_rank_others_the_mean(on, stack):
    assert on(logged, False) == (1 if stack == "commercial" else 2)


def test_patched_it_is_the_mean(on):
    assert on(logged, True) == 2
