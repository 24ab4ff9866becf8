"""`invoke image`: builds the image of a matrix with the engine of this host, or prints the command that runs it."""

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import manifest
import matrix as matrices
from checks.facts.reading import output
from errors import UserError
from image.steps.sources import variable, without_password
from image.steps.step import CERTIFICATES
from matrix import Matrix

ROOT = Path(__file__).resolve().parent.parent
ENGINES = ("docker", "podman", "buildah")  # in this order; the last builds, and cannot run by one command
DEFAULT, CPU = "performance", "cpu"
GIT_SECONDS = 20.0
BUILDKIT = {"DOCKER_BUILDKIT": "1"}  # what Docker 20.10 builds with only when it is told so
TIME = re.compile(r"\d{8}T\d{6}Z", re.ASCII)
DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
REFERENCE = re.compile(r"[\w][\w.:/@-]*", re.ASCII)
ADDRESS = re.compile(r"(?:https?|file)://\S+", re.ASCII)  # what the build's git can fetch; there is no ssh
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
OWN = re.compile(r"image: [\w-]+: expected .*")  # how a step of ours ends that fails (steps/step.py)
# What an engine says where not the build but what it was given is at fault: pattern, what it means and what to do.
FAULTS = (
    (
        r"no space left on device|disk quota exceeded",
        "the disk is full: free some space where {engine} keeps its images",
    ),
    (
        r"(?:manifest|image|pull access|name) (?:unknown|not known|not found|denied)|failed to resolve source metadata|"
        r"unable to (?:copy from source|pull)|initializing source|error creating build container|"
        r"failed to create LLB definition: (?!dockerfile parse)",  # Docker 20.10, whatever the registry says
        "the base image cannot be had: name one that this host can pull, or has, with --base",
    ),
    (
        r"cannot connect to the docker daemon|permission denied while trying to connect to the docker",
        "Docker does not answer: start it, or let this user speak to it, or choose another with --engine",
    ),
    (
        r"buildx component is missing|requires buildkit|unknown flag: --secret",
        "Docker's BuildKit is needed: install buildx",
    ),
)


@dataclass(frozen=True)
class Asked:
    """The arguments of the command. `matrix`: that of the image that this runs in, else performance."""

    matrix: str | None = None
    show: bool = False
    facts: str | None = None
    dry_run: bool = False
    base: str | None = None
    mirrors: Sequence[str] = ()
    release: bool = False
    tag: str | None = None
    engine: str | None = None
    snapshot: str | None = None


def run(asked: Asked) -> int:
    """Builds, or prints. UserError for what the user can put right."""
    matrix = matrices.load(asked.matrix or manifest.matrix() or DEFAULT)
    if asked.facts and not asked.show:
        raise UserError("--facts: expected --print beside it, whose command is made from them")
    if asked.show:
        return _print_run(asked, matrix)
    if asked.release:
        _refuse_what_floats(asked, matrix)
    chosen = engine(asked.engine, ENGINES)
    command = build_command(asked, matrix, chosen, os.environ)
    variables = BUILDKIT if chosen == "docker" else {}
    print(f"$ {_shown(command, variables)}", flush=True)
    return 0 if asked.dry_run else _build(command, variables, asked, matrix)


def tag(asked: Asked, matrix: Matrix) -> str:
    """The name of the image."""
    return asked.tag or f"ascend-rl:{matrix.name}"


def engine(named: str | None, known: Sequence[str]) -> str:
    """The engine that was named, else the first of the known ones that is installed. UserError where there is none."""
    if named and named not in known:
        raise UserError(f"--engine: expected {', '.join(known)}, found {named}")
    found = [one for one in ([named] if named else known) if shutil.which(one)]
    if not found:
        raise UserError(f"expected {named or ' or '.join(known)} on this host, found none; install Docker or Podman")
    return found[0]


def build_command(asked: Asked, matrix: Matrix, engine: str, environment: Mapping[str, str]) -> list[str]:
    """The command that builds, as the engine takes it."""
    commit = _commit()
    made = commit.get("time") or environment.get("SOURCE_DATE_EPOCH")
    command = [engine, "build", "--file", "Dockerfile", "--tag", tag(asked, matrix)]
    if engine == "docker":
        command += ["--progress", "plain"]
    else:  # the format that keeps the health check; the time makes a second build the same
        command += ["--format", "docker", *(["--timestamp", made] if made else [])]
    command += ["--target", CPU if matrix.name == CPU else "final"]
    arguments = dict(_arguments(asked, matrix, made, commit.get("name")))
    command += [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    command += [word for name in PROXIES if environment.get(name) for word in ("--build-arg", name)]
    if any(re.search(r"//(?:[^/@]*@)?(?:localhost|127\.)", environment.get(name, "")) for name in PROXIES):
        command += ["--network", "host"]  # where a proxy on this host is reached
    command += [word for name, path in secrets(environment) for word in ("--secret", f"id={name},src={path}")]
    return [*command, "."]


def secrets(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What the build may read and the image does not keep: pip's configuration, certificates, passwords of mirrors."""
    home = Path(environment.get("HOME") or "/nonexistent")
    config = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    chosen = environment.get("PIP_CONFIG_FILE")
    places = [chosen] if chosen else [config / "pip" / "pip.conf", home / ".pip" / "pip.conf", "/etc/pip.conf"]
    pip = _file(places)
    named = [environment[name] for name in CERTIFICATES if environment.get(name)]
    ca = _file([*named, *_certificates(pip)])
    netrc = _file([environment.get("NETRC") or home / ".netrc"])
    yield from ((name, path) for name, path in (("pip", pip), ("ca", ca), ("netrc", netrc)) if path)


def _file(places: Iterable[str | Path]) -> str | None:
    """The first of these that is a file."""
    return next((str(one) for one in places if Path(one).is_file()), None)


def _certificates(configuration: str | None) -> Iterator[Path]:
    """What pip's configuration names as `cert`: a path of this host, which says nothing in the build."""
    parser = configparser.RawConfigParser()
    try:
        parser.read(configuration or ())
    except (configparser.Error, UnicodeDecodeError):
        return  # pip says what is wrong with it
    for section in ("install", "global"):
        if place := parser.get(section, "cert", fallback=""):
            yield Path(place).expanduser()


def _arguments(asked: Asked, matrix: Matrix, made: str | None, revision: str | None) -> Iterator[tuple[str, str]]:
    if matrix.name != CPU:
        yield "MATRIX", matrix.name
    if asked.base:
        if not REFERENCE.fullmatch(asked.base):
            raise UserError(f"--base: expected the name of an image, found {asked.base!r}")
        yield base_argument(matrix), asked.base
    if made:
        yield "SOURCE_DATE_EPOCH", made
    if revision:
        yield "REVISION", revision
    if asked.snapshot:
        if not TIME.fullmatch(asked.snapshot):
            raise UserError(f"--snapshot: expected a time as 20251031T000000Z, found {asked.snapshot!r}")
        yield "APT_SNAPSHOT", asked.snapshot
    for one in asked.mirrors:
        yield _mirror(one, matrix)


def base_argument(matrix: Matrix) -> str:
    """The build argument that names the base image."""
    return "CPU_BASE_IMAGE" if matrix.name == CPU else "BASE_IMAGE"


def _mirror(given: str, matrix: Matrix) -> tuple[str, str]:
    """NAME=URL as a build argument. Any mirror will do: the build checks the commit."""
    name, _, address = given.partition("=")
    known = [one for one, component in matrix.components.items() if component.install == "git"]
    if name not in known or not ADDRESS.fullmatch(address):
        wanted = f"NAME=URL with one of {', '.join(known)}" if known else "none: nothing is built from git"
        schemes = "; the URL is one of https, http or file" if name in known else ""
        raise UserError(f"--mirror: expected {wanted}{schemes}, found {without_password(given)!r}")
    if without_password(address) != address:
        raise UserError(
            f"--mirror {name}: expected no user, token or password in it, found one, which would stay in the image; "
            "put it into ~/.netrc"
        )
    return variable(name), address


def _refuse_what_floats(asked: Asked, matrix: Matrix) -> None:
    """UserError for what a build can pin and this one does not: a base without a digest, a checkout with edits.

    Debian packages float without --snapshot, which not every host can reach; the manifest says which they were.
    """
    name = base_argument(matrix)
    base = asked.base or _default(name)
    if not DIGEST.search(base):
        raise UserError(
            f"--release: expected a base image with its digest, found {base}; "
            f"--base {base.partition('@')[0]}@sha256:… (`docker buildx imagetools inspect {base}` prints it)"
        )
    commit = _commit()
    if not commit:
        raise UserError(f"--release: expected a git checkout, found none in {ROOT}")
    if changed := output("git", "-C", str(ROOT), "status", "--porcelain", seconds=GIT_SECONDS).splitlines():
        shown = ", ".join(line.split(maxsplit=1)[-1] for line in changed[:3]) + (" …" if len(changed) > 3 else "")
        raise UserError(f"--release: expected a checkout without edits, found {shown}; commit or remove them")


def _default(argument: str) -> str:
    """The value of a build argument that the Dockerfile has by itself."""
    found = re.search(rf"^ARG {argument}=(\S+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    return found[1].strip("\"'") if found else ""


def _commit() -> dict[str, str]:
    """Name and time (seconds since 1970) of the checkout's commit; empty outside of git."""
    try:
        name, time = output("git", "-C", str(ROOT), "log", "-1", "--format=%H %ct", seconds=GIT_SECONDS).split()
    except (RuntimeError, OSError, ValueError):
        return {}
    return {"name": name, "time": time}


def _shown(command: Sequence[str], variables: Mapping[str, str]) -> str:
    """A command with one option a line, behind the variables that it wants."""
    words = [*(f"{name}={value}" for name, value in variables.items()), *(shlex.quote(word) for word in command)]
    return re.sub(r" (--[\w-]+ \S+|\.$)", r" \\\n    \1", " ".join(words))


def _build(command: list[str], variables: Mapping[str, str], asked: Asked, matrix: Matrix) -> int:
    """Runs the build, shows what it says, and on a failure says why in one line."""
    last: deque[str] = deque(maxlen=400)
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            last.append(line.strip())
    if process.returncode:
        raise UserError(f"the build stopped: {_explained(last, command[0])}", code=1)
    chosen = ("--matrix", matrix.name, DEFAULT), ("--tag", asked.tag, None)
    added = "".join(f" {option} {value}" for option, value, default in chosen if value != default)
    print(f"built {tag(asked, matrix)}; next: ./invokew image --print{added}")
    return 0


def _explained(lines: Sequence[str], engine: str) -> str:
    """Why a build failed: what a step of ours says, else what the engine's words mean, else its last line."""
    for line in reversed(lines):
        if own := OWN.search(line):
            return own[0]
    for pattern, meaning in FAULTS:
        telling = [line for line in lines if re.search(pattern, line, re.IGNORECASE)]
        if telling:
            return f"{meaning.format(engine=engine)} (found: {telling[-1][:300]})"
    said = [line for line in lines if line]
    return said[-1][:300] if said else f"{engine} said nothing"


def _print_run(asked: Asked, matrix: Matrix) -> int:
    from checks import facts
    from checks.doctor import document
    from image import run as running

    if asked.dry_run or asked.release or asked.base or asked.mirrors or asked.snapshot:
        names = "--dry-run, --release, --base, --mirror, --snapshot"
        raise UserError(f"--print: expected none of {names} beside it: nothing is built")
    able = [one for one in ENGINES if one != "buildah"]
    chosen = engine(asked.engine, able) if asked.engine else next((one for one in able if shutil.which(one)), able[0])
    if matrix.name == CPU:
        made = running.emulated("the image of the matrix cpu")
    else:
        read = document.read(asked.facts) if asked.facts else document.Facts(facts.collect())
        made = running.container(read)
    print(running.script(made, tag(asked, matrix), matrix.name, chosen), end="")
    return 0
