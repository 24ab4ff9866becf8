"""The recorded keys of verl, MindSpeed and Megatron: against the installed packages; the generator on small trees."""

import dataclasses
import importlib
import json
import subprocess

import pytest
from omegaconf import OmegaConf

import matrix as matrices
from errors import UserError
from recipes import keys, schema
from recipes.compose import verl_configs, verl_defaults
from recipes.schema import generate, mindspeed

MEGATRON = {
    "megatron": "megatron.core.transformer.TransformerConfig",
    "megatron.mla": "megatron.core.transformer.transformer_config.MLATransformerConfig",
    "megatron.ddp": "megatron.core.distributed.DistributedDataParallelConfig",
    "megatron.optimizer": "megatron.core.optimizer.OptimizerConfig",
}
NPU = ("performance", "commercial")


def test_the_installed_verl_has_the_recorded_keys_and_defaults():
    recorded = {key: field.default for key, field in schema.load("verl", "cpu").items() if field.listed}
    assert recorded == keys.leaves(verl_defaults("cpu"))
    assert verl_configs().is_dir()


def test_a_listed_key_composes_to_its_recorded_default():
    config = verl_defaults("commercial")
    for key, field in schema.load("verl", "commercial").items():
        if field.listed and "${" not in str(field.default) and field.default != "???":
            assert OmegaConf.select(config, key) == field.default, key


@pytest.mark.parametrize("project", MEGATRON)
def test_megatrons_classes_have_the_recorded_fields(project):
    module, _, name = MEGATRON[project].rpartition(".")
    real = {field.name: field for field in dataclasses.fields(getattr(importlib.import_module(module), name))}
    recorded = schema.load(project, "cpu")
    assert recorded.keys() == real.keys()
    for key, field in real.items():
        plain = field.default if isinstance(field.default, bool | int | float | str) else None
        if plain is not None:
            assert recorded[key].default == plain, key


def test_megatron_is_the_same_commit_in_all_matrices():
    assert (
        schema.load("megatron", "performance")
        == schema.load("megatron", "cpu")
        == schema.load("megatron", "commercial")
    )


@pytest.mark.parametrize(
    ("matrix", "key", "known"),
    [
        ("performance", "actor_rollout_ref.rollout.expert_parallel_size", True),
        ("commercial", "actor_rollout_ref.rollout.expert_parallel_size", False),
        ("commercial", "ray_init.num_cpus", True),
        ("performance", "ray_init.num_cpus", False),
    ],
)
def test_verls_keys_differ_between_the_commits(matrix, key, known):
    assert (key in schema.load("verl", matrix)) is known


def test_defaults_that_differ_between_the_commits():
    new, old = (schema.load("verl", matrix) for matrix in NPU)
    etp = "actor_rollout_ref.actor.megatron.expert_tensor_parallel_size"
    eager = "actor_rollout_ref.rollout.enforce_eager"
    assert (new[etp].default, old[etp].default) == (1, None)
    assert (new[eager].default, old[eager].default) == (False, True)
    assert new[etp].type == "Optional[int]"


def test_mindspeeds_arguments():
    new, old = (schema.load("mindspeed", matrix) for matrix in NPU)
    assert sum(field.listed for field in new.values()) == 103 and sum(field.listed for field in old.values()) == 99
    assert new["use_fused_rotary_pos_emb"] == schema.Field("bool", False)
    assert "ulysses_cp_algo" in new["context_parallel_algo"].choices  # added by another feature than the argument's
    assert not new["use_flash_attn"].listed  # read without being registered
    assert "use_fused_rmsnrom" not in new
    assert schema.load("mindspeed", "cpu") == {}  # not on the package index


def test_every_data_file_belongs_to_a_commit_of_a_matrix():
    wanted = {}
    for name in matrices.names():
        components = matrices.load(name).components
        for component in ("verl", "mindspeed", "megatron-lm", "megatron-core"):
            found = components.get(component)
            if found and found.install != "absent":
                project = component.replace("megatron-core", "megatron-lm")
                wanted[schema.file_name(project, found.commit)] = found.commit
    assert {path.name for path in schema.DATA.glob("*.json")} == wanted.keys()
    for name, commit in wanted.items():
        assert json.loads((schema.DATA / name).read_text())["commit"] == commit


def test_data_files_hold_names_types_defaults_and_choices_only():
    for path in schema.DATA.glob("*.json"):
        for table in json.loads(path.read_text())["tables"].values():
            for key, entry in table.items():
                assert entry.keys() <= {"type", "default", "choices", "listed"}, key
                assert "\n" not in json.dumps(entry) and len(str(entry["default"])) < 120, key


def test_a_commit_without_data_says_how_to_make_it(monkeypatch, tmp_path):
    monkeypatch.setattr(schema, "DATA", tmp_path)
    with pytest.raises(UserError) as caught:
        schema.load.__wrapped__("verl", "performance")
    assert "verl-21271aa.json" in str(caught.value) and "recipes.schema.generate verl" in str(caught.value)
    with pytest.raises(UserError):
        schema.load.__wrapped__("verl", "perfromance")


FEATURE = '''
from mindspeed.features_manager.feature import MindSpeedFeature

class Wanted(MindSpeedFeature):
    """{doc}"""
    def __init__(self):
        super().__init__('the-gate', 2)

    def register_args(self, parser):
        group = parser.add_argument_group(title=self.feature_name)
        group.add_argument("--a-number", type=int, default=2 * 512, help="{doc}")
        group.add_argument("--a-choice", choices=["x"], default="x")
        group.add_argument("--some", nargs="+", type=int)

    def validate_args(self, args):
        assert args.read_only or getattr(args, "by_name", None)

class Other(MindSpeedFeature):
    def register_args(self, parser):
        self.add_parser_argument_choices_value(parser, "--a-choice", "y")

class Unused(MindSpeedFeature):
    def register_args(self, parser):
        parser.add_argument("--never", action="store_true")
'''
ENTRY = "from mindspeed.features_manager.one import Wanted, Other, Unused\nFEATURES = [Wanted(), Other()]\n"
EXPECTED = {
    "a_choice": {"type": "str", "default": "x", "choices": ["x", "y"]},
    "a_number": {"type": "int", "default": 1024},
    "by_name": {"type": "", "default": None, "listed": False},
    "read_only": {"type": "", "default": None, "listed": False},
    "some": {"type": "list[int]", "default": None},
    "the_gate": {"type": "", "default": None, "listed": False},
}


@pytest.fixture
def tree(tmp_path):
    """A checkout of a small MindSpeed, which is never imported: its modules do not exist here."""
    folder = tmp_path / "tree" / mindspeed.FOLDER
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(ENTRY)
    (folder / "one.py").write_text(FEATURE.format(doc="a sentence"))
    return tmp_path / "tree"


def test_the_generator_reads_a_folder(tree):
    tables = generate.generate("mindspeed", str(tree), None)
    assert tables == {"arguments": EXPECTED}
    assert "sentence" not in generate.text("mindspeed", "0" * 40, tables)


def test_the_generator_reads_a_commit_and_not_the_work_tree(tree):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
        return subprocess.run(
            ["git", *identity, *arguments], cwd=tree, check=True, capture_output=True, text=True
        ).stdout

    git("init")
    git("add", ".")
    git("commit", "-m", "one")
    commit = git("rev-parse", "HEAD").strip()
    (tree / mindspeed.ENTRY).write_text("")
    assert generate.generate("mindspeed", str(tree), commit) == {"arguments": EXPECTED}
    assert generate.generate("mindspeed", str(tree / ".git"), commit) == {"arguments": EXPECTED}
    with pytest.raises(UserError) as caught:
        generate.generate("mindspeed", str(tree), "0" * 40)
    assert "0" * 40 in str(caught.value)


def test_the_generator_tells_where_it_found_nothing(tmp_path, capsys):
    assert generate.main(["mindspeed", str(tmp_path), "0" * 40]) == 2
    assert "expected files below mindspeed/features_manager" in capsys.readouterr().err


@pytest.mark.parametrize("project", ["verl", "megatron-lm"])
def test_generating_from_the_installed_package_gives_the_data_file(project, capsys):
    component = "megatron-core" if project == "megatron-lm" else project
    commit = matrices.load("cpu").component(component).commit
    assert generate.main([project, "installed", commit, "--check"]) == 0, capsys.readouterr().out


def test_check_sees_a_data_file_that_is_out_of_date(monkeypatch, tmp_path, capsys):
    commit = matrices.load("cpu").component("megatron-core").commit
    name = schema.file_name("megatron-lm", commit)
    (tmp_path / name).write_text((schema.DATA / name).read_text().replace('"sequence_parallel"', '"sequence_paralel"'))
    monkeypatch.setattr(generate, "DATA", tmp_path)
    assert generate.main(["megatron-lm", "installed", commit, "--check"]) == 1
    assert "generate it again" in capsys.readouterr().out
