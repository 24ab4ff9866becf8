"""The command line: its verbs, its exit codes, its messages, and that it loads no more than it needs."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from invoke import Exit

ROOT = Path(__file__).resolve().parent.parent


def invoke(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "invoke", "--search-root", str(ROOT), *arguments]
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200", **environment}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)


def test_the_verbs():
    listed = {line.split()[0] for line in invoke("--list").stdout.splitlines()[2:] if re.match(r"  \S", line)}
    wanted = {"train", "data", "weights", "lock", "test", "bench", "recipes.list", "recipes.show", "recipes.diff"}
    assert wanted <= listed


def test_every_verb_says_what_it_does_and_what_its_arguments_mean():
    found = json.loads(invoke("--list", "--list-format=json").stdout)
    tasks = [task for group in [found, *found["collections"]] for task in group["tasks"]]
    assert tasks and all(task["help"] for task in tasks)
    for task in ("train", "lock", "test"):
        shown = invoke("--help", task).stdout
        for option in re.findall(r"^  (?:-\w(?: \S+)?, )?--\S+(.*)$", shown, re.MULTILINE):
            assert option.strip(), shown


def test_the_list_needs_none_of_the_stack():
    code = (
        "import sys\nfrom invoke.main import program\n"
        f"sys.argv = ['invoke', '--search-root', {str(ROOT)!r}, '--list']\n"
        "try: program.run()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'pydantic', 'rich', 'hydra', 'omegaconf', 'ray', 'numpy'}\n"
        "print('LOADED', sorted(sys.modules.keys() & heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "LOADED []" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["lock", "--matrix", "nope"], 2, "error: unknown matrix 'nope': matrix.toml has performance, commercial, cpu"),
        (["recipes.show", "smok"], 2, "did you mean smoke?"),
        (["recipes.diff", "smoke", "smok"], 2, "did you mean smoke?"),
        (["train", "--recipe", "smok"], 2, "did you mean smoke?"),
        (["data", "--recipe", "smok"], 2, "did you mean smoke?"),
    ],
)
def test_a_user_s_mistake_is_one_message(arguments, code, message, tmp_path):
    done = invoke(*arguments, cwd=tmp_path)
    assert done.returncode == code
    assert message in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "No idea what 'trian' is!"),
        (["train", "--recip", "smoke"], "No idea what '--recip' is!"),
        (["--nope"], "No idea what '--nope' is!"),
        (["--help", "trian"], "No idea what 'trian' is!"),
        (["recipes.show"], "required positional arguments: 'recipe'"),
        (["train", "--recipe"], "needed value"),
        (["train", "--nodes", "x"], "error: --nodes: expected a whole number, found 'x'"),
        (["lint", "--nodes", "x"], "error: --nodes: expected a whole number, found 'x'"),
        (["bench", "--steps", "1.5"], "error: --steps: expected a whole number, found '1.5'"),
    ],
)
def test_bad_arguments_of_invokew(arguments, message, tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "cli.py", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and done.stdout == ""
    assert message in done.stderr and len(done.stderr.splitlines()) == 1


def test_invokew_is_invoke(tmp_path):
    done = subprocess.run([sys.executable, ROOT / "cli.py", "--list"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.split() == invoke("--list").stdout.split()


@pytest.mark.parametrize("redirection", [">&-", "> /dev/full"])
def test_an_output_that_cannot_be_written_is_no_traceback(redirection):
    script = f"{shlex.quote(sys.executable)} cli.py recipes.show smoke {redirection}"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr
    assert done.returncode == {">&-": 0, "> /dev/full": 2}[redirection]


def test_a_terminal_without_the_letters_that_are_printed():
    done = invoke("recipes.show", "smoke", "recipes.list", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr


def test_recipes_as_json():
    rows = json.loads(invoke("recipes", "--json").stdout)
    smoke = next(row for row in rows if row["recipe"] == "smoke")
    assert smoke["matrices"] == ["cpu"] and smoke["hardware"] == "emulated" and smoke["purpose"]


def test_a_recipe_is_shown_as_verl_will_read_it(tmp_path):
    shown = yaml.safe_load(invoke("recipes.show", "smoke").stdout)
    assert shown["launch"]["matrix"] == "cpu"
    assert shown["actor_rollout_ref"]["actor"]["clip_ratio"] == 0.2  # from verl's defaults, not from the recipe


def test_the_difference_between_two_recipes(tmp_path):
    other = tmp_path / "other.yaml"
    text = (ROOT / "recipes" / "smoke.yaml").read_text()
    other.write_text(text.replace("train_batch_size: 8", "train_batch_size: 16"))
    assert invoke("recipes.diff", "smoke", "smoke").stdout == "smoke and smoke compose to the same\n"
    assert "  data.train_batch_size: 8 -> 16\n" in invoke("recipes.diff", "smoke", str(other)).stdout


@pytest.mark.parametrize("compiles", [True, False])
def test_the_test_command(monkeypatch, compiles):
    """It builds the emulated NPU, then hands its arguments to pytest; without a compiler it stops there."""
    import tasks

    started = []

    def run(command, **_):
        started.append(command[1:])
        return subprocess.CompletedProcess(command, 0 if compiles or "pytest" in command else 2)

    monkeypatch.setattr(subprocess, "run", run)
    code = None
    try:
        tasks.test.body(None, k="matrix", quick=True, args="-x --co 'a b'")
    except Exit as left:
        code = left.code
    assert started[0] == ["-m", "emulator.site"]
    if compiles:
        assert code is None
        assert started[1][:2] == ["-m", "pytest"]
        assert started[1][-7:] == ["-k", "matrix", "-m", "not slow", "-x", "--co", "a b"]
    else:
        assert code == 2 and len(started) == 1


def test_an_unexpected_error_keeps_its_traceback():
    """A defect of the project must not be dressed up as a mistake of the user."""
    import tasks

    @tasks.command
    def broken(_):
        """Fails."""
        raise RuntimeError("a defect")

    with pytest.raises(RuntimeError, match="a defect"):
        broken.body(None)
