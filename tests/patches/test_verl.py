"""What each patch of verl is worth: the fault in the installed verl 0.6.0 without it, and its absence with it."""

import asyncio
import logging
import os
import pickle
import sys
from concurrent.futures import Future
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from patches.places import place
from tests.patches.upstream_code import added, apply, definition, statements, targets

WORKERS = "verl.workers.megatron_workers"
TRAINER = "verl.trainer.ppo.ray_trainer"
SPMD = "verl.workers.rollout.vllm_rollout.vllm_rollout_spmd"
DAPO_PATH = "recipe/dapo/dapo_ray_trainer.py"
DAPO = """
import torch


class RayDAPOTrainer:
    def fit(self):
        from omegaconf import OmegaConf

        for batch_dict in self.train_dataloader:
            gen_batch = gen_batch.repeat(repeat_times=self.config.actor_rollout_ref.rollout.n, interleave=True)
            new_batch = new_batch.repeat(repeat_times=self.config.actor_rollout_ref.rollout.n, interleave=True)
            new_batch = new_batch.union(gen_batch_output)
"""


@pytest.fixture
def copies(installed):
    """Roots with what a patch edits: as it is installed, and patched."""

    def make(name: str):
        root = installed(*targets(name), "verl", "verl.utils")
        yield root
        apply(name, root)
        yield root

    return make


@pytest.fixture(scope="module")
def batch():
    """Makes a DataProto of tensors and others."""
    from verl.protocol import DataProto

    def make(tensors=None, **others):
        return DataProto.from_dict(
            tensors or {}, {name: np.array(value, dtype=object) for name, value in others.items()}
        )

    return make


class TestRolloutSeeds:
    """Random states of rollout and trainer, through verl's own rollout_mode and trainer_mode."""

    @staticmethod
    def _samples(root, rank: int) -> tuple[float, float, float]:
        """What a rank draws: in its first and second rollout, and in training between them."""
        random = SimpleNamespace(get_rng_state=torch.get_rng_state, set_rng_state=torch.set_rng_state)
        names = {
            "get_torch_device": lambda: random,
            "os": os,
            "logger": None,
            "log_gpu_memory_usage": lambda *_, **__: 0,
        }
        names |= {"aggressive_empty_cache": lambda **_: 0, "set_expandable_segments": lambda _: 0}
        names |= {"per_tensor_generator": lambda *_: ()}
        model = SimpleNamespace(train=lambda: None)
        rollout = SimpleNamespace(update_weights=_nothing)
        worker = SimpleNamespace(
            config=SimpleNamespace(rollout=SimpleNamespace(free_cache_engine=False)),
            actor=SimpleNamespace(actor_module=[model]), rollout=rollout, bridge=None, _is_offload_param=False,
            actor_model_config=None, weight_converter=None, tf_config=None, layer_name_mapping=None,
        )  # fmt: skip
        torch.manual_seed(0)  # the trainer's, the same on all ranks
        worker.torch_random_states = torch.get_rng_state()
        torch.manual_seed(rank + 1000)  # as _build_rollout does, megatron_workers.py:418-423
        worker.gen_random_states = torch.get_rng_state()
        torch.set_rng_state(worker.torch_random_states)
        modes = [
            definition(root, WORKERS, f"ActorRolloutRefWorker.{mode}", names)
            for mode in ("rollout_mode", "trainer_mode")
        ]
        to_rollout, to_trainer = (lambda mode=mode: asyncio.run(mode(worker)) for mode in modes)
        to_trainer()
        to_rollout()
        first = torch.rand(()).item()
        to_trainer()
        training = torch.rand(()).item()
        to_rollout()
        return first, torch.rand(()).item(), training

    def test_ranks_draw_apart_and_train_alike(self, copies):
        roots = copies("verl/rollout-seeds")
        root = next(roots)
        assert self._samples(root, 0) == self._samples(root, 1), "the fault: both ranks draw the same"
        next(roots)
        ours, others = self._samples(root, 0), self._samples(root, 1)
        assert len({*ours[:2], *others[:2]}) == 4, "each rank its own, and the second rollout goes on from the first"
        assert ours[2] == others[2], "dropout of the trainer stays as it was"

    @pytest.mark.parametrize(
        "answers, stops",
        [
            ([[1] * 20, [1] * 20, [2] * 20, [2] * 20], True),
            ([[i] * 20 for i in range(4)], False),
            ([[1] * 8] * 4, False),
        ],
        ids=["copies", "distinct", "short"],
    )
    def test_copies_stop_the_run(self, batch, monkeypatch, answers, stops):
        rows = torch.tensor(answers)
        given = batch({"responses": rows, "attention_mask": torch.ones_like(rows)}, uid=["p"] * 4)
        rollout, guard = _Config(n=4, temperature=1.0), added("verl.utils.rl_distinct_answers")
        if not stops:
            return guard.check(given, rollout)
        with pytest.raises(RuntimeError, match=r"found 2\.00 distinct .*; 4 of 4 answers of .* verl/rollout-seeds"):
            guard.check(given, rollout)
        guard.check(given, rollout)  # the first batch only
        monkeypatch.setenv("VERL_DISTINCT_ANSWERS", "0")
        added("verl.utils.rl_distinct_answers").check(given, rollout)

    def test_padding_does_not_make_answers_distinct(self, batch):
        rows = torch.tensor([[7] * 18 + [0, 0], [7] * 18 + [3, 4]])
        mask = torch.tensor([[1] * 18 + [0, 0]] * 2)
        given = batch({"responses": rows, "attention_mask": mask}, uid=["p"] * 2)
        assert added("verl.utils.rl_distinct_answers").count(given) == (1.0, 2, 2)


class TestBatchLayout:
    """The statements of the trainer that order rows, on batches of three prompts with four answers each."""

    @staticmethod
    def _step(root, batch, guard, text=lambda code: code, trainer=(TRAINER, "RayPPOTrainer.fit"), name="batch"):
        """Whether each answer meets its own prompt, after the trainer's statements; a row's prompt is its number.

        name: what the trainer calls its batch.
        """
        beginnings = "gen_batch = gen_batch.repeat", f"{name} = {name}.repeat", f"{name} = {name}.union(gen_batch"
        code = statements(root, *trainer, *beginnings, "rl_batch_layout.check")
        code = "\n".join(dict.fromkeys(text(code).splitlines()))
        numbers = torch.arange(3).unsqueeze(1)
        trainer = SimpleNamespace(config=_Config(actor_rollout_ref=_Config(rollout=_Config(n=4))))
        space = {"self": trainer, "rl_batch_layout": guard, "gen_batch": batch({"prompts": numbers})}
        space[name] = batch({"own": numbers}, uid=["0", "1", "2"])
        before, after = code.split("\n", 1)
        exec(before, space)
        prompts = space["gen_batch"].batch["prompts"]
        space["gen_batch_output"] = batch({"prompts": prompts, "attention_mask": torch.ones(12, 3, dtype=torch.long)})
        exec(after, space)
        rows = space[name]
        return [int(uid) for uid in rows.non_tensor_batch["uid"]] == rows.batch["prompts"].flatten().tolist(), rows

    def test_one_setting_orders_both_and_a_half_stops(self, copies, batch, monkeypatch):
        roots = copies("verl/batch-layout")
        root = next(roots)
        half = lambda code: code.replace("interleave=True", "interleave=False", 1)  # noqa: E731, as edited by hand
        assert self._step(root, batch, None)[0]
        assert not self._step(root, batch, None, half)[0], (
            "the fault: answers meet other prompts, and nothing is raised"
        )
        next(roots)
        for given in ("1", "0"):
            monkeypatch.setenv("VERL_ROLLOUT_INTERLEAVE", given)
            lined_up, rows = self._step(root, batch, added("verl.utils.rl_batch_layout"))
            together = rows.non_tensor_batch["uid"][:4].tolist() == ["0"] * 4
            assert lined_up and together == (given == "1")
        undone = lambda code: code.replace("interleave=rl_batch_layout.interleave()", "interleave=True", 1)  # noqa: E731
        with pytest.raises(RuntimeError, match=r"expected both copy by copy .* found 3 of 3 prompts"):
            self._step(root, batch, added("verl.utils.rl_batch_layout"), undone)

    def test_validation_is_left_alone(self, copies):
        before, after = (
            statements(root, TRAINER, "RayPPOTrainer._validate", "test") for root in copies("verl/batch-layout")
        )
        assert before == after and "interleave=True" in before

    @pytest.mark.parametrize("source", ["ours", "performance", "commercial"])
    def test_the_dapo_trainer_is_ordered_and_filtering_refused(
        self, request, write, installed, batch, monkeypatch, source
    ):
        """On a trainer of that shape, and on the exact commits' (verl's wheels have no recipes)."""
        text = DAPO
        if source != "ours":
            text = (request.getfixturevalue("upstream") / source / "verl" / DAPO_PATH).read_bytes()
        root = write({DAPO_PATH: text}, installed(TRAINER, "verl", "verl.utils"))
        trainer = {"trainer": ("recipe.dapo.dapo_ray_trainer", "RayDAPOTrainer.fit"), "name": "new_batch"}
        half = lambda code: code.replace("interleave=True", "interleave=False", 1)  # noqa: E731, as edited by hand
        assert not self._step(root, batch, None, half, **trainer)[0], "the fault"
        apply("verl/batch-layout", root)
        refusal = statements(root, *trainer["trainer"], "rl_batch_layout.refuse")
        algorithm = _Config(filter_groups=_Config(enable=True))
        space = {"self": SimpleNamespace(config=_Config(algorithm=algorithm))}
        for given in ("1", "0"):
            monkeypatch.setenv("VERL_ROLLOUT_INTERLEAVE", given)
            guard = space["rl_batch_layout"] = added("verl.utils.rl_batch_layout")
            lined_up, rows = self._step(root, batch, guard, **trainer)
            assert lined_up and (rows.non_tensor_batch["uid"][:4].tolist() == ["0"] * 4) == (given == "1")
            if given == "1":
                exec(refusal, space)
        with pytest.raises(ValueError, match="filtering would cut groups"):
            exec(refusal, space)
        undone = lambda code: code.replace("interleave=rl_batch_layout.interleave()", "interleave=True", 1)  # noqa: E731
        with pytest.raises(RuntimeError, match=r"expected both copy by copy .* found 3 of 3 prompts"):
            self._step(root, batch, added("verl.utils.rl_batch_layout"), undone, **trainer)

    def test_groups_that_would_be_cut_are_refused(self, monkeypatch):
        guard = added("verl.utils.rl_batch_layout")
        filtering = _Config(filter_groups=_Config(enable=True))
        guard.refuse_filter_groups(filtering)
        monkeypatch.setenv("VERL_ROLLOUT_INTERLEAVE", "0")
        guard.refuse_filter_groups(_Config(filter_groups=_Config(enable=False)))
        guard.refuse_filter_groups(_Config())
        with pytest.raises(ValueError, match="filtering would cut groups"):
            guard.refuse_filter_groups(filtering)
        monkeypatch.setenv("VERL_ROLLOUT_INTERLEAVE", "off")
        with pytest.raises(ValueError, match="expected 0 or 1, found 'off'"):
            guard.interleave()


class TestRealCompile:
    @pytest.fixture
    def mindspeed(self, monkeypatch):
        """Its place for originals, as MindSpeedPatchesManager keeps it at 35da6ac; torch.compile an identity."""
        real, identity = torch.compile, lambda function, **_: function
        kept = SimpleNamespace(patches_info={"torch.compile": SimpleNamespace(orig_func=real, is_applied=True)})
        module = ModuleType("mindspeed.patch_utils")
        module.MindSpeedPatchesManager = kept
        monkeypatch.setitem(sys.modules, "mindspeed.patch_utils", module)
        monkeypatch.setattr(torch, "compile", identity)
        return SimpleNamespace(real=real, identity=identity)

    def test_the_rollout_is_built_with_the_real_one(self, copies, mindspeed):
        guard, seen = added("verl.utils.rl_real_compile"), []
        worker = SimpleNamespace(_is_rollout=True, config=_Config(model=_Config()))
        worker._build_rollout = lambda **_: seen.append(torch.compile is mindspeed.real)
        for root in copies("verl/real-compile"):
            code = statements(root, WORKERS, "ActorRolloutRefWorker.init_model", "if self._is_rollout:")
            exec(
                code,
                {"self": worker, "real_compile": guard.real_compile, "logger": None, "log_gpu_memory_usage": _ignore},
            )
        assert seen == [False, True], "the fault, and its absence"
        assert torch.compile is mindspeed.identity

    def test_methods_of_the_async_engine_run_with_the_real_one(self, copies, mindspeed):
        guard, seen = added("verl.utils.rl_real_compile"), []

        async def method(*_):
            seen.append(torch.compile is mindspeed.real)

        for root in copies("verl/real-compile"):
            code = statements(root, SPMD, "vLLMAsyncRollout._loop_forever", "result = await", "with real_compile")
            loop = "async def loop(self, method, args, kwargs):\n    " + code.split("\nresult")[0].replace(
                "\n", "\n    "
            )
            space = {"real_compile": guard.real_compile}
            exec(loop, space)
            asyncio.run(space["loop"](SimpleNamespace(_execute_method=method), "load_model", (), {}))
        assert seen == [False, True]

    def test_errors_pass_and_the_identity_comes_back(self, mindspeed):
        real_compile = added("verl.utils.rl_real_compile").real_compile
        with pytest.raises(TypeError, match="of the body"), real_compile():
            raise TypeError("of the body")
        assert torch.compile is mindspeed.identity
        with real_compile(), real_compile():
            assert torch.compile is mindspeed.real
        assert torch.compile is mindspeed.identity

    def test_what_repatch_sets_inside_stays(self, mindspeed):
        other = lambda function: function  # noqa: E731
        with added("verl.utils.rl_real_compile").real_compile():
            torch.compile = other
        assert torch.compile is other

    def test_without_mindspeed_nothing_changes(self):
        before = torch.compile
        with added("verl.utils.rl_real_compile").real_compile():
            assert torch.compile is before
        assert torch.compile is before


def test_moments_exist_when_a_checkpoint_asks_for_them(copies):
    """Megatron lists the moments that exist: Adam's state when the list is made."""
    seen = []
    for root in copies("verl/resume-moments"):
        parameter = torch.nn.Parameter(torch.ones(2))
        adam = torch.optim.Adam([parameter])

        class Stop(Exception):
            pass

        def listed(*_, adam=adam, parameter=parameter):
            seen.append(sorted(adam.state[parameter]))
            raise Stop

        def init(optimizer, config, parameter=parameter):
            optimizer.state[parameter] = {"exp_avg": 0, "exp_avg_sq": 0}

        part = SimpleNamespace(optimizer=adam, config=None, init_state_fn=init)
        manager = SimpleNamespace(
            generate_state_dict=listed, optimizer=SimpleNamespace(chained_optimizers=[part]), should_load_model=True,
            should_load_optimizer=True, should_load_extra=True, use_dist_checkpointing=False,
        )  # fmt: skip
        module = "verl.utils.checkpoint.megatron_checkpoint_manager"
        names = {"get_dist_checkpoint_path": str, "os": os}
        load = definition(root, module, "MegatronCheckpointManager.load_checkpoint", names)
        with pytest.raises(Stop):
            load(manager, "/")
    assert seen == [[], ["exp_avg", "exp_avg_sq"]], "the fault, and its absence"


class TestEntropy:
    @pytest.mark.parametrize("asked", ["0", "1"])
    def test_old_log_probs_come_without_unless_asked(self, copies, batch, monkeypatch, asked):
        from verl.protocol import DataProto

        monkeypatch.setenv("VERL_OLD_LOG_PROB_ENTROPY", asked)
        seen = []

        def compute(data, calculate_entropy):
            seen.append(calculate_entropy)
            return torch.ones(2, 3), torch.ones(2, 3) if calculate_entropy else torch.Tensor()

        config = _Config(rollout=ROLLOUT)
        worker = SimpleNamespace(_is_actor=True, _is_offload_param=False, config=config)
        worker.actor = SimpleNamespace(compute_log_prob=compute)
        names = {
            "DataProto": DataProto,
            "rl_entropy": added("verl.utils.rl_entropy"),
            "aggressive_empty_cache": _ignore,
        }
        for root in copies("verl/log-prob-entropy"):
            made = definition(root, WORKERS, "ActorRolloutRefWorker.compute_log_prob", {**names, "logger": None})
            output = made(worker, batch({"input_ids": torch.ones(2, 3)}))
            metrics = self._logged(root, output, batch)
            assert set(metrics) == ({"actor/entropy"} if seen[-1] else set())
            assert list(output.batch.keys()) == ["old_log_probs"]
        assert seen == [True, asked == "1"], "hard-coded without the patch"

    @staticmethod
    def _logged(root, output, batch) -> dict:
        """The trainer's statements on the entropy."""
        code = statements(root, TRAINER, "RayPPOTrainer.fit", "if 'entropys' in", "entropys = old")
        if not code.startswith("if"):
            code = statements(
                root, TRAINER, "RayPPOTrainer.fit", "entropys = ", "response_masks = ", "loss_agg_mode = ",
                "entropy_agg = ", "old_log_prob_metrics = ", "metrics.update(old_", "old_log_prob.batch.pop",
            )  # fmt: skip
        else:
            code = code.split("\nentropys")[0]
        config = _Config(actor_rollout_ref=_Config(actor=_Config(loss_agg_mode="")))
        space = {"self": SimpleNamespace(config=config), "metrics": {}, "old_log_prob": output}
        space |= {
            "agg_loss": lambda loss_mat, **_: loss_mat.mean(),
            "batch": batch({"response_mask": torch.ones(2, 3)}),
        }
        exec(code, space)
        return space["metrics"]


def test_capture_sizes_reach_the_engine(copies, caplog):
    from omegaconf import ListConfig

    made = []
    for root in copies("verl/capture-sizes"):
        code = statements(
            root, SPMD, "vLLMRollout.__init__", "if not config.enforce_eager and cudagraph_capture_sizes:"
        )
        space = {
            "config": _Config(enforce_eager=False), "cudagraph_capture_sizes": [1, 2, 4], "ListConfig": ListConfig,
            "compilation_config": {}, "logger": logging.getLogger("verl"), "CompilationConfig": dict,
            "CompilationLevel": SimpleNamespace(PIECEWISE=3),
        }  # fmt: skip
        exec(code, space)
        made.append(space["compilation_config"].get("compilation_config", {}).get("cudagraph_capture_sizes"))
    assert made == [None, [1, 2, 4]]
    assert "must be a list, but got [1, 2, 4]" in caplog.text


@pytest.mark.parametrize("etp", [1, 2])
def test_experts_arrive_with_their_own_rows(copies, monkeypatch, etp):
    """gate and up of one expert, tp 2, ep 1: with expert tp 1 both ranks hold all of its rows, with 2 the half."""
    sizes = {"tensor_model": 2, "expert_model": 1, "expert_tensor": etp, "pipeline_model": 1}
    calls = {f"get_{name}_parallel_world_size": lambda size=size: size for name, size in sizes.items()}
    calls |= {f"get_{name}_parallel_group": lambda name=name: name for name in sizes}
    mpu = SimpleNamespace(**calls, get_pipeline_model_parallel_rank=lambda: 0)
    monkeypatch.setattr("megatron.core.parallel_state", mpu)
    monkeypatch.setattr("megatron.core.mpu", mpu)
    weight = torch.nn.Parameter(torch.arange(8.0 * 3).view(8, 3)[: 8 // etp])
    weight.tensor_model_parallel = True
    name = "decoder.layers.0.mlp.experts.linear_fc1.weight0"
    model = SimpleNamespace(named_parameters=lambda: [(name, weight)], state_dict=dict)

    def gather(outputs, tensor, group):
        assert len(outputs) == sizes[group]
        for output in outputs:
            output.copy_(tensor)

    distributed = SimpleNamespace(
        get_world_size=lambda group: sizes[group], all_gather=gather,
        all_gather_object=lambda object_list, obj, group: object_list.__setitem__(0, obj),
    )  # fmt: skip
    names = {
        "torch": SimpleNamespace(distributed=distributed, empty_like=torch.empty_like, cat=torch.cat),
        "unwrap_model": lambda model: model, "normalize_model_name": lambda name, *_: name,
        "broadcast_str_from_megatron_pp": lambda x: x, "broadcast_from_megatron_pp": lambda x: x,
        "tp_utils": SimpleNamespace(is_tensor_parallel_param=lambda _: True),
    }  # fmt: skip
    converter = SimpleNamespace(
        mcore_config=SimpleNamespace(num_moe_experts=1), hf_config=None,
        convert_param=lambda name, params: (["gate", "up"], params),
    )  # fmt: skip
    rows = []
    for root in copies("verl/expert-gather"):
        names["default_tp_concat_fn"] = definition(root, "verl.utils.megatron_utils", "default_tp_concat_fn", names)
        generate = definition(root, "verl.utils.megatron_utils", "per_tensor_generator", names)
        mapping = {"qkv_layer_name": "self_attention.linear_qkv.", "gate_proj_layer_name": "linear_fc1."}
        made = generate([model], SimpleNamespace(tie_word_embeddings=False), converter, None, mapping)
        rows.append([len(param) for _, param in made])
    assert rows == ([[8, 8], [4, 4]] if etp == 1 else [[4, 4], [4, 4]]), "8 rows: gate 4, up 4"


def test_the_async_executor_takes_what_vllm_passes(copies):
    import zmq

    answer = SimpleNamespace(send=lambda *_: None, recv=lambda: pickle.dumps("tokens"))
    step = definition(place(None).folder("vllm"), "vllm.v1.executor.abstract", "Executor.execute_model", {})
    results = []
    for root in copies("verl/async-non-block"):
        rpc = definition(
            root, "verl.workers.rollout.vllm_rollout.vllm_async_server",
            "ExternalZeroMQDistributedExecutor.collective_rpc", {"pickle": pickle, "zmq": zmq},
        )  # fmt: skip
        executor = SimpleNamespace(sockets=[answer])
        executor.collective_rpc = lambda *args, rpc=rpc, executor=executor, **kwargs: rpc(executor, *args, **kwargs)
        for non_block in (False, True):
            try:
                results.append(step(executor, "schedule", non_block))
            except TypeError as error:
                results.append(str(error).split()[-1])
    assert results[:3] == ["'non_block'", "'non_block'", "tokens"]
    assert isinstance(results[3], Future) and results[3].result(timeout=0) == "tokens"


def test_padding_comes_off_and_on_as_in_verls_own(monkeypatch):
    """Against verl 0.6.0's verl/utils/npu_utils.py, values and gradients."""
    from verl.utils import npu_utils

    ours = added("verl.utils.rl_padding")
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]])
    unused = torch.tensor([[0, 0, 1, 0], [0, 0, 0, 0]])
    found = []
    for module in (ours, npu_utils):
        values = torch.arange(2 * 4 * 3.0).view(2, 4, 3).requires_grad_()
        tokens, *rest = module.unpad_input(values, mask, unused)
        padded = module.pad_input(tokens * 2, rest[0], 2, 4)
        picked = module.index_first_axis(values.flatten(0, 1), torch.tensor([5, 0]))
        (padded.square().sum() + picked.sum()).backward()
        found.append((tokens, *map(torch.as_tensor, rest), padded, picked, values.grad))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other) and one.dtype == other.dtype
    with pytest.raises(ImportError):  # the fault, in the installed transformers
        exec("from transformers.integrations.npu_flash_attention import index_first_axis", {})


def test_a_plugin_that_does_not_take_effect_is_an_error(monkeypatch):
    plugin = added("verl.utils.rl_plugin")
    plugin.activate()  # not installed
    monkeypatch.setitem(sys.modules, "verl_npu", ModuleType("verl_npu"))
    monkeypatch.setattr(plugin, "find_spec", lambda name: name)
    with pytest.raises(AssertionError, match="expected it to give index_first_axis, pad_input, unpad_input"):
        plugin.activate()


def test_metrics_of_all_ranks_are_in_the_mean():
    """As update_actor returns them: lists over micro-batches, and numbers."""
    merged = added("verl.utils.rl_metrics").merged
    infos = [{"metrics": {"loss": [1.0, 3.0], "lr": 0.1}, "temperature": 1}, {"metrics": {"loss": [5.0], "lr": 0.1}}]
    assert merged(infos) == {"metrics": {"loss": [1.0, 3.0, 5.0], "lr": [0.1, 0.1]}, "temperature": 1}
    assert merged([{"temperature": 1}, {"temperature": 1}]) == {"temperature": 1}


@pytest.mark.parametrize("version, waits", [("0.9.1", True), ("0.10.0", False), ("0.11.0", False)])
def test_old_tensordicts_wait_for_the_device(monkeypatch, version, waits):
    import tensordict

    calls = []
    monkeypatch.setattr(tensordict, "__version__", version)
    monkeypatch.setattr(tensordict.base.TensorDictBase, "_sync_all", lambda _: calls.append("its own"))
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: calls.append("device"))
    added("verl.utils.rl_tensordict_sync").install()
    tensordict.TensorDict({"a": torch.ones(2, device=torch.accelerator.current_accelerator())}).to("cpu")
    assert calls == (["device"] if waits else ["its own"])


class _Config(SimpleNamespace):
    """A configuration with attributes and `get`."""

    def get(self, name, default=None):
        return getattr(self, name, default)


ROLLOUT = _Config(
    log_prob_micro_batch_size_per_gpu=1, log_prob_max_token_len_per_gpu=1, log_prob_use_dynamic_bsz=False,
    temperature=1.0,
)  # fmt: skip


async def _nothing(*_, **__):
    pass


def _ignore(*_, **__):
    pass
