"""Metrics that ranks return, put together as the trainer reduces them: a list of values per name."""


def merged(infos: list[dict]) -> dict:
    """The first rank's meta_info with the metrics of all; a metric is a number or a list of numbers."""
    if not all(isinstance(info.get("metrics"), dict) for info in infos):
        return infos[0]
    names = dict.fromkeys(name for info in infos for name in info["metrics"])
    found = {name: [info["metrics"][name] for info in infos if name in info["metrics"]] for name in names}
    return {
        **infos[0],
        "metrics": {name: [v for value in values for v in _list(value)] for name, values in found.items()},
    }


def _list(value) -> list:
    return value if isinstance(value, list) else [value]
