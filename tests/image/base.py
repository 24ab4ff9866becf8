"""The stand-in for the base image: Debian with the Python, the compilers and the scripts that Ascend's has, no CANN.

It is made once on a machine and kept in the cache folder, under a name that changes with what it is made from.
"""

import hashlib
import os
import subprocess
from pathlib import Path

from tests.image.store import Image, Store, cache

SUITE = "bookworm"  # its Python is the matrices' 3.11
# What Ascend's has of what the Dockerfile needs; nothing for the cpu image's, debian:bookworm-slim.
PACKAGES = ("ca-certificates", "g++", "git", "libnuma-dev", "make", "python3", "python3-dev", "python3-venv")
SLIM = ()
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/man/*")
EPOCH = "1760000000"  # seconds; dates of the files of an image are not those of the day
FILES = Path(__file__).with_name("base")  # what is laid over Debian: fake environments of CANN and nnal
# As Ascend's Dockerfile sets them (cann-container-image c5a67b3, cann/8.3.rc1-910b-ubuntu22.04-py3.11).
TOOLKIT = "/usr/local/Ascend/ascend-toolkit/latest"
VARIABLES = {
    "ASCEND_TOOLKIT_HOME": TOOLKIT,
    "ASCEND_HOME_PATH": TOOLKIT,
    "PYTHONPATH": f"{TOOLKIT}/python/site-packages:{TOOLKIT}/opp/built-in/op_impl/ai_core/tbe:",
    "ATB_HOME_PATH": "/usr/local/Ascend/nnal/atb/latest/atb/cxx_abi_0",
}


def debian(packages: tuple[str, ...]) -> Path:
    """The file system of Debian as an archive; half a minute where it is not there yet."""
    key = hashlib.sha256(repr((SUITE, packages, LEFT_OUT, EPOCH)).encode()).hexdigest()[:16]
    archive = cache() / f"debian-{key}.tar"
    if not archive.is_file():
        partial = archive.with_suffix(f".{os.getpid()}.tar")
        command = ["mmdebstrap", "--quiet", "--variant=minbase", "--dpkgopt=force-unsafe-io"]
        command += [f"--include={package}" for package in packages]
        command += [f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH}
        try:
            subprocess.run([*command, SUITE, partial], env=environment, check=True, timeout=1200)
            partial.rename(archive)
        finally:
            partial.unlink(missing_ok=True)
    return archive


def image(store: Store, packages: tuple[str, ...] = PACKAGES) -> Image:
    """A base image, in a store: with the fake environments where it has more than Debian itself."""
    name = f"localhost/stand-in-{'base' if packages else 'slim'}"
    with store.container("scratch") as container:
        store.must("add", container, str(debian(packages)), "/")
        if packages:
            store.must("copy", container, str(FILES), "/")
            store.must("config", *(f"--env={name}={value}" for name, value in VARIABLES.items()), container)
        store.must("commit", "--timestamp", EPOCH, "--format", "docker", container, name)
    return Image(store, name)
