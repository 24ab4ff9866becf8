"""What vllm-ascend makes of the rollout's configuration: refusals, silent changes, capture sizes.

15b2e5c unless said; read there, and seen on CPU with its own NPUPlatform.check_and_update_config.
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path

from recipes.lint.arguments import (
    ADDITIONAL_KEYS,
    COMPILATION_KEYS,
    ENGINE_ARGUMENTS,
    PASSED,
    SCHEDULER_KEYS,
    TORCHAIR_KEYS,
    TORCHAIR_ONLY,
)
from recipes.lint.engine import (
    ADDITIONAL,
    ASCEND,
    BLOCK,
    COMMITS,
    COMPILATION,
    PIECES,
    SCHEDULER,
    SPECULATION,
    TORCHAIR,
    ascends,
    asked_mode,
    asked_sizes,
    batched_tokens,
    block,
    captured,
    chunked,
    graph,
    parallel,
    scheduler,
    sequence_parallel,
    stream_budget,
)
from recipes.lint.facts import ENGINE, ROLLOUT, SIZES, Facts
from recipes.lint.lengths import model_length
from recipes.lint.models import PATH
from recipes.lint.rule import CPU, Fault

CAPTURE_SIZES = f"{COMPILATION}.cudagraph_capture_sizes"
MODES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
DATA_TYPES = ("bfloat16", "float16", "half", "auto", "float32", "float")  # vLLM 0.11.0, config/model.py:61
DESCRIPTION = "quant_model_description.json"  # quantization/quant_config.py:81


def capture_sizes(facts: Facts) -> Iterator[Fault]:
    """What is captured are the sizes that are listed: a list too long for the streams is thinned out (R1 to R3)."""
    sizes, left, budget = asked_sizes(facts), captured(facts), stream_budget(facts)
    if not sizes or budget is None or budget < 2 or graph(facts)[0] != "PIECEWISE" or left == sizes:
        return
    tp, dp = parallel(facts)
    listed = "" if facts.get(CAPTURE_SIZES) or facts.matrix == "commercial" else " (vLLM's own list)"
    yield Fault(
        CAPTURE_SIZES,
        f"capture sizes: expected at most {budget} for {facts.model.layers} layers, tp {tp}, dp {dp}, found "
        f"{len(sizes)}{listed}; {left} would be captured",
        f"list {budget} sizes, or set HCCL_OP_EXPANSION_MODE=AIV",
    )


def no_budget(facts: Facts) -> Iterator[Fault]:
    """A budget of one or none ends in ZeroDivisionError or IndexError (R4: utils.py:386, 390; 0.11.0rc1: 406, 410)."""
    sizes, budget = asked_sizes(facts), stream_budget(facts)
    if sizes and budget is not None and budget < 2 and len(sizes) > budget and graph(facts)[0] == "PIECEWISE":
        yield Fault(
            f"{ROLLOUT}.enforce_eager",
            f"capture sizes: expected streams for at least 2, found {budget} for {facts.model.layers} layers",
            f"set {ROLLOUT}.enforce_eager to true",
        )


def sizes_are_numbers(facts: Facts) -> Iterator[Fault]:
    """Capture sizes are whole numbers of at least 1."""
    given = facts.get(CAPTURE_SIZES)
    if given is not None and (given == [] or asked_sizes(facts) is None):
        yield Fault(
            CAPTURE_SIZES, f"{CAPTURE_SIZES}: expected a list of whole numbers, found {given!r}", "write [1,2,4,8]"
        )


def sizes_once(facts: Facts) -> Iterator[Fault]:
    """Each capture size stands once: vLLM drops what is double (0.11.0, config/compilation.py:512-518)."""
    given, sizes = facts.get(CAPTURE_SIZES), asked_sizes(facts)
    if given and sizes and len(sizes) < len(given):
        yield Fault(CAPTURE_SIZES, f"{CAPTURE_SIZES}: expected each size once, found {given}", f"write {sizes[::-1]}")


def sizes_split(facts: Facts) -> Iterator[Fault]:
    """With sequences split over tp only multiples of tp are captured (0.11.0rc1, platform.py:187-199)."""
    tp, sizes = facts.size("rollout_tp") or 1, asked_sizes(facts)
    if sizes is None or tp == 1 or not facts.graphs or not sequence_parallel(facts):
        return
    if all(size % tp for size in sizes):
        yield Fault(
            CAPTURE_SIZES, f"capture sizes: expected a multiple of tp {tp}, found {sizes}: AssertionError", "add one"
        )


def sizes_reach(facts: Facts) -> Iterator[Fault]:
    """The largest captured size holds max_num_seqs: larger batches are computed eagerly."""
    sizes, most = captured(facts), facts.size(f"{ROLLOUT}.max_num_seqs")
    if sizes and most and max(sizes) < most:
        yield Fault(
            CAPTURE_SIZES,
            f"largest capture size {max(sizes)}: expected at least {ROLLOUT}.max_num_seqs {most}; larger batches run "
            "eagerly",
            f"end the list with {most}, or lower max_num_seqs",
        )


def full_decode_only(facts: Facts) -> Iterator[Fault]:
    """FULL_DECODE_ONLY is experimental, and its sizes are not trimmed to the streams (R6: platform.py:230-247)."""
    if graph(facts)[0] == "FULL_DECODE_ONLY":
        yield Fault(
            f"{COMPILATION}.cudagraph_mode",
            f"FULL_DECODE_ONLY: experimental, not trimmed to the {stream_budget(facts)} sizes there are streams for",
            "use PIECEWISE, or list few sizes",
        )


def graph_mode(facts: Facts) -> Iterator[Fault]:
    """A graph mode or level that the NPU has not: eager without an error (R7, R8: platform.py:182-188, 248-253).

    Level 0 with PIECEWISE is an AssertionError (platform.py:222), a mode that vLLM does not know a KeyError.
    """
    key, level = f"{COMPILATION}.cudagraph_mode", f"{COMPILATION}.level"
    mode, left = graph(facts)
    older = facts.get(f"{COMPILATION}.use_cudagraph") is False or facts.is_on(f"{COMPILATION}.full_cuda_graph")
    if older and facts.get(key) is not None:
        yield Fault(key, f"{key}: expected no use_cudagraph or full_cuda_graph beside it, found one", "remove that")
    elif asked_mode(facts) not in (None, *MODES):
        yield Fault(key, f"{key}: expected PIECEWISE, found {facts.shown(key)}: KeyError", "use PIECEWISE")
    elif mode == "PIECEWISE" and left != PIECES:
        yield Fault(level, f"{level}: expected {PIECES} with PIECEWISE, found {left}: AssertionError", "remove it")
    elif facts.graphs and mode == "NONE" and not facts.below(TORCHAIR).get("enabled"):
        found = f"{asked_mode(facts) or 'none'} and level {facts.shown(level)}"
        yield Fault(key, f"{key}: expected PIECEWISE, found {found}, with which it runs eagerly", "remove both")


def torchair(facts: Facts) -> Iterator[Fault]:
    """torchair's own rules (R9: ascend_config.py:155-192, 258-267; 0.11.0rc1: 160-207)."""
    given = facts.below(TORCHAIR)
    enabled, sizes = bool(given.get("enabled")), given.get("graph_batch_sizes", [])
    super_kernel = COMMITS[facts.matrix].super_kernel and given.get("enable_super_kernel")
    only = [name for name in TORCHAIR_ONLY if given.get(name)] + ["enable_super_kernel"] * bool(super_kernel)
    shared = facts.get(f"{ADDITIONAL}.multistream_overlap_shared_expert")
    if enabled and facts.get(f"{ROLLOUT}.enforce_eager") is True:
        yield Fault(TORCHAIR, "torchair: expected off with enforce_eager, found on: RuntimeError", "switch one off")
    if not isinstance(sizes, list):
        yield Fault(TORCHAIR, f"graph_batch_sizes: expected a list, found {sizes!r}", "write one")
    elif sizes and given.get("graph_batch_sizes_init"):
        yield Fault(TORCHAIR, f"graph_batch_sizes_init: expected no graph_batch_sizes, found {sizes}", "remove one")
    elif not enabled and only:
        yield Fault(TORCHAIR, f"{', '.join(only)}: expected enabled: true beside it, found it off", "remove it")
    elif given.get("use_cached_kv_cache_bytes") and not given.get("use_cached_graph"):
        yield Fault(TORCHAIR, "use_cached_kv_cache_bytes: expected use_cached_graph beside it", "set both or none")
    elif super_kernel and not (facts.size("rollout_tp") == 1 and shared):
        message = "enable_super_kernel: expected tp 1 and multistream_overlap_shared_expert beside it"
        yield Fault(TORCHAIR, message, "remove it")


def shared_experts(facts: Facts) -> Iterator[Fault]:
    """enable_shared_expert_dp counts with expert parallelism only (R10: ascend_config.py:70-72)."""
    key = f"{ADDITIONAL}.enable_shared_expert_dp"
    if facts.is_on(key) and not facts.spreads_experts:
        yield Fault(key, f"{key}: expected expert parallelism beside it, found none: ignored", "remove it")


def block_size(facts: Facts) -> Iterator[Fault]:
    """Prefix caching needs blocks of 128: another size becomes 128 (R11: platform.py:267-271).

    0.11.0rc1, platform.py:267-274: chunked prefill needs them, too.
    """
    key = f"{ENGINE}.block_size"
    if facts.matrix in COMMITS and facts.size(key) not in (None, block(facts)):
        cause = "prefix caching" if facts.is_on(f"{ROLLOUT}.enable_prefix_caching") else "chunked prefill"
        yield Fault(
            key,
            f"{key}: expected {BLOCK} with {cause}, found {facts.shown(key)}, which becomes {BLOCK}",
            "remove it",
        )


def raised_tokens(facts: Facts) -> Iterator[Fault]:
    """Without chunked prefill a smaller max_num_batched_tokens is raised to the model length, silently.

    15b2e5c, platform.py:158-161 (R12). The profile run then takes that many tokens, too.
    """
    key = f"{ROLLOUT}.max_num_batched_tokens"
    tokens, found = facts.size(key), batched_tokens(facts)
    if tokens and found and found > tokens and not facts.get(f"{SCHEDULER}.max_num_batched_tokens"):
        yield Fault(
            key,
            f"{key}: {tokens} is below the model length {found}; vllm-ascend raises it to that without a word",
            f"write {found}, so that the recipe says what runs",
        )


def batched_sequences(facts: Facts) -> Iterator[Fault]:
    """max_num_batched_tokens holds a token of each sequence (vLLM 0.11.0, config/scheduler.py:255)."""
    key = f"{ROLLOUT}.max_num_seqs"
    found = facts.sizes(key, f"{ROLLOUT}.max_num_batched_tokens")
    if found and found[0] > found[1]:
        yield Fault(key, f"{key}: expected at most max_num_batched_tokens {found[1]}, found {found[0]}", "lower it")


def other_scheduler(facts: Facts) -> Iterator[Fault]:
    """What silently brings vLLM's own scheduler with chunked prefill (R13: platform.py:136-148).

    0.11.0rc1 has it wherever the Ascend scheduler is not switched on. vLLM 0.11.0 sets guided_decoding_backend as an
    attribute that nobody reads (engine/arg_utils.py:1411), so it changes nothing.
    """
    if scheduler(facts) == ASCEND or ascends(facts):
        return
    usual = {"async_scheduling": False, "scheduling_policy": "fcfs", "structured_outputs_config.backend": "auto"}
    causes = [f"{ENGINE}.{name}" for name, value in usual.items() if facts.get(f"{ENGINE}.{name}") not in (None, value)]
    for key in causes if COMMITS[facts.matrix].forces_scheduler else [f"{SCHEDULER}.enabled"]:
        yield Fault(
            key,
            f"{key}: with {facts.shown(key)} the scheduler is {scheduler(facts)}, which cuts prefills",
            f"set {SCHEDULER}.enabled to true" + (", or remove it" if key in causes else ""),
        )


def scheduler_config(facts: Facts) -> Iterator[Fault]:
    """Values that AscendSchedulerConfig refuses (R13, R14: core/schedule_config.py:61-108)."""
    if not ascends(facts):
        return
    given, tokens, length = facts.below(SCHEDULER), batched_tokens(facts), model_length(facts)
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
    if tokens and length and tokens < length and not chunked(facts):
        own = f"{SCHEDULER}.max_num_batched_tokens"
        key = own if facts.get(own) else f"{ROLLOUT}.max_num_batched_tokens"
        yield Fault(key, f"{key}: expected at least the model length {length}, found {tokens}", f"raise it to {length}")


def unknown_additional(facts: Facts) -> Iterator[Fault]:
    """Keys of additional_config that nobody reads: typos pass silently (R15)."""
    nodes = {
        ADDITIONAL: ADDITIONAL_KEYS[facts.matrix],
        SCHEDULER: SCHEDULER_KEYS,
        TORCHAIR: TORCHAIR_KEYS[facts.matrix],
    }
    yield from _unknown(facts, nodes, "it is ignored")


def unknown_argument(facts: Facts) -> Iterator[Fault]:
    """Engine arguments that vLLM does not have: TypeError, and StopIteration in compilation_config.

    vLLM 0.11.0, entrypoints/llm.py:254-319; config/utils.py is_init_field.
    """
    yield from _unknown(facts, {ENGINE: ENGINE_ARGUMENTS, COMPILATION: COMPILATION_KEYS}, "vLLM refuses it")


def _unknown(facts: Facts, nodes: Mapping[str, frozenset[str]], effect: str) -> Iterator[Fault]:
    for node, known in nodes.items():
        for name, value in facts.below(node).items():
            if str(name) in known or (node == ENGINE and value is None):  # verl leaves null out
                continue
            near = get_close_matches(str(name), known, 3) or sorted(known)[:6]
            message = f"{node}.{name}: expected a key that is read, found none of that name: {effect}"
            yield Fault(f"{node}.{name}", message, f"the nearest: {', '.join(near)}")


def split_heads(facts: Facts) -> Iterator[Fault]:
    """lmhead and oproj tensor parallelism are for pure data parallelism (R16: ascend_config.py:77-102)."""
    for name in ("lmhead_tensor_parallel_size", "oproj_tensor_parallel_size"):
        key, tp = f"{ADDITIONAL}.{name}", facts.size("rollout_tp")
        if facts.get(key) is not None and tp and tp > 1:
            yield Fault(key, f"{key}: expected none at tp {tp}, found {facts.shown(key)}: AssertionError", "remove it")
        elif facts.get(key) is not None and name.startswith("oproj"):
            yield Fault(key, f"{key}: expected none outside of prefill-decode disaggregation, found one", "remove it")


def quantization(facts: Facts) -> Iterator[Fault]:
    """No quantization but Ascend's, which needs a file of its own beside the weights (R17: platform.py:56)."""
    key = f"{ENGINE}.quantization"
    if facts.get(key) not in (None, "ascend"):
        yield Fault(key, f"{key}: expected none or ascend, found {facts.shown(key)}", "remove it")
    elif facts.get(key) and (folder := _folder(facts)) and not list(folder.glob(f"*{DESCRIPTION}")):
        yield Fault(
            key, f"{key}: expected {DESCRIPTION} in {folder}, found none", "remove it: training has no such file"
        )


def _folder(facts: Facts) -> Path | None:
    """The model's folder, where it is on this machine."""
    folder = Path(str(facts.get(PATH)))
    try:
        return folder if (folder / "config.json").is_file() else None
    except (OSError, ValueError):
        return None


def speculation(facts: Facts) -> Iterator[Fault]:
    """No speculative decoding with asynchronous scheduling (vLLM 0.11.0, engine/arg_utils.py:1301-1304)."""
    if facts.below(SPECULATION) and facts.is_on(f"{ENGINE}.async_scheduling"):
        yield Fault(SPECULATION, "speculative_config: expected none with async_scheduling, found one", "remove one")


def dense_experts(facts: Facts) -> Iterator[Fault]:
    """Expert parallelism on a dense model is refused by vLLM, also on one device (R18)."""
    if facts.spreads_experts and facts.model and not facts.model.experts:
        yield Fault(
            f"{ENGINE}.enable_expert_parallel",
            f"expert parallelism: expected off, as {facts.model.name} has no experts, found on",
            "switch it off",
        )


def data_type(facts: Facts) -> Iterator[Fault]:
    """bfloat16 or float16: float32 passes here and fails at the splitfuse mask later (R18), not on the emulator."""
    key = f"{ROLLOUT}.dtype"
    if facts.get(key) not in (DATA_TYPES if facts.matrix == CPU else DATA_TYPES[:4]):
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
    for name in PASSED if facts.mode == "sync" else ():
        key = f"{ENGINE}.{name}"
        if facts.get(key) is not None:
            yield Fault(key, f"{key}: expected under {ROLLOUT}, found as an engine argument, given twice", "move it")
