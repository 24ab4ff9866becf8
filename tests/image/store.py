"""Images without an engine: buildah with chroot isolation, in a store of its own that vanishes with the folder.

What is built here is what `docker build` builds from the same Dockerfile; containers run as `docker run` starts them,
with the image's entry point, user, folder and variables, and without a network where none is asked for.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

TIME_LIMIT = 2400  # seconds a command; a build takes four minutes on two quiet cores
NEEDED = ("buildah", "mmdebstrap", "unshare", "ip")

# Processes of a container without a network still talk to each other.
OFFLINE = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")


def scratch() -> Path:
    """Where buildah keeps what `RUN --mount=type=cache` writes, the packages that were downloaded among it."""
    folder = cache() / "buildah"
    folder.mkdir(exist_ok=True)
    return folder


def cache() -> Path:
    """Where what takes long is kept between runs."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ascend-rl" / "image"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def unavailable() -> str | None:
    """Why no image can be built on this machine, if so."""
    if missing := [name for name in NEEDED if shutil.which(name) is None]:
        return f"{', '.join(missing)} not found: apt-get install buildah mmdebstrap iproute2"
    if os.geteuid() != 0:
        return "the stand-in base and its containers are made by root"
    return None


@dataclass(frozen=True)
class Result:
    """A finished command: its exit status and all that it printed."""

    status: int
    output: str

    @property
    def lines(self) -> list[str]:
        return [line for line in self.output.splitlines() if line.strip()]


@dataclass(frozen=True)
class Store:
    """buildah's images and containers below one folder."""

    folder: Path
    options: tuple[str, ...] = ()

    def buildah(self, *arguments: str, offline: bool = False, timeout: int = TIME_LIMIT) -> Result:
        """A command of buildah, whatever comes of it."""
        command = [*(OFFLINE if offline else ()), "buildah", "--storage-driver", "overlay"]
        command += ["--root", str(self.folder / "root"), "--runroot", str(self.folder / "run"), *self.options]
        process = subprocess.Popen(
            [*command, *arguments],
            env={**os.environ, "TMPDIR": str(scratch())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=timeout)
        except BaseException:  # what runs in a container goes, too
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        return Result(process.returncode, output)

    def must(self, *arguments: str) -> str:
        """A command of buildah that has to work; what it printed."""
        done = self.buildah(*arguments)
        assert done.status == 0, f"buildah {' '.join(arguments)}\n{done.output[-4000:]}"
        return done.output.strip()

    @contextlib.contextmanager
    def container(self, image: str) -> Iterator[str]:
        """A container made from an image, removed at the end."""
        name = self.must("from", "--pull-never", image)
        try:
            yield name
        finally:
            self.must("rm", name)

    def empty(self) -> None:
        """Removes all that was made here, mounts too."""
        self.buildah("rm", "--all")
        self.buildah("rmi", "--all", "--force")


@dataclass(frozen=True)
class Image:
    """An image of a store."""

    store: Store
    name: str

    @cached_property
    def description(self) -> dict:
        """Its configuration and its layers, as `docker inspect` tells them."""
        return json.loads(self.store.must("inspect", "--type", "image", self.name))["Docker"]

    @property
    def config(self) -> dict:
        return self.description["config"]

    @property
    def layers(self) -> list[str]:
        return self.description["rootfs"]["diff_ids"]

    def run(self, *command: str, user: str = "", network: bool = False, options: tuple[str, ...] = ()) -> Result:
        """What `docker run [--network none] [--user USER] IMAGE COMMAND…` does."""
        with self.store.container(self.name) as container:
            options = (*options, *(("--user", user) if user else ()))
            started = [*(self.config.get("Entrypoint") or ()), *(command or self.config.get("Cmd") or ())]
            return self.store.buildah(
                "run", "--isolation", "chroot", *options, container, "--", *started, offline=not network
            )

    @contextlib.contextmanager
    def files(self) -> Iterator[Path]:
        """Its file system."""
        with self.store.container(self.name) as container:
            yield Path(self.store.must("mount", container))
