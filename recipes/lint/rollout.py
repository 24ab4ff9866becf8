"""What vllm-ascend makes of the rollout's configuration: refusals, silent changes, capture sizes.

15b2e5c unless said; read there, and seen on CPU with its own NPUPlatform.check_and_update_config.
"""

from collections.abc import Iterator

from recipes.lint.facts import ENGINE, ROLLOUT, SIZES, Facts
from recipes.lint.rule import COMMERCIAL, Fault

COMPILATION = f"{ENGINE}.compilation_config"
ADDITIONAL = f"{ENGINE}.additional_config"
SCHEDULER = f"{ADDITIONAL}.ascend_scheduler_config"
TORCHAIR = f"{ADDITIONAL}.torchair_graph_config"

STREAMS = 1800  # for graphs, of 2048 (utils.py:310)
STREAMS_OLDER = 1920  # at 1de16ea (utils.py:47)
PLUGIN_SIZES = [8, 16, 32, 64, 128, 192, 256, 384]  # MindSpeed-RL v2.2.0, vllm_rollout_spmd.py:170

# additional_config: what ascend_config.py and utils.py read.
ADDITIONAL_KEYS = (
    "torchair_graph_config", "ascend_scheduler_config", "weight_prefetch_config", "expert_map_path", "eplb_policy_type",
    "expert_map_record_path", "init_redundancy_expert", "dynamic_eplb", "num_iterations_eplb_update", "gate_eplb",
    "num_wait_worker_iterations", "chunked_prefill_for_mla", "enable_shared_expert_dp",
    "multistream_overlap_shared_expert", "lmhead_tensor_parallel_size", "oproj_tensor_parallel_size", "refresh",
    "kv_cache_dtype",
)  # fmt: skip
# ascend_scheduler_config: `enabled` and the fields of AscendSchedulerConfig and of vLLM's SchedulerConfig.
SCHEDULER_KEYS = (
    "enabled", "enable_chunked_prefill", "max_long_partial_prefills", "long_prefill_token_threshold", "policy",
    "scheduler_cls", "enable_pd_transfer", "decode_max_num_seqs", "runner_type", "max_num_batched_tokens",
    "max_num_seqs", "max_model_len", "max_num_partial_prefills", "num_lookahead_slots", "cuda_graph_sizes",
    "is_multimodal_model", "max_num_encoder_input_tokens", "encoder_cache_size", "preemption_mode",
    "num_scheduler_steps", "send_delta_data", "chunked_prefill_enabled", "disable_chunked_mm_input",
    "disable_hybrid_kv_cache_manager", "async_scheduling", "delay_factor", "scheduler_delay_factor",
)  # fmt: skip
# Keys of torchair_graph_config that are refused unless it is enabled (ascend_config.py:161-188).
TORCHAIR_ONLY = (
    "mode", "use_cached_graph", "use_cached_kv_cache_bytes", "graph_batch_sizes", "graph_batch_sizes_init",
    "enable_multistream_mla", "enable_kv_nz",
)  # fmt: skip


def stream_budget(facts: Facts) -> int | None:
    """How many sizes can be captured (R1, R2, R5: utils.py:302-381; 1de16ea: utils.py:313-340)."""
    model, tp = facts.model, facts.size("rollout_tp")
    if model is None or tp is None:
        return None
    per_graph = model.layers + 1
    dp, ep = facts.engine_dp > 1, facts.engine_ep > 1
    groups = dp + (tp > 1)
    if facts.matrix == COMMERCIAL:  # counts the data parallelism of this process, which the plugin leaves at 1
        return STREAMS_OLDER // per_graph // (1 + (tp > 1))
    if facts.env.get("HCCL_OP_EXPANSION_MODE") != "AIV":
        return int((STREAMS - 40 * groups) / per_graph / (1 + 2 * groups))
    shared = facts.get(f"{ADDITIONAL}.multistream_overlap_shared_expert") is True
    factor = 1 + groups + ep + shared + (dp if model.experts else 0)
    streams = STREAMS if model.experts else STREAMS - factor * per_graph
    return int(streams / per_graph / factor)


def thinned(sizes: list[int], budget: int) -> list[int]:
    """The sizes that are left of a list that is too long, as utils.py:384-392 picks them; largest first as vLLM's."""
    sizes = sorted(sizes, reverse=True)
    step = (len(sizes) - 1) / (budget - 1)
    places = [round(place * step) for place in range(budget)]
    places[0], places[-1] = 0, len(sizes) - 1
    return [sizes[place] for place in places]


def capture_sizes(facts: Facts) -> Iterator[Fault]:
    """No more capture sizes than there are streams for: a longer list is thinned out silently (R1 to R3)."""
    sizes, budget = _sizes(facts), stream_budget(facts)
    if sizes is None or budget is None or not facts.graphs or mode(facts) == "FULL_DECODE_ONLY":
        return
    if budget > 1 and len(sizes) > budget:
        yield Fault(
            f"{COMPILATION}.cudagraph_capture_sizes",
            f"capture sizes: expected at most {budget} for {facts.model.layers} layers, tp {facts.size('rollout_tp')}, "
            f"dp {facts.engine_dp}, found {len(sizes)}; {thinned(sizes, budget)} would be captured",
            f"list {budget} sizes, or set HCCL_OP_EXPANSION_MODE=AIV",
        )


def no_budget(facts: Facts) -> Iterator[Fault]:
    """A budget of one or none ends in ZeroDivisionError or IndexError (R4: utils.py:386, 390)."""
    sizes, budget = _sizes(facts), stream_budget(facts)
    if facts.graphs and budget is not None and budget < 2 and sizes and len(sizes) > budget:
        yield Fault(
            f"{ROLLOUT}.enforce_eager",
            f"capture sizes: expected streams for at least 2, found {budget} for {facts.model.layers} layers",
            f"set {ROLLOUT}.enforce_eager to true",
        )


def sizes_are_numbers(facts: Facts) -> Iterator[Fault]:
    """Capture sizes are whole numbers of at least 1, each once."""
    key = f"{COMPILATION}.cudagraph_capture_sizes"
    given = facts.get(key)
    if given is None:
        return
    whole = isinstance(given, list) and all(isinstance(one, int) and one is not True and one >= 1 for one in given)
    if not whole or len(set(given)) != len(given) or not given:
        yield Fault(key, f"{key}: expected a list of different whole numbers, found {given!r}", "write [1,2,4,8]")


def sizes_reach(facts: Facts) -> Iterator[Fault]:
    """The largest captured size holds max_num_seqs: larger batches are computed eagerly."""
    sizes, most = _sizes(facts), facts.size(f"{ROLLOUT}.max_num_seqs")
    if facts.graphs and sizes and most and max(sizes) < most:
        yield Fault(
            f"{COMPILATION}.cudagraph_capture_sizes",
            f"largest capture size {max(sizes)}: expected at least {ROLLOUT}.max_num_seqs {most}; larger batches run "
            "eagerly",
            f"end the list with {most}, or lower max_num_seqs",
        )


def full_decode_only(facts: Facts) -> Iterator[Fault]:
    """FULL_DECODE_ONLY is experimental, and its sizes are not trimmed to the streams (R6: platform.py:230-247)."""
    if facts.graphs and mode(facts) == "FULL_DECODE_ONLY":
        yield Fault(
            f"{COMPILATION}.cudagraph_mode",
            f"FULL_DECODE_ONLY: experimental, not trimmed to the {stream_budget(facts)} sizes there are streams for",
            "use PIECEWISE, or list few sizes",
        )


def graph_mode(facts: Facts) -> Iterator[Fault]:
    """A graph mode or level that the NPU has not: eager without an error (R7, R8: platform.py:182-188, 248-253)."""
    level, key = facts.get(f"{COMPILATION}.level"), f"{COMPILATION}.cudagraph_mode"
    if not facts.graphs:
        return
    if mode(facts) not in (None, "PIECEWISE", "FULL_AND_PIECEWISE", "FULL_DECODE_ONLY"):
        yield Fault(key, f"{key}: expected PIECEWISE, found {facts.shown(key)}, with which it runs eagerly", "use it")
    elif level in (1, 2):
        key = f"{COMPILATION}.level"
        yield Fault(key, f"{key}: expected 3, found {level}, with which it runs eagerly", "remove it")
    elif level == 0 and mode(facts) is not None:
        key = f"{COMPILATION}.level"
        yield Fault(key, f"{key}: expected 3 with {mode(facts)}, found 0: AssertionError", "remove it")


def torchair(facts: Facts) -> Iterator[Fault]:
    """torchair's own rules (R9: ascend_config.py:155-192, 258-267)."""
    given = facts.below(TORCHAIR)
    enabled = given.get("enabled") is True
    if enabled and facts.get(f"{ROLLOUT}.enforce_eager") is True:
        yield Fault(TORCHAIR, "torchair: expected off with enforce_eager, found on: RuntimeError", "switch one off")
    if not isinstance(given.get("graph_batch_sizes", []), list):
        yield Fault(TORCHAIR, f"graph_batch_sizes: expected a list, found {given['graph_batch_sizes']!r}", "write one")
    elif not enabled and (used := [name for name in TORCHAIR_ONLY if given.get(name)]):
        yield Fault(TORCHAIR, f"{', '.join(used)}: expected enabled: true beside it, found it off", "remove it")
    elif given.get("use_cached_kv_cache_bytes") and not given.get("use_cached_graph"):
        yield Fault(TORCHAIR, "use_cached_kv_cache_bytes: expected use_cached_graph beside it", "set both or none")


def shared_experts(facts: Facts) -> Iterator[Fault]:
    """enable_shared_expert_dp counts with expert parallelism only (R10: ascend_config.py:70-72)."""
    key = f"{ADDITIONAL}.enable_shared_expert_dp"
    if facts.is_on(key) and facts.engine_ep == 1:
        yield Fault(key, f"{key}: expected expert parallelism beside it, found none: ignored", "remove it")


def block_size(facts: Facts) -> Iterator[Fault]:
    """Prefix caching needs blocks of 128: another size becomes 128 (R11: platform.py:267-271)."""
    key = f"{ENGINE}.block_size"
    if facts.is_on(f"{ROLLOUT}.enable_prefix_caching") and facts.size(key) not in (None, 128):
        yield Fault(
            key, f"{key}: expected 128 with prefix caching, found {facts.shown(key)}, which becomes 128", "remove it"
        )


def other_scheduler(facts: Facts) -> Iterator[Fault]:
    """What silently brings back vLLM's own scheduler with chunked prefill (R13: platform.py:136-148)."""
    causes = {
        f"{ENGINE}.async_scheduling": facts.is_on(f"{ENGINE}.async_scheduling"),
        f"{ENGINE}.scheduling_policy": facts.get(f"{ENGINE}.scheduling_policy") not in (None, "fcfs"),
        f"{ENGINE}.guided_decoding_backend": facts.get(f"{ENGINE}.guided_decoding_backend") not in (None, "auto"),
        f"{ENGINE}.structured_outputs_config.backend": facts.get(f"{ENGINE}.structured_outputs_config.backend")
        not in (None, "auto"),
    }
    for key, given in causes.items():
        if given and not facts.is_on(f"{SCHEDULER}.enabled"):
            yield Fault(
                key,
                f"{key}: {facts.shown(key)} switches the Ascend scheduler off and chunked prefill on, without a word",
                f"remove it, or set {SCHEDULER}.enabled",
            )


def scheduler_config(facts: Facts) -> Iterator[Fault]:
    """Values that AscendSchedulerConfig refuses (R14: core/schedule_config.py:89-108)."""
    given = facts.below(SCHEDULER)
    policy, partial = given.get("policy", "fcfs"), given.get("max_long_partial_prefills")
    if policy != "fcfs":
        yield Fault(f"{SCHEDULER}.policy", f"policy: expected fcfs, found {policy!r}", "remove it")
    if isinstance(partial, int) and partial < 0:
        yield Fault(
            f"{SCHEDULER}.max_long_partial_prefills",
            f"max_long_partial_prefills: expected 0 or more, found {partial}",
            "remove it",
        )
    if given.get("send_delta_data") is True:
        yield Fault(f"{SCHEDULER}.send_delta_data", "send_delta_data: expected false, found true", "remove it")


def unknown_additional(facts: Facts) -> Iterator[Fault]:
    """Keys of additional_config that nobody reads: typos pass silently (R15)."""
    for node, known in ((ADDITIONAL, ADDITIONAL_KEYS), (SCHEDULER, SCHEDULER_KEYS)):
        for name in map(str, facts.below(node)):
            if name not in known:
                yield Fault(
                    f"{node}.{name}", f"{node}.{name}: expected a key that vllm-ascend reads, found none of that name",
                    f"the keys are: {', '.join(known[:6])}, …",
                )  # fmt: skip


def split_heads(facts: Facts) -> Iterator[Fault]:
    """lmhead and oproj tensor parallelism are for pure data parallelism (R16: ascend_config.py:77-102)."""
    for name in ("lmhead_tensor_parallel_size", "oproj_tensor_parallel_size"):
        key, tp = f"{ADDITIONAL}.{name}", facts.size("rollout_tp")
        if facts.get(key) is not None and tp and tp > 1:
            yield Fault(key, f"{key}: expected none at tp {tp}, found {facts.shown(key)}: AssertionError", "remove it")
        elif facts.get(key) is not None and name.startswith("oproj"):
            yield Fault(key, f"{key}: expected none outside of prefill-decode disaggregation, found one", "remove it")


def quantization(facts: Facts) -> Iterator[Fault]:
    """No quantization but Ascend's, which needs a file of its own (R17: platform.py:56)."""
    key = f"{ENGINE}.quantization"
    if facts.get(key) not in (None, "ascend"):
        yield Fault(key, f"{key}: expected none or ascend, found {facts.shown(key)}", "remove it")


def dense_experts(facts: Facts) -> Iterator[Fault]:
    """Expert parallelism on a dense model is refused by vLLM (R18)."""
    if facts.engine_ep > 1 and facts.model and not facts.model.experts:
        yield Fault(
            f"{ENGINE}.enable_expert_parallel",
            f"expert parallelism: expected off, as {facts.model.name} has no experts, found on",
            "switch it off",
        )


def data_type(facts: Facts) -> Iterator[Fault]:
    """bfloat16 or float16: float32 passes here and fails at the splitfuse mask later (R18)."""
    key = f"{ROLLOUT}.dtype"
    if facts.get(key) not in ("bfloat16", "float16", "half", "auto"):
        yield Fault(key, f"{key}: expected bfloat16 or float16, found {facts.shown(key)}", "set it to bfloat16")


def duplicate_generation(facts: Facts) -> Iterator[Fault]:
    """Synchronous rollouts have no data parallelism: data_parallel_size > 1 generates everything as many times.

    verl 21271aa, workers/megatron_workers.py:399: it only enlarges the mesh, the engine is started with tp alone
    (vllm_rollout_spmd.py:192-214).
    """
    if facts.mode == "sync" and facts.engine_dp > 1:
        yield Fault(
            f"{ROLLOUT}.data_parallel_size",
            f"{ROLLOUT}.data_parallel_size: expected 1 in sync mode, found {facts.engine_dp}: every answer would be "
            f"generated {facts.engine_dp} times",
            f"set it to 1; {SIZES['rollout_tp']} with enable_expert_parallel spreads the experts",
        )


def asynchronous(facts: Facts) -> Iterator[Fault]:
    """rollout.mode=async dies at the first step: vLLM 0.11.0 passes non_block to an executor that does not know it.

    verl 21271aa, workers/rollout/vllm_rollout/vllm_async_server.py; seen on CPU: TypeError, then EngineDeadError (F9).
    """
    key = f"{ROLLOUT}.mode"
    if facts.mode == "async":
        yield Fault(
            key,
            f"{key}: expected sync with vLLM 0.11.0, found async: its executor does not know non_block",
            "set it to sync, or apply the patch verl/async-non-block",
        )
    elif facts.mode != "sync":
        yield Fault(key, f"{key}: expected sync or async, found {facts.mode!r}", "set it to sync")


def explicit_scheduler(facts: Facts) -> Iterator[Fault]:
    """The Ascend scheduler is switched on explicitly: forced, it is on in the driver and off in spawned workers (F8).

    platform.py:148 sets the driver's global only. Synchronous rollouts run in one process and are not hit.
    """
    key = f"{SCHEDULER}.enabled"
    if facts.get(key) is not True:
        yield Fault(key, f"{key}: expected true, found {facts.shown(key)}: workers and driver may disagree", "set it")


def plugin_collision(facts: Facts) -> Iterator[Fault]:
    """With MindSpeed-RL's plugin some engine arguments are passed already: given again they are a TypeError.

    v2.2.0, rl-plugin/verl_npu/workers/rollout/vllm_rollout/vllm_rollout_spmd.py:151-174.
    """
    passed = ("enable_expert_parallel", "max_num_seqs", "compilation_config", "enable_prefix_caching", "enforce_eager")
    for name in (*passed, "max_model_len", "gpu_memory_utilization", "max_num_batched_tokens", "dtype", "seed"):
        key = f"{ENGINE}.{name}"
        if facts.get(key) is not None:
            yield Fault(key, f"{key}: expected under {ROLLOUT}, found as an engine argument, given twice", "move it")


def passed_twice(facts: Facts) -> Iterator[Fault]:
    """The same for verl 21271aa's own call (workers/rollout/vllm_rollout/vllm_rollout_spmd.py:192-214)."""
    for name in (
        "enforce_eager", "max_num_seqs", "enable_prefix_caching", "enable_chunked_prefill", "max_model_len",
        "gpu_memory_utilization", "max_num_batched_tokens", "dtype", "seed", "tensor_parallel_size", "load_format",
        "enable_sleep_mode", "distributed_executor_backend", "disable_custom_all_reduce",
    ):  # fmt: skip
        key = f"{ENGINE}.{name}"
        if facts.get(key) is not None and facts.mode == "sync":
            yield Fault(key, f"{key}: expected under {ROLLOUT}, found as an engine argument, given twice", "move it")


def mode(facts: Facts) -> str | None:
    """The graph mode that is asked for by name."""
    given = facts.get(f"{COMPILATION}.cudagraph_mode")
    return given.upper() if isinstance(given, str) else None


def _sizes(facts: Facts) -> list[int] | None:
    """The sizes that are listed, or the plugin's."""
    if facts.matrix == COMMERCIAL:
        return PLUGIN_SIZES
    given = facts.get(f"{COMPILATION}.cudagraph_capture_sizes")
    whole = isinstance(given, list) and given and all(isinstance(one, int) and one is not True for one in given)
    return given if whole else None
