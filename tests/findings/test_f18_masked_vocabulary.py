"""F18: asynchronous rollouts mask the ids that the tokenizer has not, synchronous ones do not: log-probs differ.

verl's async worker sets logits from len(tokenizer) on to -inf (vllm_rollout_spmd.py, _monkey_patch_compute_logits).
"""

import math

import pytest

STACKS = ("installed", "performance")
VOCABULARY = 320


def offset(words):
    """By how much an id's log-prob is higher in an asynchronous rollout, with so many words in the tokenizer.

    verl's own mask over logits, and vLLM's own log-probs of them.
    """
    import torch
    from verl.workers.rollout.vllm_rollout import vllm_rollout_spmd
    from vllm.v1.sample.sampler import Sampler

    class Model:
        def compute_logits(self, hidden):
            return torch.zeros(len(hidden), 320, device="npu")

    model, sampler = Model(), Sampler()
    synchronous = sampler.compute_logprobs(model.compute_logits([None]))
    vllm_rollout_spmd._monkey_patch_compute_logits(model, words)
    asynchronous = sampler.compute_logprobs(model.compute_logits([None]))
    return (asynchronous - synchronous)[0, 0].item()


def test_the_two_modes_differ(on):
    assert on(offset, 259) == pytest.approx(math.log(VOCABULARY / 259), abs=1e-6)


def test_not_with_as_many_words_as_ids(on):
    assert on(offset, VOCABULARY) == 0
