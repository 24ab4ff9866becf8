"""What the build writes down is what the doctor reads: this environment, described as if it were an image's."""

import json

import pytest

import manifest
from image.steps import describe
from recipes.doctor import Asked, run


@pytest.fixture
def rows(tmp_path, monkeypatch, capsys):
    """The doctor's checks of this environment by id, after a build of the matrix has described it, changed or not."""
    # Judging patches takes seconds, and has tests of its own.
    monkeypatch.setattr(describe, "patches", lambda matrix: [])
    monkeypatch.setattr("recipes.doctor.patch_states", lambda matrix: [])

    def judged(matrix: str, **change) -> dict[str, dict]:
        describe.describe(matrix, str(tmp_path))
        file = tmp_path / "manifest.json"
        document = json.loads(file.read_text())
        file.write_text(json.dumps({**document, **{key: {**document[key], **value} for key, value in change.items()}}))
        monkeypatch.setenv(manifest.VARIABLE, str(file))
        capsys.readouterr()
        run(Asked(as_json=True, matrix=matrix))
        (machine,) = json.loads(capsys.readouterr().out)["machines"]
        return {row["id"]: row for row in machine["checks"]}

    return judged


def test_an_environment_is_as_it_was_described(rows):
    found = rows("cpu")
    assert {name: found[f"image.{name}"]["status"] for name in ("matrix", "packages", "added", "components")} == {
        "matrix": "pass", "packages": "pass", "added": "pass", "components": "pass",
    }  # fmt: skip


def test_another_environment_than_was_described_is_told(rows):
    """Packages of the index are not the commits of the performance matrix."""
    found = rows("performance", packages={"invoke": "0.0.1"})
    assert found["image.packages"]["findings"][0]["expected"] == "invoke 0.0.1"
    told = [finding["expected"].split()[0] for finding in found["image.components"]["findings"]]
    assert told == ["megatron-lm", "verl", "vllm", "vllm-ascend"]
