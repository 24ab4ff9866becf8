"""F3: after a prefix-cache hit attention ignores the cached prefix, if the step before had the length that is new now.

vllm-ascend 15b2e5c reads the lengths before it writes them (worker/model_runner_v1.py:1218, 1300); 0.11.0rc1 does not.
"""

import pytest

STACKS = ("performance",)


def hit_and_miss(cure, folder):
    """Log-probs of a prompt's next token, after a prefix-cache hit and with an empty cache; or what the kernel says."""
    import tiny
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt
    from vllm_ascend.worker.model_runner_v1 import NPUModelRunner

    if cure == "patch vllm-ascend/attention-state":
        choose = NPUModelRunner._build_attn_state

        def with_this_steps_lengths(runner, requests, scheduled, valid):
            """Stands for the patch: this step's lengths stand there when the state is chosen."""
            runner.seq_lens_np[:requests] = runner.input_batch.num_computed_tokens_cpu[:requests] + scheduled
            return choose(runner, requests, scheduled, valid)

        NPUModelRunner._build_attn_state = with_this_steps_lengths
    llm = tiny.engine(folder, enable_prefix_caching=cure != "prefix caching off")

    def next_token(prompt):
        sampling = SamplingParams(temperature=0, max_tokens=1, logprobs=1, detokenize=False)
        (request,) = llm.generate([TokensPrompt(prompt_token_ids=prompt)], sampling, use_tqdm=False)
        (choices,) = request.outputs[0].logprobs
        return {token: choice.logprob for token, choice in choices.items()}

    prefix = [3 * i % 320 for i in range(128)]  # one block
    ends = [[7 * i % 320 for i in range(start, start + 10)] for start in (0, 20, 40)]
    next_token(prefix + ends[0])
    next_token(ends[1])
    try:
        hit = next_token(prefix + ends[2])
    except RuntimeError as error:
        return str(error)
    llm.reset_prefix_cache()
    next_token(ends[1][:7])
    miss = next_token(prefix + ends[2])
    token = max(miss, key=miss.get)
    return [hit.get(token, -100.0), miss[token]]


def test_the_kernel_without_a_cache_is_asked(on, tmp_path):
    """The emulated kernel refuses lengths that do not fit; one that takes them answers without the prefix."""
    assert on(hit_and_miss, None, tmp_path) == "_npu_flash_attention: seq_len adds up to 138 tokens, but query has 10"


@pytest.mark.parametrize("cure", ["prefix caching off", "patch vllm-ascend/attention-state"])
def test_with_a_cure_the_hit_changes_nothing(on, tmp_path, cure):
    hit, miss = on(hit_and_miss, cure, tmp_path)
    assert abs(hit - miss) < 1e-4
