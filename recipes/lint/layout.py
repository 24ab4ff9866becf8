"""Parallel sizes against devices, layers, heads and experts."""

import re
from collections.abc import Iterator

from recipes.lint.facts import OVERRIDE, REF, ROLLOUT, SIZES, Facts
from recipes.lint.rule import COMMERCIAL, Fault

# Sizes beyond those of formulas, by their ends; null stands for "not set" there.
AT_LEAST_ONE = re.compile(
    r"trainer\.(nnodes|n_gpus_per_node|total_epochs|total_training_steps)"
    r"|.*(_parallel_size|batch_size|batch_size_per_gpu|max_token_len_per_gpu|ppo_epochs|max_num_seqs"
    r"|max_num_batched_tokens|\.n|\.(max_)?(prompt|response)_length)"
)
DEVICES = {"Atlas 800T A2": 8}  # NPUs of a node, by launch.hardware
LOWER = "lower one of the sizes or change the number of nodes"


def positive(facts: Facts) -> Iterator[Fault]:
    """Sizes are whole numbers of at least 1: verl multiplies and divides by them without asking."""
    optional = {SIZES[name] for name in ("etp", "vpp", "first", "last", "micro")}
    named = set(SIZES.values())
    for key, value in facts.values.items():
        if key not in named and not AT_LEAST_ONE.fullmatch(key):
            continue
        if isinstance(value, int) and not isinstance(value, bool) and value < 1:
            yield Fault(key, f"{key}: expected a whole number of at least 1, found {value}", "write 1 or more")
        elif value is None and key in named - optional:
            yield Fault(key, f"{key}: expected a whole number of at least 1, found null", "write the number")


def copies(facts: Facts) -> Iterator[Fault]:
    """Devices divide into copies of the model: N % (tp pp cp) == 0.

    verl 796871d, trainer/ppo/ray_trainer.py:396; 21271aa, utils/config.py:95 (without dynamic batch sizes only);
    else Megatron core_v0.12.1, core/parallel_state.py:629.
    """
    layout = facts.layout
    if layout and layout.devices % layout.model:
        sizes = f"tp {layout.tp} × pp {layout.pp} × cp {layout.cp} = {layout.model}"
        yield Fault(
            SIZES["nodes"],
            f"{sizes}: expected a divisor of the {layout.devices} devices, found a rest of "
            f"{layout.devices % layout.model}",
            LOWER,
        )


def expert_copies(facts: Facts) -> Iterator[Fault]:
    """Devices divide into copies of the experts: N % (etp ep pp) == 0 (core_v0.12.1, core/parallel_state.py:700)."""
    layout = facts.layout
    if layout and not layout.devices % layout.model and layout.devices % (layout.etp * layout.ep * layout.pp):
        product = layout.etp * layout.ep * layout.pp
        yield Fault(
            SIZES["ep"],
            f"etp {layout.etp} × ep {layout.ep} × pp {layout.pp} = {product}: expected a divisor of the "
            f"{layout.devices} devices, found a rest of {layout.devices % product}",
            LOWER,
        )


def experts(facts: Facts) -> Iterator[Fault]:
    """Experts divide over ep: num_experts % ep == 0.

    core_v0.12.1, core/transformer/moe/moe_layer.py:46. A dense model takes ep 1 only (transformer_config.py:620).
    """
    ep, model = facts.size("ep"), facts.model
    if ep is None or model is None:
        return
    if not model.experts and ep > 1:
        yield Fault(
            SIZES["ep"], f"{SIZES['ep']}: expected 1, as {model.name} has no experts, found {ep}", "set it to 1"
        )
    elif model.experts % ep:
        yield Fault(
            SIZES["ep"],
            f"{SIZES['ep']}: expected a divisor of the {model.experts} experts, found {ep}",
            "use a divisor of the number of experts",
        )


def layers(facts: Facts) -> Iterator[Fault]:
    """Layers divide over the stages, those of the first and the last stage set apart where the recipe says so.

    core_v0.12.1, core/transformer/transformer_block.py:86 and 114, transformer_config.py:786-828. With as many uneven
    stages as there are stages nothing is left to divide by.
    """
    pp, model = facts.size("pp"), facts.model
    if pp is None or model is None:
        return
    uneven = {name: facts.size(name) for name in ("first", "last") if facts.get(SIZES[name]) is not None}
    if None in uneven.values():
        return  # `positive` or `overrides.type` has reported it
    left, stages = model.layers - sum(uneven.values()), pp - len(uneven)
    shown = "".join(f" - {value} in the {name} stage" for name, value in uneven.items())
    if stages < 1 or left < stages or left % stages:
        yield Fault(
            SIZES["pp"],
            f"{model.layers} layers{shown} over {stages} {'more ' if uneven else ''}stages of pp {pp}: expected a "
            f"whole number of layers a stage, found {left} / {stages}",
            "set num_layers_in_first_pipeline_stage and num_layers_in_last_pipeline_stage so that the rest divides: "
            + _splits(model.layers, pp),
        )


def _splits(layers: int, pp: int) -> str:
    """Equal first and last stages that leave a whole number of layers for each of the others."""
    if layers % pp == 0:
        return f"none of them is needed for pp {pp} ({layers // pp} each)"
    middle = layers // pp + 1
    found = [
        f"first and last {rest // 2}, {each} in each other"
        for each in (middle, middle - 1)
        if pp > 2 and (rest := layers - each * (pp - 2)) > 1 and rest % 2 == 0
    ]
    return " or ".join(found) or f"no equal first and last stages exist for {layers} layers at pp {pp}"


def virtual_stages(facts: Facts) -> Iterator[Fault]:
    """Virtual stages need pp > 1, layers that divide by them, and micro-batches in groups of pp.

    core_v0.12.1, core/parallel_state.py:641, transformer_block.py:136. `batches.virtual` looks at the last one.
    """
    vpp, pp, model = facts.size("vpp"), facts.size("pp"), facts.model
    if vpp is None or pp is None:
        return
    key = SIZES["vpp"]
    if pp == 1:
        yield Fault(key, f"{key}: expected null at pp 1, found {vpp}", "set it to null, or pp above 1")
        return
    stage = model and model.layers / pp
    if model and (facts.get(SIZES["first"]) is not None or facts.get(SIZES["last"]) is not None):
        stage = facts.size("first") or facts.size("last")
    if stage and stage % vpp:
        yield Fault(key, f"{key}: expected a divisor of {stage:g} layers a stage, found {vpp}", "use a divisor")


def heads(facts: Facts) -> Iterator[Fault]:
    """Attention heads, key-value heads and the vocabulary divide over tp.

    core_v0.12.1, core/transformer/transformer_config.py:559 and 574, core/tensor_parallel/utils.py:110.
    """
    tp, model = facts.size("tp"), facts.model
    if tp is None or model is None:
        return
    counts = {"attention heads": model.heads, "key-value heads": model.kv_heads, "vocabulary entries": model.vocabulary}
    for name, count in counts.items():
        if count % tp:
            yield Fault(
                SIZES["tp"], f"{SIZES['tp']}: expected a divisor of the {count} {name}, found {tp}", "use a divisor"
            )
            return


def ray_devices(facts: Facts) -> Iterator[Fault]:
    """Ray has an NPU and a CPU for every rank, and a CPU for the driver's task.

    verl 21271aa, trainer/ppo/ray_trainer.py:103-119 asserts the NPUs (796871d: 120-151, and node by node); it waits for
    ever for CPUs, of which each rank's bundle takes one (single_controller/ray/base.py:122; 796871d: 115) and the
    driver's task another (trainer/main_ppo.py:94; 796871d: 86). How many nodes join is known on the cluster only.
    """
    found = facts.sizes("nodes", "per_node")
    if not found:
        return
    nodes, per_node = found
    most = DEVICES.get(str(facts.get("launch.hardware")))
    if most and per_node > most:
        yield Fault(
            SIZES["per_node"],
            f"{SIZES['per_node']}: expected at most {most}, the NPUs of an {facts.get('launch.hardware')}, found "
            f"{per_node}",
            f"set it to {most}",
        )
    key = "ray_init" if facts.matrix == COMMERCIAL else "ray_kwargs.ray_init"
    if facts.get(f"{key}.address") == "local" and nodes > 1:
        yield Fault(
            f"{key}.address",
            f"{key}.address: expected none on {nodes} nodes, found local, a Ray of one node",
            "remove it, and start Ray on the nodes first",
        )
    cpus = facts.size(f"{key}.num_cpus")
    if cpus and cpus <= per_node:
        yield Fault(
            f"{key}.num_cpus",
            f"{key}.num_cpus: expected at least {per_node + 1}, one for each of {per_node} ranks and one for the "
            f"driver's task, found {cpus}: verl would wait for ever",
            f"set it to {per_node + 1} or more",
        )


def engines(facts: Facts) -> Iterator[Fault]:
    """Devices divide into rollout engines.

    verl 796871d, workers/megatron_workers.py:366 (and MindSpeed-RL v2.2.0's plugin, vllm_rollout_spmd.py:204, which
    cuts them into groups of tp × dp_model_parallel_size); 21271aa, workers/megatron_workers.py:403.
    """
    layout, tp = facts.layout, facts.size("rollout_tp")
    if layout is None or tp is None:
        return
    product = tp * facts.engine_dp * (facts.size(f"{ROLLOUT}.pipeline_model_parallel_size") or 1)
    if layout.devices % product:
        yield Fault(
            SIZES["rollout_tp"],
            f"rollout tp {tp} × dp {facts.engine_dp} = {product}: expected a divisor of the {layout.devices} devices, "
            f"found a rest of {layout.devices % product}",
            LOWER,
        )


def engine_heads(facts: Facts) -> Iterator[Fault]:
    """Heads divide over the rollout's tp (vLLM 0.11.0, config/model.py verify_with_parallel_config).

    Key-value heads divide over tp or tp over them: vLLM replicates what is left (models/qwen3_moe.py).
    """
    tp, model = facts.size("rollout_tp"), facts.model
    if tp is None or model is None:
        return
    fits = model.heads % tp == 0 and (model.kv_heads % tp == 0 or tp % model.kv_heads == 0)
    if not fits:
        yield Fault(
            SIZES["rollout_tp"],
            f"{SIZES['rollout_tp']}: expected a divisor of the {model.heads} attention heads that divides the "
            f"{model.kv_heads} key-value heads or is a multiple of them, found {tp}",
            "use a power of two up to the number of heads",
        )


def engine_stages(facts: Facts) -> Iterator[Fault]:
    """No pipeline parallelism in the rollout (verl 21271aa, workers/config/rollout.py:188)."""
    key = f"{ROLLOUT}.pipeline_model_parallel_size"
    if (facts.size(key) or 1) > 1 and facts.get(f"{ROLLOUT}.name") in ("vllm", "sglang"):
        yield Fault(key, f"{key}: expected 1 with vllm, found {facts.size(key)}", "set it to 1")


def engine_experts(facts: Facts) -> Iterator[Fault]:
    """Expert parallelism of the rollout is 1 or tp × dp (verl 21271aa, workers/config/rollout.py:183)."""
    key, tp = f"{ROLLOUT}.expert_parallel_size", facts.size("rollout_tp")
    ep = facts.size(key)
    if tp and ep and ep > 1 and ep != tp * facts.engine_dp:
        yield Fault(
            key,
            f"{key}: expected 1 or tp {tp} × dp {facts.engine_dp} = {tp * facts.engine_dp}, found {ep}",
            "set it to that product",
        )


def reference(facts: Facts) -> Iterator[Fault]:
    """The reference model shares the actor's groups; sizes of its own are not read, but for cp, which is not inherited.

    verl 21271aa, workers/megatron_workers.py:193-212 initialises from the actor's sizes alone (796871d: 177-196), and
    megatron_actor.py:191 (796871d: 188) multiplies the token budget by ref.megatron.context_parallel_size.
    """
    if not facts.has_reference:
        return
    for name in ("tp", "pp", "cp", "ep", "etp"):
        key = SIZES[name].replace("actor_rollout_ref.actor", REF)
        own, actors = facts.get(key), facts.get(SIZES[name])
        if own != actors and not (name == "etp" and own in (None, "None")) and _is_own(facts, key):
            yield Fault(
                key,
                f"{key}: expected the actor's {facts.shown(SIZES[name])}, in whose groups it runs, "
                f"found {facts.shown(key)}",
                f"write ${{{SIZES[name]}}}",
            )


def _is_own(facts: Facts, key: str) -> bool:
    """Whether the recipe says something else than verl's default. cp counts always: its default is wrong at cp > 1."""
    return "context" in key or facts.written.get(key) != facts.inherited.get(key)


def override_sizes(facts: Facts) -> Iterator[Fault]:
    """Parallel sizes in the override are the actor's own.

    The override wins inside TransformerConfig (verl 21271aa, models/mcore/config_converter.py:94), Megatron's groups
    have the actor's sizes: two answers to one question. context_parallel_size has a rule of its own.
    """
    for name in ("tp", "pp", "ep", "etp"):
        key = f"{OVERRIDE}.{SIZES[name].rsplit('.', 1)[-1]}"
        if key in facts.values and facts.get(key) != facts.get(SIZES[name]):
            yield Fault(
                key,
                f"{key}: expected the actor's {facts.shown(SIZES[name])}, found {facts.shown(key)}",
                "leave it out: verl fills it in from its own key",
            )
