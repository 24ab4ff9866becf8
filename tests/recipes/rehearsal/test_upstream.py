"""A tree of checkouts at the matrix's commits, and every way in which it is not one."""

import subprocess

import pytest

import matrix as matrices
from errors import UserError
from recipes.rehearsal import upstream


def git(folder, *arguments):
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def tree(tmp_path):
    """Four small repositories, and a matrix that names their commits."""
    commits = {}
    for name, (component, package) in upstream.REPOSITORIES.items():
        if name in upstream.OPTIONAL:
            continue
        folder = tmp_path / "tree" / name
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text("")
        git(folder, "init", "-q")
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", "one")
        commits[component] = git(folder, "rev-parse", "HEAD")
    real = matrices.load("performance")
    components = {
        name: part.model_copy(update={"commit": commits.get(name, part.commit)})
        for name, part in real.components.items()
    }
    return tmp_path / "tree", real.model_copy(update={"components": components})


def refusal(root, matrix):
    with pytest.raises(UserError) as raised:
        upstream.checked_out(root, matrix)
    return str(raised.value)


def test_a_tree_at_the_commits(tree):
    root, matrix = tree
    stack = upstream.checked_out(root, matrix)
    assert [path.name for path in stack.paths] == ["verl", "MindSpeed", "Megatron-LM", "vllm-ascend"]
    assert stack.parts["verl"] == matrix.component("verl").commit
    assert stack.parts["vllm"].startswith("0.11.0")
    assert "checked out" in stack.label and "NOT" not in stack.label


def test_another_commit_is_refused_with_both(tree):
    root, matrix = tree
    git(root / "verl", "commit", "-q", "--allow-empty", "-m", "two")
    found = git(root / "verl", "rev-parse", "HEAD")
    message = refusal(root, matrix)
    assert found in message and matrix.component("verl").commit in message and "--any-commit" in message
    assert "NOT the commits" in upstream.checked_out(root, matrix, any_commit=True).label


def test_local_edits_are_refused(tree):
    root, matrix = tree
    (root / "MindSpeed" / "mindspeed" / "__init__.py").write_text("edited = True\n")
    assert "edited file(s), mindspeed/__init__.py first" in refusal(root, matrix)


def test_a_missing_repository_is_named_with_its_clone(tree):
    root, matrix = tree
    (root / "vllm-ascend").rename(root / "elsewhere")
    message = refusal(root, matrix)
    assert "vllm-ascend" in message and "git clone" in message


def test_a_folder_that_is_no_checkout(tree):
    root, matrix = tree
    (root / "verl" / ".git").rename(root / "git")
    assert "no git checkout" in refusal(root, matrix)


def test_no_folder(tmp_path, tree):
    assert "expected a folder" in refusal(tmp_path / "nowhere", tree[1])


def test_the_installed_packages_are_named():
    assert upstream.installed().parts["verl"].startswith("0.6.0")
    assert upstream.installed().paths == ()
