"""The linter's verdict on rollouts against vllm-ascend's own NPUPlatform.check_and_update_config, case by case.

Twice: with the installed vllm-ascend (the cpu matrix), and, where UPSTREAM_ROOT names a folder that holds
performance/vllm-ascend at that matrix's commit, with that one.
"""

import dataclasses
import json
import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from emulator import site
from recipes.compose import HOME
from recipes.lint import arguments, engine, read
from recipes.lint.engine import ADDITIONAL, COMPILATION, SCHEDULER, SEQUENCE_PARALLEL, SPECULATION, TORCHAIR, Commit
from recipes.lint.facts import ENGINE, ROLLOUT, SIZES, Facts, gather
from recipes.lint.models import PATH
from recipes.lint.rule import CPU, PERFORMANCE
from recipes.lint.rules import RULES
from tests.emulator.processes import run

pytestmark = pytest.mark.slow

SEED, RANDOM = 20251015, 110
ENV = "launch.env"
MOE = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 4096,
    "intermediate_size": 12288, "moe_intermediate_size": 1536, "num_attention_heads": 64, "num_key_value_heads": 4,
    "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
}  # fmt: skip
DENSE = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 4096,
    "intermediate_size": 12288, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
}  # fmt: skip

MODELS = {
    "moe-94": MOE | {"num_hidden_layers": 94},
    "moe-48": MOE | {"num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32},
    "dense-36": DENSE | {"num_hidden_layers": 36},
    "dense-1000": DENSE | {"num_hidden_layers": 1000},  # no streams at all
    "draft": DENSE | {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1},
}
TRAINED = ("moe-94", "moe-48", "dense-36")

# What a rollout is changed in; each value may break something, or nothing.
CHOICES = {
    PATH: ("dense-1000",),
    SIZES["rollout_tp"]: (2, 4, 8, 16, 3),
    f"{ROLLOUT}.enforce_eager": (True,),
    f"{ROLLOUT}.max_num_seqs": (1, 8, 64, 256, 1024, 4096),
    f"{ROLLOUT}.max_num_batched_tokens": (24, 2048, 8192),
    f"{ROLLOUT}.max_model_len": (4096, 50000),
    f"{ROLLOUT}.enable_chunked_prefill": (True, False),
    f"{ROLLOUT}.enable_prefix_caching": (True, False),
    f"{ROLLOUT}.dtype": ("float16", "float32", "bf16"),
    f"{ROLLOUT}.pipeline_model_parallel_size": (2,),
    f"{ROLLOUT}.expert_parallel_size": (2,),
    f"{ROLLOUT}.data_parallel_size": (2,),
    "data.max_response_length": (4096, 45000),
    f"{ENGINE}.data_parallel_size": (2,),
    f"{ENGINE}.enable_expert_parallel": (True,),
    f"{ENGINE}.block_size": (64, 128, None),
    f"{ENGINE}.async_scheduling": (True,),
    f"{ENGINE}.scheduling_policy": ("priority", "fcfs"),
    f"{ENGINE}.structured_outputs_config.backend": ("xgrammar", "auto"),
    f"{ENGINE}.guided_decoding_backend": ("xgrammar",),
    f"{ENGINE}.quantization": ("fp8", "ascend", None),
    f"{ENGINE}.cuda_graph_sizes": ([64], [4, 12, 40, 128]),
    f"{ENGINE}.max_model_len": (4096,),
    f"{ENGINE}.disable_log_stats": (True,),
    f"{ENGINE}.enable_expert_paralel": (True,),
    f"{COMPILATION}.cudagraph_capture_sizes": (
        None, list(range(8, 264, 8)), [1, 2, 4, 8, 16, 24, 32, 40, 48], [5, 7], [4, 4, 8], [8, "many"], [],
    ),
    f"{COMPILATION}.cudagraph_mode": (
        "NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "full_and_piecewise", "PARTIAL",
    ),
    f"{COMPILATION}.level": (0, 1, 2, 3),
    f"{COMPILATION}.use_cudagraph": (False,),
    f"{COMPILATION}.full_cuda_graph": (True,),
    f"{COMPILATION}.capture_sizes": ([1, 2],),
    SEQUENCE_PARALLEL: (True,),
    f"{SPECULATION}": (
        {"method": "ngram", "num_speculative_tokens": 1, "prompt_lookup_max": 4},
        {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4},
        {"method": "eagle", "num_speculative_tokens": 2, "model": "draft"},
    ),
    f"{SCHEDULER}.enabled": (False, None, True),
    f"{SCHEDULER}.enable_chunked_prefill": (True,),
    f"{SCHEDULER}.max_num_batched_tokens": (32, 16384),
    f"{SCHEDULER}.max_long_partial_prefills": (-1, 2),
    f"{SCHEDULER}.policy": ("priority",),
    f"{SCHEDULER}.send_delta_data": (True,),
    f"{SCHEDULER}.scheduler_cls": ("vllm_ascend.core.scheduler.OtherScheduler",),
    f"{SCHEDULER}.chunked_prefill_enabled": (True,),
    f"{TORCHAIR}.enabled": (True,),
    f"{TORCHAIR}.mode": ("max-autotune",),
    f"{TORCHAIR}.graph_batch_sizes": ([4, 8], "8"),
    f"{TORCHAIR}.graph_batch_sizes_init": (True,),
    f"{TORCHAIR}.use_cached_graph": (True,),
    f"{TORCHAIR}.use_cached_kv_cache_bytes": (True,),
    f"{TORCHAIR}.enable_super_kernel": (True,),
    f"{ADDITIONAL}.enable_shared_expert_dp": (True,),
    f"{ADDITIONAL}.multistream_overlap_shared_expert": (True,),
    f"{ADDITIONAL}.recompute_scheduler_enable": (True,),
    f"{ADDITIONAL}.lmhead_tensor_parallel_size": (2,),
    f"{ADDITIONAL}.oproj_tensor_parallel_size": (2,),
    f"{ADDITIONAL}.ascend_schedular_config": ({"enabled": True},),
    f"{ENV}.HCCL_OP_EXPANSION_MODE": ("AIV",),
    f"{ENV}.ASCEND_LAUNCH_BLOCKING": ("1",),
    f"{ENV}.VLLM_ASCEND_ENABLE_FLASHCOMM1": ("1",),
    f"{ENV}.VLLM_USE_V1": ("0",),
}  # fmt: skip
# Changes that do something together only.
PAIRS = (
    {f"{TORCHAIR}.enabled": True, f"{TORCHAIR}.use_cached_kv_cache_bytes": True},
    {f"{TORCHAIR}.enabled": True, f"{ROLLOUT}.enforce_eager": True},
    {f"{TORCHAIR}.enabled": True, f"{TORCHAIR}.enable_super_kernel": True},
    {f"{TORCHAIR}.graph_batch_sizes": [4, 8], f"{TORCHAIR}.graph_batch_sizes_init": True},
    {f"{ADDITIONAL}.enable_shared_expert_dp": True, f"{ENGINE}.enable_expert_parallel": True},
    {f"{SCHEDULER}.enabled": False, f"{ENGINE}.async_scheduling": True},
    {f"{SCHEDULER}.enabled": False, f"{ENGINE}.scheduling_policy": "priority"},
    {f"{SCHEDULER}.enabled": False, f"{ENGINE}.guided_decoding_backend": "xgrammar"},
    {f"{SCHEDULER}.enabled": False, f"{SCHEDULER}.policy": "priority", f"{ENGINE}.async_scheduling": True},
    {f"{SCHEDULER}.enabled": False, f"{ADDITIONAL}.recompute_scheduler_enable": True},
    {f"{SCHEDULER}.enabled": False, f"{ROLLOUT}.enable_prefix_caching": False, f"{ENGINE}.block_size": 64},
    {f"{SCHEDULER}.enabled": False, f"{ROLLOUT}.enable_prefix_caching": False, f"{ENGINE}.block_size": 64,
     f"{ENGINE}.scheduling_policy": "priority", f"{ADDITIONAL}.recompute_scheduler_enable": True},
    {f"{SCHEDULER}.enable_chunked_prefill": True, f"{ROLLOUT}.max_model_len": 4096},
    {f"{ROLLOUT}.max_model_len": 4096, f"{ENGINE}.async_scheduling": True},
    {f"{ROLLOUT}.max_model_len": 4096, f"{SCHEDULER}.enabled": False},
    {f"{ENGINE}.async_scheduling": True, SPECULATION: CHOICES[SPECULATION][0]},
    {f"{COMPILATION}.level": 0, f"{COMPILATION}.cudagraph_mode": "PIECEWISE"},
    {f"{COMPILATION}.level": 0, f"{COMPILATION}.cudagraph_mode": "FULL_DECODE_ONLY"},
    {f"{COMPILATION}.use_cudagraph": False, f"{COMPILATION}.cudagraph_mode": "PIECEWISE"},
    {f"{COMPILATION}.level": 2, f"{COMPILATION}.cudagraph_mode": "PIECEWISE"},
    {f"{ROLLOUT}.enforce_eager": True, f"{COMPILATION}.cudagraph_mode": "PARTIAL"},
    {SEQUENCE_PARALLEL: True, SIZES["rollout_tp"]: 4, f"{COMPILATION}.cudagraph_capture_sizes": [5, 7]},
    {SEQUENCE_PARALLEL: True, SIZES["rollout_tp"]: 4, f"{COMPILATION}.cudagraph_capture_sizes": None},
    {f"{ENV}.VLLM_ASCEND_ENABLE_FLASHCOMM1": "1", SIZES["rollout_tp"]: 4},
    *({f"{ENV}.HCCL_OP_EXPANSION_MODE": "AIV", f"{COMPILATION}.cudagraph_capture_sizes": list(range(8, 264, 8))} | more
      for more in ({}, {SIZES["rollout_tp"]: 8}, {f"{ENGINE}.enable_expert_parallel": True},
                   {f"{ENGINE}.data_parallel_size": 2}, {f"{ADDITIONAL}.multistream_overlap_shared_expert": True})),
    {SPECULATION: CHOICES[SPECULATION][0], f"{COMPILATION}.cudagraph_capture_sizes": list(range(8, 264, 8))},
    {SPECULATION: CHOICES[SPECULATION][2], f"{COMPILATION}.cudagraph_capture_sizes": list(range(8, 264, 8))},
    {PATH: "dense-1000", SIZES["rollout_tp"]: 8},
)  # fmt: skip

# Rules that stand for a refusal, and the words of it.
REFUSALS = {
    "sizes.engine-heads": "must be divisible by tensor parallel size",
    "sizes.engine-stages": "pipeline_model_parallel_size > 1",
    "sizes.engine-experts": "expert_parallel_size must be equal",
    "lengths.context": "model context length should be greater|is greater than the derived max_model_len",
    "lengths.chunked-prefill": "Enable chunked prefill, max_num_batched_tokens is smaller",
    "environment.v1-engine": "^AssertionError|does not support V0|not supported.*VLLM_USE_V1",
    "environment.launch-blocking": "ASCEND_LAUNCH_BLOCKING",
    "rollout.no-streams": "^(ZeroDivisionError|IndexError)",
    "rollout.sizes-are-numbers": "cudagraph_capture_sizes",
    "rollout.sizes-split": "multiples of tp_size",
    "rollout.graph-mode": "^KeyError: 'PARTIAL'|enabling piecewise aclgraph|mutually exclusive",
    "rollout.torchair": "Torchair|graph_batch_sizes|enable graph mode and eager mode|enable_super_kernel",
    "rollout.batched-sequences": "greater than or equal to max_num_seqs",
    "rollout.scheduler": "fcfs policy|max_long_partial_prefills|send_delta_data|without chunked prefill feature",
    "rollout.unknown-argument": "^TypeError.*unexpected keyword argument|^StopIteration",
    "rollout.argument-twice": "^TypeError.*multiple values for keyword argument",
    "rollout.split-heads": "(lmhead|oproj)_tensor_parallel_size is only supported",
    "rollout.quantization": "quantization is currently not supported in npu|Cannot find the config file for ascend",
    "rollout.speculation": "speculative decoding is not supported with async scheduling",
    "rollout.dense-experts": "Number of experts in the model must be greater than 0",
    "rollout.data-type": "dtype",
}


def listed(facts: Facts) -> list | None:
    return facts.get(f"{COMPILATION}.cudagraph_capture_sizes")


def torchair(facts: Facts) -> bool:
    return facts.is_on(f"{TORCHAIR}.enabled")


# Keys among the choices that nobody reads.
UNREAD = {CPU: (f"{SCHEDULER}.chunked_prefill_enabled", f"{ADDITIONAL}.ascend_schedular_config")}
UNREAD[PERFORMANCE] = (
    *UNREAD[CPU],
    f"{ADDITIONAL}.recompute_scheduler_enable",
    f"{TORCHAIR}.enable_super_kernel",
)

# Rules that stand for a silent change: whether an engine that starts shows it. None: it cannot be told.
CHANGES = {
    "rollout.capture-sizes": lambda real, facts: (
        set(real["sizes"]) != set(listed(facts)) if listed(facts) and real["mode"] == "PIECEWISE" else None
    ),
    "rollout.sizes-are-numbers": lambda real, facts: listed(facts) == [],
    "rollout.sizes-once": lambda real, facts: len(set(listed(facts) or ())) < len(listed(facts) or ()),
    "rollout.sizes-reach": lambda real, facts: (
        0 < max(real["sizes"], default=0) < facts.get(f"{ROLLOUT}.max_num_seqs") and real["mode"] != "NONE"
    ),
    "rollout.full-decode-only": lambda real, facts: real["mode"] == "FULL_DECODE_ONLY",
    "rollout.graph-mode": lambda real, facts: facts.graphs and real["mode"] == "NONE" and not torchair(facts),
    "rollout.block-size": lambda real, facts: facts.get(f"{ENGINE}.block_size", None) not in (None, real["block"]),
    "rollout.other-scheduler": lambda real, facts: real["scheduler"] not in ("AscendScheduler", "OtherScheduler"),
    "rollout.shared-experts": lambda real, facts: (
        None
        if torchair(facts)
        else facts.is_on(f"{ADDITIONAL}.enable_shared_expert_dp") and real["worker"] == "NPUWorker"
    ),
    "rollout.unknown-key": lambda real, facts: any(facts.get(key) is not None for key in UNREAD[facts.matrix]),
    "lengths.batched-tokens": lambda real, facts: (
        None
        if facts.get(f"{SCHEDULER}.max_num_batched_tokens")
        else real["tokens"] > facts.get(f"{ROLLOUT}.max_num_batched_tokens")
    ),
}
# Refused later than by the configuration's checks, where the rule is right all the same.
LATER = {
    "rollout.data-type": lambda real, facts: facts.get(f"{ROLLOUT}.dtype") == "float32",  # by the splitfuse mask
    # By torch_npu, when it captures. c5fe179 refuses it here (platform.py:246-254), 15b2e5c does not (248-255).
    "environment.launch-blocking": lambda real, facts: facts.matrix == PERFORMANCE or real["mode"] == "NONE",
}
JUDGED = {rule.id: rule for rule in RULES if rule.id in {*REFUSALS, *CHANGES}}


def cases() -> list[dict]:
    """Each choice alone, the pairs, and random ones."""
    chance = random.Random(SEED)
    models = [{PATH: model} for model in TRAINED]
    alone = [{key: value} for key, values in CHOICES.items() for value in values]
    mixed = []
    for _ in range(RANDOM):
        keys = chance.sample(sorted(CHOICES), chance.choice([2, 2, 3, 3, 4, 5]))
        mixed.append({key: chance.choice(CHOICES[key]) for key in keys})
    changes = [*({} for _ in models), *alone, *PAIRS, *mixed]
    return [models[number % len(models)] | change for number, change in enumerate(changes)]


def placed(change: dict, folder: Path) -> dict:
    """A case's settings, complete: models are folders, and the host's memory does not count for swap space."""
    values = {**change, "launch.model": None, f"{ENGINE}.swap_space": 0, PATH: str(folder / change[PATH])}
    draft = values.get(SPECULATION, {})
    if "model" in draft:
        values[SPECULATION] = draft | {"model": str(folder / draft["model"])}
    return values


def overlay(tree: Path, folder: Path) -> Path:
    """A folder for the path on which the tree is installed: with what its build writes, none of it into the tree."""
    package, info = folder / "vllm_ascend", folder / "vllm_ascend-0.11.0rc0.dist-info"
    package.mkdir()
    info.mkdir()
    for path in (tree / "vllm_ascend").iterdir():
        (package / path.name).symlink_to(path)
    (package / "_build_info.py").write_text("__soc_version__ = 'ASCEND910B1'\n__sleep_mode_enabled__ = True\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm_ascend\nVersion: 0.11.0rc0\n")
    (info / "entry_points.txt").write_text(
        "[vllm.platform_plugins]\nascend = vllm_ascend:register\n[vllm.general_plugins]\n"
        "ascend_enhanced_model = vllm_ascend:register_model\nascend_kv_connector = vllm_ascend:register_connector\n"
    )
    return folder


@pytest.fixture(scope="module", params=[CPU, PERFORMANCE])
def judged(request, tmp_path_factory):
    """The matrix, the cases' facts, and what the real code says of them."""
    folder, path = tmp_path_factory.mktemp("rollouts"), []
    if request.param == PERFORMANCE:
        root = os.environ.get("UPSTREAM_ROOT")
        if not root:
            pytest.skip("UPSTREAM_ROOT names no folder with performance/vllm-ascend")
        path = [overlay(Path(root).absolute() / "performance" / "vllm-ascend", tmp_path_factory.mktemp("overlay"))]
    for name, config in MODELS.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    settings = [placed(change, folder) for change in cases()]
    (folder / "cases.json").write_text(json.dumps(settings))
    done = run(
        Path(__file__).with_name("real_rollout.py"),
        folder / "cases.json",
        timeout=900,
        PYTHONPATH=os.pathsep.join(map(str, [*path, site.ensure(), HOME])),
        HF_HUB_OFFLINE=1,
        VLLM_NO_USAGE_STATS=1,
        VLLM_LOGGING_LEVEL="ERROR",
    )
    answer = json.loads(done.stdout.splitlines()[-1])
    assert not path or Path(answer["vllm_ascend"]).is_relative_to(path[0]), answer["vllm_ascend"]
    _, recipe, _ = read("smoke")
    return request.param, [changed(recipe.config, values, request.param) for values in settings], answer


def changed(config, values: dict, matrix: str) -> Facts:
    """The facts of the recipe with other settings, as if it were for another matrix."""
    config = config.copy()
    for key, value in values.items():
        OmegaConf.update(config, key, value, force_add=True)
    return gather(config, matrix, OmegaConf.create())


def disagreements(facts: Facts, real: dict) -> list[str]:
    """In what the linter and the real code differ on a case."""
    fired = {name for name, rule in JUDGED.items() if next(rule.findings(facts), None)}
    if "refused" in real:
        words = f"{real['refused']}: {real['message']}"
        named = [name for name in fired if re.search(REFUSALS.get(name, "^$"), words)]
        return [] if named else [f"accepted, or refused for another reason by {sorted(fired)}: {words}"]
    found = []
    for name, rule in JUDGED.items():
        change = CHANGES[name](real, facts) if name in CHANGES else False
        later = name in fired and name in LATER and LATER[name](real, facts)
        if facts.matrix in rule.matrices and change is not None and (name in fired) != bool(change or later):
            found.append(f"{name}: {'fires' if name in fired else 'is silent'}")
    ours = dataclasses.asdict(engine.resolved(facts))
    theirs = {name: real[name] for name in ours}
    theirs["sizes"] = theirs["sizes"] if theirs["mode"] != "NONE" else []
    return found + [f"{name}: {ours[name]} for {theirs[name]}" for name in ours if ours[name] != theirs[name]]


def differing(judged) -> Iterator[tuple[int, list[str]]]:
    """The numbers of cases on which the two differ, and in what."""
    _, facts, answer = judged
    for number, one in enumerate(zip(facts, answer["outcomes"], strict=True)):
        if texts := disagreements(*one):
            yield number, texts


def test_rollouts_are_judged_as_the_real_code_does(judged):
    found, changes = dict(differing(judged)), cases()
    shown = "\n".join(f"{changes[number]}: {texts}" for number, texts in found.items())
    assert not found, f"{len(found)} of {len(changes)} differ:\n{shown}"


def test_the_cases_show_every_refusal_and_change(judged):
    """So that the test above says something of each rule."""
    matrix, facts, answer = judged
    counts = Counter("refused" if "refused" in real else real["mode"] for real in answer["outcomes"])
    assert len(facts) >= 200 and min(counts[name] for name in ("refused", "PIECEWISE", "NONE")) >= 15, counts
    fired = {name for one in facts for name, rule in JUDGED.items() if next(rule.findings(one), None)}
    assert fired == {name for name, rule in JUDGED.items() if matrix in rule.matrices}


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Commit)])
def test_each_difference_of_the_two_commits_counts(judged, monkeypatch, name):
    matrix, commit = judged[0], engine.COMMITS[judged[0]]
    flipped = dataclasses.replace(commit, **{name: not getattr(commit, name)})
    monkeypatch.setitem(engine.COMMITS, matrix, flipped)
    assert next(differing(judged), None)


def test_names_are_those_that_are_read(judged):
    matrix, _, answer = judged
    names = answer["names"]
    assert set(names["engine"]) == arguments.ENGINE_ARGUMENTS
    assert set(names["compilation"]) == arguments.COMPILATION_KEYS
    assert {"enabled", *names["scheduler"]} == arguments.SCHEDULER_KEYS
    assert set(names["torchair"]) == arguments.TORCHAIR_KEYS[matrix]
    sources = [path.read_text() for path in Path(answer["vllm_ascend"]).rglob("*.py")]
    read_there = {name for text in sources for name in re.findall(r'additional_config\.get\(\s*"(\w+)"', text)}
    assert read_there == arguments.ADDITIONAL_KEYS[matrix]
