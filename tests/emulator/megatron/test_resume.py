"""The distributed optimizer's checkpoints: a resumed run repeats the unbroken one; other layouts read the same."""

import pytest

pytestmark = pytest.mark.slow


def test_a_resumed_step_is_bit_identical(resumed):
    for rank in resumed:
        assert rank["weights_moved"]
        assert rank["resume_is_identical"]
        assert set(rank["steps"]) == {2}
        assert rank["norm_after_resume"] == rank["norms"][1] != rank["norms"][0]


def test_weights_and_optimizer_survive_another_layout(resumed):
    assert all(rank["layouts_agree"] for rank in resumed)


def test_offloading_to_the_host_and_back_changes_nothing(resumed):
    assert all(rank["offload_is_identical"] and rank["offload_freed"] > 0 for rank in resumed)


def test_random_states_of_the_tracker(resumed):
    """Tensor-parallel ranks draw different numbers, as do expert ranks; data-parallel replicas the same."""
    for rank in resumed:
        assert rank["repeatable"] and rank["others_untouched"]
    for one in resumed:
        for other in resumed:
            same_tensor, same_expert = (one["place"][i] == other["place"][i] for i in range(2))
            assert (one["draws"]["tensor"] == other["draws"]["tensor"]) == same_tensor
            assert (one["draws"]["expert"] == other["draws"]["expert"]) == same_expert
            assert one["draws"]["data"] == other["draws"]["data"]
