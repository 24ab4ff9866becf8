"""Half-written checkpoints are told from complete ones, whatever part is missing or cut off."""

import sys
from pathlib import Path

import pytest

from recipes import checkpoints

sys.path.append(str(Path(__file__).resolve().parent / "fake_verl" / "verl" / "trainer"))
import main_ppo as fake


@pytest.fixture
def folder(tmp_path):
    """Checkpoints of steps 2 and 4, and of step 10 to tell numbers from texts."""
    for step in (2, 10, 4):
        fake.save(tmp_path, step)
    return tmp_path


PARTS = [
    "actor/dist_ckpt/common.pt",
    "actor/dist_ckpt/__0_0.distcp",
    "actor/dist_ckpt/.metadata",
    "actor/dist_ckpt/metadata.json",
    "data.pt",
]


def test_the_newest_complete_one_is_chosen(folder):
    chosen, skipped = checkpoints.latest(checkpoints.inspect(folder))
    assert chosen.step == 10 and skipped == []
    assert checkpoints.latest(checkpoints.inspect(folder / "nowhere")) == (None, [])


@pytest.mark.parametrize("part", PARTS)
def test_one_that_lacks_a_part_is_passed_over_and_named(folder, part):
    (folder / "global_step_10" / part).unlink()
    chosen, skipped = checkpoints.latest(checkpoints.inspect(folder))
    assert chosen.step == 4
    assert [one.step for one in skipped] == [10]
    assert len(skipped[0].faults) == 1 and f"{Path(part).name} is missing" in skipped[0].faults[0]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("kept", [0.0, 0.5, 0.95])
def test_one_with_a_part_cut_off_is_passed_over(folder, part, kept):
    file = folder / "global_step_10" / part
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * kept)])
    chosen, skipped = checkpoints.latest(checkpoints.inspect(folder))
    assert chosen.step == 4 and Path(part).name in skipped[0].faults[0]


def test_a_critic_counts_where_there_is_one(folder):
    fake.save(folder / "critic_of", 10)
    (folder / "critic_of" / "global_step_10" / "actor").rename(folder / "global_step_10" / "critic")
    assert checkpoints.inspect(folder)[0].faults == ()
    (folder / "global_step_10" / "critic" / "dist_ckpt" / "metadata.json").unlink()
    assert checkpoints.inspect(folder)[0].faults == ("critic/dist_ckpt/metadata.json is missing",)


def test_other_folders_are_no_checkpoints(folder):
    for name in ("global_step_x", "global_step_7.old", "global_step_"):
        (folder / name).mkdir()
    (folder / "global_step_99").touch()
    assert [one.step for one in checkpoints.inspect(folder)] == [10, 4, 2]


def test_reading_an_index_runs_nothing_that_it_names(tmp_path):
    file = tmp_path / ".metadata"
    # a pickle that would call os.mkdir("…/made") when loaded
    made = tmp_path / "made"
    file.write_bytes(b"cos\nmkdir\n(V" + str(made).encode() + b"\ntR.")
    list(checkpoints.distributed_faults(tmp_path))
    assert not made.exists()


def test_the_tracker_names_the_chosen_step(folder):
    (folder / checkpoints.TRACKER).write_text("")  # as a kill in the middle of writing it leaves it
    checkpoints.point_to(folder, checkpoints.inspect(folder)[1])
    assert (folder / checkpoints.TRACKER).read_text() == "4"
