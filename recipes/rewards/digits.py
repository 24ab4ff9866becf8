"""The toy reward: the share of ASCII digits in the answer, in [0, 1]."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """verl's signature; `solution_str` is the decoded answer. Dense, so that the samples of one prompt differ."""
    return sum(character in "0123456789" for character in solution_str) / max(len(solution_str), 1)
