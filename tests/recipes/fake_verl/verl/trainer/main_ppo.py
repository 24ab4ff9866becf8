"""A trainer with verl's command line, console lines and checkpoint layout. FAKE_* variables say how it behaves."""

import os
import pickle
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import yaml

# A helper that leaves its parent and its session, as Ray's daemons do, and does not care for SIGTERM.
STRAY = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.fork() and os._exit(0)
os.setsid()
time.sleep(600)
"""


class Metadata:
    """Pickles as torch's index of a distributed checkpoint does: an object with storage_data."""


class Place:
    """Pickles as torch's place of a tensor: relative_path, offset, length."""


def main() -> None:
    given = dict(argument.lstrip("+").split("=", 1) for argument in sys.argv[1:] if "=" in argument)
    config = yaml.safe_load((Path(sys.argv[2]) / f"{sys.argv[4]}.yaml").read_text())
    trainer = config["trainer"] | {key[8:]: value for key, value in given.items() if key.startswith("trainer.")}
    print(f"fake trainer, process {os.getpid()}", flush=True)
    Path(given["++ray_kwargs.ray_init._temp_dir".lstrip("+")]).mkdir(parents=True, exist_ok=True)
    for _ in range(int(os.environ.get("FAKE_STRAYS", 0))):
        subprocess.Popen([sys.executable, "-c", STRAY])
    first = 0
    if trainer["resume_mode"] == "resume_path":
        first = int(trainer["resume_from_path"].rsplit("_", 1)[1])
    print("Training from scratch" if not first else f"Setting global step to {first}", flush=True)
    for step in range(first + 1, trainer["total_training_steps"] + 1):
        time.sleep(float(os.environ.get("FAKE_STEP_SECONDS", 0.01)))
        if step == int(os.environ.get("FAKE_FAIL_AT", 0)):
            fail()
        if trainer["save_freq"] > 0 and step % trainer["save_freq"] == 0:
            save(Path(trainer["default_local_dir"]), step)
        print(
            f"\x1b[36m(TaskRunner pid=7)\x1b[0m step:{step} - critic/score/mean:{step / 10} - "
            f"response_length/mean:np.float64(12.5) - timing_s/gen:0.1 - timing_s/step:0.2 - actor/lr:1e-06",
            flush=True,
        )


def fail() -> None:
    print("(WorkerDict pid=8) ValueError: the first cause", flush=True)
    print("Traceback (most recent call last):\n  File 'x.py', line 1, in <module>")
    print("ray.exceptions.RayTaskError(RuntimeError): ray::TaskRunner.run() (pid=7)\n  File 'y.py', line 2, in run")
    print("RuntimeError: the matrix is singular", flush=True)
    sys.exit(1)


def save(folder: Path, step: int) -> None:
    """A checkpoint in the order in which verl writes it."""
    actor = folder / f"global_step_{step}" / "actor"
    shards = actor / "dist_ckpt"
    shards.mkdir(parents=True, exist_ok=True)
    archive(shards / "common.pt")
    (shards / "__0_0.distcp").write_bytes(b"x" * 100)
    metadata, place = Metadata(), Place()
    place.relative_path, place.offset, place.length = "__0_0.distcp", 40, 60
    metadata.storage_data = {"weight": place}
    (shards / ".metadata").write_bytes(pickle.dumps(metadata))
    (shards / "metadata.json").write_text('{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')
    archive(folder / f"global_step_{step}" / "data.pt")
    (folder / "latest_checkpointed_iteration.txt").write_text(str(step))


def archive(file: Path) -> None:
    with zipfile.ZipFile(file, "w") as opened:
        opened.writestr("data.pkl", b"data")


if __name__ == "__main__":
    main()
