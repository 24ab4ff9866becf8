"""The lock's entries for a machine, and the lines that a failed installation ends with."""

import subprocess
import sys

import pytest

from image.steps import packages
from image.steps.step import IMAGES, StepError, lock_file, run

LOCK = """# head
one==1.0 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
torch==2.7.1 ; platform_machine == 'aarch64' \\
    --hash=sha256:cc
torch==2.7.1+cpu ; platform_machine == 'x86_64' \\
    --hash=sha256:dd
"""


@pytest.mark.parametrize("machine, version, digest", [("aarch64", "2.7.1", "cc"), ("x86_64", "2.7.1+cpu", "dd")])
def test_entries_are_those_of_the_machine_with_all_their_hashes(machine, version, digest):
    one, torch = packages.entries(LOCK, machine)
    assert (one.name, one.version, one.machine) == ("one", "1.0", None)
    assert one.text == "one==1.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"
    assert (torch.version, torch.machine) == (version, machine) and torch.text.endswith(f"sha256:{digest}\n")
    assert packages.entries(LOCK)[0] == one and len(packages.entries(LOCK)) == 3


@pytest.mark.parametrize("matrix", IMAGES)
@pytest.mark.parametrize("machine", ["aarch64", "x86_64"])
def test_the_locks_have_the_tools_and_one_torch_for_each_machine(matrix, machine):
    names = [one.name for one in packages.entries(lock_file(matrix).read_text(), machine)]
    assert len(names) == len(set(names)) > 150
    assert {"torch", "torch-npu", *packages.TOOLS} <= set(names)


@pytest.mark.parametrize(
    "said, found",
    [
        ("x\n  Hash mismatch for `six==1.17.0`\n  Expected: a", "found Hash mismatch for `six==1.17.0`; "),
        ("error: No space left on device (os error 28)", "found error: No space left on device (os error 28); "),
        ("nobody knows this", "found nobody knows this; see the lines above"),
    ],
)
def test_a_failed_command_ends_in_one_line(said, found):
    with pytest.raises(StepError) as error:
        packages._call("the packages", [sys.executable, "-c", f"print({said!r}); raise SystemExit(1)"])
    assert str(error.value).startswith("expected the packages, ") and found in str(error.value)
    assert "\n" not in str(error.value)


def test_another_python_and_a_missing_lock_are_named(tmp_path):
    with pytest.raises(StepError, match=r"expected Python 2\.7 in the base image, found 3"):
        packages._check_python("2.7")
    with pytest.raises(StepError, match=r"expected requirements\.lock, found none"):
        packages._read(tmp_path / "requirements.lock")


def test_a_step_needs_no_package():
    """Steps that run before the lock is installed import the standard library only."""
    code = "import image.steps.sources, image.steps.packages, image.steps.tidy, image.steps.cpu, image.health, sys"
    code += "; print([m for m in ('pydantic', 'packaging', 'rich', 'invoke', 'yaml') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=packages.lock_file("performance").parent
    )
    assert done.stdout == "[]\n", done.stderr


def test_a_full_disk_while_writing_ends_in_one_line(capsys):
    def full():
        raise OSError(28, "No space left on device", "/x")

    assert run("tidy", full, []) == 1
    said = capsys.readouterr().err
    assert said.startswith("image: tidy: expected to write the image, found No space left on device (/x); free some")
