"""Token budgets and lengths against the sequences they are for."""

from collections.abc import Iterator

from recipes.lint.facts import ACTOR, REF, ROLLOUT, Facts
from recipes.lint.rule import Fault

# What is budgeted: the switch that turns budgets on, the budget, where its cp stands.
BUDGETS = (
    (f"{ACTOR}.use_dynamic_bsz", f"{ACTOR}.ppo_max_token_len_per_gpu", ACTOR),
    (f"{ROLLOUT}.log_prob_use_dynamic_bsz", f"{ROLLOUT}.log_prob_max_token_len_per_gpu", ACTOR),
    (f"{REF}.log_prob_use_dynamic_bsz", f"{REF}.log_prob_max_token_len_per_gpu", REF),
)


def budgets(facts: Facts) -> Iterator[Fault]:
    """A token budget × cp holds a padded sequence, prompt + response.

    verl 21271aa, utils/seqlen_balancing.py:285 (796871d: 277); the budget times cp: workers/actor/megatron_actor.py:191
    and 649 (796871d: 188, 619). The reference model's cp is its own key, 1 unless set.
    """
    width = facts.width
    for switch, key, role in BUDGETS:
        budget, cp = facts.size(key), facts.size(f"{role}.megatron.context_parallel_size")
        if role == REF and (not facts.has_reference or cp is None):
            continue
        if width and budget and cp and facts.is_on(switch) and budget * cp < width:
            yield Fault(
                key,
                f"{key} {budget} × cp {cp} = {budget * cp}: expected at least prompt + response = {width}",
                f"raise it to {-(-width // cp)} or more, or cp of {role}.megatron",
            )


def positions(facts: Facts) -> Iterator[Fault]:
    """The model's context holds prompt + response, and max_model_len.

    verl 21271aa, workers/rollout/vllm_rollout/vllm_rollout_spmd.py:141; 796871d: 121; vLLM 0.11.0,
    config/model.py:1893. RoPE scaling is not looked at.
    """
    key = f"{ROLLOUT}.max_model_len"
    width, length, model = facts.width, facts.size(key), facts.model
    context = f"max_position_embeddings {model.positions} of {model.name}" if model else ""
    if width and model and model.positions and model.positions < width:
        yield Fault(
            "data.max_response_length",
            f"prompt + response = {width}: expected at most {context}",
            "shorten one of them, or extend the model's context (rope_scaling in its config.json)",
        )
    elif length and model and model.positions and model.positions < length:
        yield Fault(key, f"{key}: expected at most {context}, found {length}", "set it to null")


def chunked_prefill(facts: Facts) -> Iterator[Fault]:
    """With chunked prefill max_num_batched_tokens is at least the model length.

    verl 21271aa, workers/rollout/vllm_rollout/vllm_rollout_spmd.py:161; 796871d: 142; the plugin: 105.
    """
    key = f"{ROLLOUT}.max_num_batched_tokens"
    tokens, length = facts.size(key), model_length(facts)
    if facts.is_on(f"{ROLLOUT}.enable_chunked_prefill") and tokens and length and tokens < length:
        yield Fault(
            key,
            f"{key}: expected at least the model length {length} with enable_chunked_prefill, found {tokens}",
            f"raise it to {length}, or set {ROLLOUT}.enable_chunked_prefill to false",
        )


def cut_answers(facts: Facts) -> Iterator[Fault]:
    """A model length below prompt + response cuts the longest answers (vLLM stops at max_model_len)."""
    key = f"{ROLLOUT}.max_model_len"
    given, width = facts.size(key), facts.width
    if given and width and given < width:
        yield Fault(key, f"{key}: expected at least prompt + response = {width}, found {given}", "set it to null")


def model_length(facts: Facts) -> int | None:
    """max_model_len as verl works it out: the key, else prompt + response."""
    return facts.size(f"{ROLLOUT}.max_model_len") or facts.width
