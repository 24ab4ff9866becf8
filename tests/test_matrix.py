"""matrix.toml says what the project promises, and a mistake in it is named by line and key."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import matrix
from errors import UserError

TEXT = matrix.MATRIX_FILE.read_text(encoding="utf-8")
PERFORMANCE = {
    "hdk": "25.2.1",
    "cann": "8.3.RC1",
    "python": "3.11",
    "torch": "2.7.1",
    "torch-npu": "2.7.1",
    "verl": "21271aabb90b074d943e7445525cabfec9f316f4",
    "vllm": "b8b302cde434df8c9289a2b465406b47ebab1c2d",
    "vllm-ascend": "15b2e5c9959a22e326f132b6964e10f9d3c7e26a",
    "mindspeed": "35da6ac393b125658733651958301ff94be0da0e",
    "megatron-lm": "a845aa7e12b3a117e24c2352b9e3e60bad2e3a17",
    "tensordict": "0.10.0",
    "torchvision": "0.22.1",
    "transformers": "4.57.1",
    "ray": "2.46.0",
}
COMMERCIAL = PERFORMANCE | {
    "verl": "796871d7d092f7cbc6a64e7f4a3796f7a2217f5e",
    "vllm": "38217877aa70041c0115ee367b75197af9cbc5ad",
    "vllm-ascend": "1de16ead8eecfec8903ec1b330b27a4fa2593c35",
    "mindspeed": "1cdd0abd75e40936ad31721c092f57c695dd72c4",
    "transformers": "4.55.0",
}
CPU = {
    "verl": "0.6.0",
    "megatron-core": "0.12.1",
    "vllm": "0.11.0",
    "vllm-ascend": "0.11.0rc1",
    "tensordict": "0.10.0",
    "ray": "2.46.0",
    "torch": "2.13.0+cpu",
}


def mistake(tmp_path: Path, old: str, new: str) -> str:
    """The one-line error after an edit of the real file."""
    assert TEXT.count(old) >= 1, old
    path = tmp_path / "matrix.toml"
    path.write_text(TEXT.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(UserError) as raised:
        matrix.load("cpu", path)
    assert raised.value.code == 2
    message = str(raised.value)
    assert "\n" not in message
    return message


def line_of(text: str) -> int:
    return TEXT[: TEXT.index(text)].count("\n") + 1


def test_the_matrices_are_these():
    assert matrix.names() == ["performance", "commercial", "cpu"]


@pytest.mark.parametrize(("name", "expected"), [("performance", PERFORMANCE), ("commercial", COMMERCIAL), ("cpu", CPU)])
def test_versions(name, expected):
    loaded = matrix.load(name)
    for component, value in expected.items():
        one = loaded.component(component)
        assert value in (one.commit, one.version), component


def test_commercial_differs_from_performance_only_where_it_says_so():
    performance, commercial = matrix.load("performance"), matrix.load("commercial")
    assert performance.components.keys() == commercial.components.keys()
    differing = {name for name, one in performance.components.items() if commercial.component(name) != one}
    assert differing == {"verl", "vllm", "vllm-ascend", "mindspeed", "transformers"}
    assert commercial.requirements == performance.requirements and commercial.lock == performance.lock


def test_cpu_has_no_mindspeed_and_says_why():
    one = matrix.load("cpu").component("mindspeed")
    assert one.install == "absent" and one.version is None and one.commit is None and one.why


def test_every_component_says_where_its_value_comes_from():
    for name in matrix.names():
        for key, one in matrix.load(name).components.items():
            assert one.repository and one.ref and one.source, f"{name}.{key}"


def test_no_version_is_written_elsewhere():
    """Commits and exact versions of components stay in matrix.toml and in what is made from it."""
    root = matrix.MATRIX_FILE.parent
    listed = subprocess.run(["git", "-C", root, "ls-files"], capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    commits = [one.commit for name in matrix.names() for one in matrix.load(name).components.values() if one.commit]
    allowed = {"matrix.toml", "tests/test_matrix.py"}
    # each file of the schema says of which commit it is, and matrix.toml chooses among them; recorded machines say what
    # they have, and a fit one has a matrix's commits
    own = ("recipes/schema/data/", "tests/checks/machines/")
    for file in set(listed.stdout.split("\n")) - allowed - {""}:
        if file.startswith(own):
            continue
        try:
            text = (root / file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        assert not [commit for commit in commits if commit in text], file


def test_unknown_names():
    with pytest.raises(UserError, match=r"unknown matrix .nope.: matrix\.toml has performance, commercial, cpu"):
        matrix.load("nope")
    with pytest.raises(UserError, match="matrix cpu has no component flash; it has python, torch"):
        matrix.load("cpu").component("flash")


VERL = 'commit = "21271aabb90b074d943e7445525cabfec9f316f4"'


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (VERL, 'commit = "21271aa"', "verl.commit: expected a full commit, 40 hexadecimal digits, found '21271aa'"),
        (VERL, "commit = 21271", "performance.components.verl.commit: expected a text, found 21271"),
        ('cutoff = "2025-11-15"', 'cutoff = "tomorrow"', "cpu.lock.cutoff: expected a date, such as 2025-11-15"),
        ('cutoff = "2025-11-15"', 'cutoff = "2025-11-31"', "cpu.lock.cutoff: expected a day of the calendar"),
        (
            'requires = [\n    "einops", ',
            'requires = [\n    "einops >= 0.8", ',
            "megatron-lm.requires.0: expected a requirement, such as numpy<2, found 'einops >= 0.8'",
        ),
        (
            'sha256 = ["a168',
            'sha256 = ["',
            "performance.lock.elsewhere.x86_64.torch.sha256.0: expected a sha256, 64 hexadecimal digits",
        ),
        ('extends = "performance"', 'extends = "cpuu"', "commercial.extends: expected one of performance, cpu"),
        (
            'numpy = { version = "1.26.4"',
            'numpy = { version = "<2"',
            "cpu.requirements.numpy.version: expected one exact",
        ),
        ('x86_64 = ["67', 'x86_64 = ["', "cpu.lock.torch.x86_64.0: expected a sha256, 64 hexadecimal digits"),
        (
            'machines = ["x86_64", "aarch64"]',
            'machines = "x86_64"',
            "cpu.lock.machines: expected a list, found 'x86_64'",
        ),
        ('version = "25.2.1"', 'verison = "25.2.1"', "performance.components.hdk.verison: unknown key, found '25.2.1'"),
        ('title = "tuned for throughput"', 'title = "tuned', "performance.title: not TOML"),
        ('install = "vendor"', 'install = "hope"', "base.install: expected 'vendor', 'git', 'index', 'sdist'"),
    ],
)
def test_a_mistake_is_named_by_line_and_key(tmp_path, old, new, expected):
    message = mistake(tmp_path, old, new)
    assert message.startswith(f"matrix.toml:{line_of(old)}: ")
    assert expected in message


def test_a_missing_key_is_named_at_its_table(tmp_path):
    message = mistake(tmp_path, 'cutoff = "2025-11-15"\n', "")
    assert message == f"matrix.toml:{line_of('[cpu.lock]')}: cpu.lock.cutoff: missing"


def test_a_key_that_a_table_without_a_line_of_its_own_lacks(tmp_path):
    """Only [cpu.lock.override] is left to say where [cpu.lock] was."""
    begin, end = TEXT.index("[cpu.lock]"), TEXT.index("[cpu.lock.override]")
    message = mistake(tmp_path, TEXT[begin:end], "")
    assert message == f"matrix.toml:{line_of('[cpu.lock]')}: cpu.lock.cutoff: missing"


def test_a_component_without_what_it_installs(tmp_path):
    message = mistake(tmp_path, f"{VERL}\n", "")
    assert message.startswith(f"matrix.toml:{line_of('[performance.components.verl]')}: ")
    assert "install = 'git' needs a commit" in message


def test_no_file_and_no_text(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        matrix.load("cpu", tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="cannot be read"):
        matrix.load("cpu", tmp_path / "binary.toml")


@given(st.data())
def test_no_edit_ends_in_another_exception(tmp_path_factory, data):
    """Whatever is cut out of the file, the outcome is a matrix or one line about the file."""
    begin = data.draw(st.integers(0, len(TEXT)))
    end = data.draw(st.integers(begin, min(begin + 200, len(TEXT))))
    insert = data.draw(st.sampled_from(["", "[", "]", '"', "=", "\n", "5", "x = 1\n", "[a]\n", "{}"]))
    path = tmp_path_factory.mktemp("edited") / "matrix.toml"
    path.write_text(TEXT[:begin] + insert + TEXT[end:], encoding="utf-8")
    try:
        matrix.load("cpu", path)
    except UserError as error:
        assert str(error).startswith(("matrix.toml:", "unknown matrix"))
        assert "\n" not in str(error)


def test_errors_do_not_need_the_real_file(tmp_path):
    """The command line shows the line, not a traceback."""
    for name in ("matrix.py", "errors.py"):
        (tmp_path / name).write_text((matrix.MATRIX_FILE.parent / name).read_text())
    (tmp_path / "matrix.toml").write_text("[cpu]\ntitle = 5\n")
    code = "import matrix\nfrom errors import UserError\ntry: matrix.load('cpu')\nexcept UserError as e: print(e)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "matrix.toml:2: cpu.title: expected a text, found 5\n"
