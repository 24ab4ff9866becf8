"""What a build gets in place of what only a real host has: base, repositories, context, the package index."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import environment
from image.build import secrets
from image.steps.sources import variable
from tests.image import base, context, sources
from tests.image.store import Image, Result, Store, cache

SERVED = "/repositories"  # where a build finds them


@dataclass
class StandIns:
    """All that, for both matrices, and builds on it."""

    store: Store
    context: Path
    trees: Path
    repositories: Path
    base: Image
    options: list[str]

    @classmethod
    def make(cls, store: Store, folder: Path) -> "StandIns":
        """All of them, below a folder; the base in the store."""
        files = sources.packages(cache() / "packages")
        trees, repositories = folder / "trees", folder / "repositories"
        commits: dict[str, dict[str, str]] = {}
        for matrix in context.MATRICES:
            tree = sources.trees(matrix, files, trees / matrix)
            commits[matrix] = {
                component: sources.commit(tree / name, repositories / matrix / name)
                for component, name in context.FOLDERS.items()
            }
        made = context.make(folder / "context", commits, trees)
        options = [*_secrets(folder), "--volume", f"{repositories}:{SERVED}:ro"]
        return cls(store, made, trees, repositories, base.image(store), options)

    def build(
        self, name: str, *options: str, target: str = "final", at: Path | None = None, **arguments: str
    ) -> Result:
        """`docker build --target TARGET --build-arg NAME=VALUE… AT`; `name` is the image's."""
        values = {"BASE_IMAGE": self.base.name, "SOURCE_DATE_EPOCH": base.EPOCH, "COMPILE_CUSTOM_KERNELS": "0"}
        matrix = arguments.get("MATRIX", "performance")
        for component, folder in context.FOLDERS.items():
            values[variable(component)] = f"file://{SERVED}/{matrix}/{folder}"
        values |= arguments
        given = [f"--build-arg={key}={value}" for key, value in values.items()]
        settings = ["--isolation", "chroot", "--pull-never", "--format", "docker", "--timestamp", base.EPOCH]
        command = ["build", *settings, "--target", target, "--tag", name, *self.options, *given, *options]
        return self.store.buildah(*command, str(at or self.context))

    def image(self, name: str, *options: str, **how) -> Image:
        """A build that has to work."""
        built = self.build(name, *options, **how)
        assert built.status == 0, built.output[-6000:]
        return Image(self.store, name)


def _secrets(folder: Path) -> list[str]:
    """How this machine reaches the package index, as a user hands it to a build; folders with wheels are mounted."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    settings = environment.pip_settings(listed)
    kept = {key: settings[key] for key in ("index-url", "extra-index-url", "find-links", "timeout") if key in settings}
    certificates = os.environ.get("SSL_CERT_FILE") or settings.get("cert")
    named = {"cert": certificates} if certificates else {}
    pip = folder / "pip.conf"
    pip.write_text("[global]\n" + "".join(f"{key} = {value}\n" for key, value in (kept | named).items()))
    handed = secrets({"PIP_CONFIG_FILE": str(pip)})
    options = [word for name, path in handed for word in ("--secret", f"id={name},src={path}")]
    for word in " ".join(kept.values()).split():
        place = Path(word.removeprefix("file://"))
        if place.is_absolute() and place.exists():
            place = place.parent if word.startswith("file://") else place  # an index's files may lie beside it
            options += ["--volume", f"{place}:{place}:ro"]
    return options
