"""Python packages: the matrix's versions and commits, and packages that fight one another."""

from collections.abc import Iterator

from packaging.version import InvalidVersion, Version

from checks.doctor import versions
from checks.doctor.check import ALL, COMMERCIAL, CPU, Case, Fault, Skip, check
from checks.doctor.document import Missing
from checks.doctor.npu import NONE
from checks.words import Text

# torchvision by torch, as both wheels' metadata have it.
TORCHVISION = {"2.5.1": "0.20.1", "2.6.0": "0.21.0", "2.7.0": "0.22.0", "2.7.1": "0.22.1", "2.8.0": "0.23.0"}
TRANSFORMERS = {
    # vLLM 0.11.0 asks for >= 4.55.2, vllm-ascend's v0.11.0-dev for <= 4.57.1
    "performance": ("4.55.2", "4.57.1"),
    # verl 796871d imports what 4.55.1 no longer has (F16); vLLM asks for >= 4.55.0
    "commercial": ("4.55.0", "4.55.0"),
    "cpu": ("4.55.2", "4.57.1"),
}
NUMPY = "2"
OPENCV = "4.11.0.86"  # newer ones ask for numpy 2
UVLOOP = "0.22"
RAY = "2.46.0"  # verl's requirements-npu.txt at both commits


def installed(case: Case, name: str) -> str | None:
    """A distribution's version, None where it is not installed."""
    packages = case.facts.table("packages")
    return str(packages[name].value) if name in packages else None


def needed(case: Case, name: str) -> str:
    """A distribution's version; skipped where it is not installed, which another check reports."""
    found = installed(case, name)
    if found is None:
        raise Skip(Text(f"{name} is not installed", f"未安装 {name}"))
    return found


def _pinned(case: Case, name: str, distribution: str) -> Iterator[Fault]:
    """A component of the matrix, installed with the version or from the commit that it names."""
    component = case.component(name)
    found = installed(case, distribution)
    if found is None:
        if component.install != "absent":
            yield Fault(component.version or component.commit[:8], NONE, _install(name, component, distribution))
    elif component.install == "git":
        yield from _commit(case, name, component, distribution)
    elif component.version and not _is(found, component.version):
        yield Fault(component.version, found, _install(name, component, distribution))


def _is(found: str, wanted: str) -> bool:
    """Whether a version is the one wanted; `2.7.1+cpu` is 2.7.1, but 2.7.1.dev1 and 2.7.1.post2 are not."""
    try:
        one, other = Version(found), Version(wanted)
    except InvalidVersion:
        return found == wanted
    return one == other if other.local else Version(one.public) == other


def _commit(case: Case, name: str, component, distribution: str) -> Iterator[Fault]:
    found = _known_commit(case, distribution)
    if found is None:
        raise Missing(f"stack/sources/{distribution}: the installation does not say from which commit it was made")
    if found != component.commit:
        yield Fault(component.commit[:8], found[:40], _install(name, component, distribution))


def _known_commit(case: Case, distribution: str) -> str | None:
    """Where it was installed from: the commit, or what came from the index and so from a release."""
    found = source_commit(case, distribution) or tree_commit(case, distribution.replace("-", "_"))
    source = f"stack/sources/{distribution}/from"
    if not found and case.facts.has(source) and case.facts.text(source) == "index":
        return f"{needed(case, distribution)} (index)"
    return found


def source_commit(case: Case, distribution: str) -> str | None:
    """The commit that a distribution says it was installed from."""
    place = f"stack/sources/{distribution}/commit"
    return case.facts.text(place) if case.facts.has(place) else None


def tree_commit(case: Case, module: str) -> str | None:
    """The commit of the checkout that a module is imported from."""
    place = f"stack/trees/{module}/commit"
    return case.facts.text(place) if case.facts.has(place) else None


def _install(name: str, component, distribution: str) -> str:
    if component.install == "git":
        isolated = {"vllm": "VLLM_TARGET_DEVICE=empty "}.get(name, "")
        return (
            f"{isolated}pip install --no-deps --no-build-isolation git+{component.repository}@{component.commit[:12]}"
        )
    return f"pip install --no-deps {distribution}=={component.version}"


@check("packages.torch", "torch is the matrix's", "torch 版本与矩阵一致", problem="A3")
def torch(case: Case) -> Iterator[Fault]:
    yield from _pinned(case, "torch", "torch")


@check("packages.torch-cpu", "torch is the matrix's CPU build", "torch 为矩阵中的 CPU 版", matrices=(CPU,))
def torch_cpu(case: Case) -> Iterator[Fault]:
    yield from _pinned(case, "torch", "torch")


@check("packages.torch-npu", "torch-npu is the matrix's", "torch-npu 版本与矩阵一致", problem="S4")
def torch_npu(case: Case) -> Iterator[Fault]:
    """vllm-ascend's requirement of 2.7.1.dev20250724 replaces it silently."""
    yield from _pinned(case, "torch-npu", "torch-npu")


@check("packages.verl", "verl is at the matrix's commit", "verl 为矩阵所列提交", matrices=ALL)
def verl(case: Case) -> Iterator[Fault]:
    yield from _pinned(case, "verl", "verl")


@check("packages.vllm", "vLLM is at the matrix's commit", "vLLM 为矩阵所列提交", matrices=ALL, problem="A6")
def vllm(case: Case) -> Iterator[Fault]:
    yield from _pinned(case, "vllm", "vllm")


@check(
    "packages.vllm-ascend",
    "vllm-ascend is at the matrix's commit",
    "vllm-ascend 为矩阵所列提交",
    matrices=ALL,
    problem="A6",
)
def vllm_ascend(case: Case) -> Iterator[Fault]:
    yield from _pinned(case, "vllm-ascend", "vllm-ascend")


@check(
    "packages.mindspeed",
    "MindSpeed is at the matrix's commit",
    "MindSpeed 为矩阵所列提交",
    problem="A12",
    after=("npu.present", "packages.folders"),
)
def mindspeed(case: Case) -> Iterator[Fault]:
    yield from _pinned(case, "mindspeed", "mindspeed")


@check("packages.tensordict", "tensordict is the matrix's", "tensordict 版本与矩阵一致", matrices=ALL, problem="S8")
def tensordict(case: Case) -> Iterator[Fault]:
    """Below 0.10 a copy to the CPU does not wait for the NPU: silently wrong values."""
    yield from _pinned(case, "tensordict", "tensordict")


@check("packages.megatron", "Megatron is at the matrix's commit", "Megatron 为矩阵所列提交", problem="S9")
def megatron(case: Case) -> Iterator[Fault]:
    component = case.component("megatron-lm")
    places = case.facts.texts("stack/modules/megatron")
    remedy = f"git clone {component.repository}; git checkout {component.ref}; export PYTHONPATH=…/Megatron-LM"
    if not places:
        yield Fault(component.ref, NONE, remedy)
    elif found := tree_commit(case, "megatron") or source_commit(case, "megatron-core"):
        if found != component.commit:
            yield Fault(f"{component.commit[:8]} ({component.ref})", found[:40], remedy)
    else:
        found = needed(case, "megatron-core")
        if not versions.same(found, component.ref.rpartition("v")[2]):
            yield Fault(component.ref, found, remedy)


@check("packages.megatron-once", "there is one Megatron", "只有一个 Megatron", problem="S9")
def megatron_once(case: Case) -> Iterator[Fault]:
    places = case.facts.texts("stack/modules/megatron")
    if len(places) > 1:
        yield Fault(
            Text("one folder", "一个目录"),
            ", ".join(places),
            Text(
                "pip uninstall megatron-core, or take one off PYTHONPATH",
                "pip uninstall megatron-core，或从 PYTHONPATH 移除其一",
            ),
        )


@check(
    "packages.mindspeed-real",
    "MindSpeed is not the index's placeholder",
    "MindSpeed 不是索引上的空包",
    problem="F19",
    after=("npu.present", "packages.folders"),
)
def mindspeed_real(case: Case) -> Iterator[Fault]:
    found = needed(case, "mindspeed")
    if not case.facts.flag("stack/mindspeed_adaptor"):
        component = case.component("mindspeed")
        yield Fault(
            "mindspeed/megatron_adaptor.py", f"mindspeed {found}", _install("mindspeed", component, "mindspeed")
        )


@check("packages.torch-pair", "torch and torch-npu are of one release", "torch 与 torch-npu 同版本", problem="A2")
def torch_pair(case: Case) -> Iterator[Fault]:
    torch, npu = needed(case, "torch"), needed(case, "torch-npu")
    if versions.numbers(torch, 3) != versions.numbers(npu, 3):
        wanted = case.component("torch").version
        yield Fault(
            f"torch {wanted}, torch-npu {wanted}",
            f"torch {torch}, torch-npu {npu}",
            f"pip install --no-deps torch=={wanted} torch-npu=={wanted}",
        )


@check("packages.torch-cuda", "torch is no CUDA build", "torch 不是 CUDA 版", problem="A3")
def torch_cuda(case: Case) -> Iterator[Fault]:
    """vLLM's wheel and verl's requirements bring it."""
    packages = case.facts.table("packages")
    local = needed(case, "torch").partition("+")[2]
    nvidia = sorted(name for name in packages if name.startswith("nvidia-c"))
    if local.startswith(("cu", "rocm")) or nvidia:
        shown = [f"torch +{local}"] if local.startswith(("cu", "rocm")) else []
        wanted = case.component("torch").version
        yield Fault(
            Text("a CPU build", "CPU 版"),
            ", ".join([*shown, *nvidia[:3]]),
            f"pip uninstall -y {' '.join(nvidia[:3])} …; pip install --no-deps torch=={wanted}",
        )


@check("packages.torchvision", "torchvision is torch's", "torchvision 与 torch 配套", problem="A7")
def torchvision(case: Case) -> Iterator[Fault]:
    """verl's requirements-npu.txt names 0.20.1, which is for torch 2.5.1: operator torchvision::nms does not exist."""
    found, wanted = needed(case, "torchvision"), TORCHVISION.get(case.component("torch").version)
    if wanted and not versions.same(found, wanted):
        yield Fault(wanted, found, f"pip install --no-deps torchvision=={wanted}")


@check(
    "packages.transformers",
    "transformers is one that verl and vLLM take",
    "transformers 版本可用",
    matrices=ALL,
    problem="A9",
)
def transformers(case: Case) -> Iterator[Fault]:
    least, most = TRANSFORMERS[case.matrix.name]
    found = needed(case, "transformers")
    if versions.older(found, least) or versions.older(most, found):
        yield Fault(
            least if least == most else f"{least} … {most}", found, f"pip install --no-deps transformers=={most}"
        )


@check("packages.numpy", "numpy is below 2", "numpy 低于 2", matrices=ALL, problem="A8")
def numpy(case: Case) -> Iterator[Fault]:
    found = needed(case, "numpy")
    if not versions.older(found, NUMPY):
        yield Fault(f"< {NUMPY}", found, "pip install numpy==1.26.0")


@check("packages.opencv", "opencv goes with numpy 1", "opencv 与 numpy 1 配套", problem="A8")
def opencv(case: Case) -> Iterator[Fault]:
    found = needed(case, "opencv-python-headless")
    if versions.older(OPENCV, found):
        yield Fault(f"<= {OPENCV}", found, f"pip install --no-deps opencv-python-headless=={OPENCV}")


@check(
    "packages.uvloop", "uvloop leaves an event loop in the main thread", "uvloop 低于 0.22", matrices=ALL, problem="F17"
)
def uvloop(case: Case) -> Iterator[Fault]:
    found = needed(case, "uvloop")
    if not versions.older(found, UVLOOP):
        yield Fault(f"< {UVLOOP}", found, "pip install uvloop==0.21.0")


@check(
    "packages.ray", "Ray is the one that verl names", "Ray 为 verl 指定版本", level="warn", matrices=ALL, problem="F20"
)
def ray(case: Case) -> Iterator[Fault]:
    component = case.matrix.components.get("ray")
    wanted, found = component.version if component else RAY, needed(case, "ray")
    if found != wanted:
        yield Fault(wanted, found, f"pip install ray=={wanted}")


@check(
    "packages.triton", "triton and triton-ascend are not both there", "triton 与 triton-ascend 不同时存在", problem="A4"
)
def triton(case: Case) -> Iterator[Fault]:
    """Both install the package triton: what is imported is a mixture of their files."""
    if installed(case, "triton") and installed(case, "triton-ascend"):
        found = f"triton {installed(case, 'triton')}, triton-ascend {installed(case, 'triton-ascend')}"
        yield Fault(Text("one at most", "至多一个"), found, "pip uninstall -y triton triton-ascend")


@check(
    "packages.triton-gpu", "the GPUs' triton is not there", "没有 GPU 版 triton", level="warn",
    after=("npu.present", "packages.triton"), problem="A4",
)  # fmt: skip
def triton_gpu(case: Case) -> Iterator[Fault]:
    found = installed(case, "triton")
    if found:
        yield Fault(NONE, f"triton {found}", "pip uninstall -y triton")


@check(
    "packages.vllm-empty", "vLLM was built without kernels for other devices", "vLLM 以 empty 目标构建", problem="A3"
)
def vllm_empty(case: Case) -> Iterator[Fault]:
    found = needed(case, "vllm")
    if "empty" not in found.partition("+")[2]:
        yield Fault("+empty", found, _install("vllm", case.component("vllm"), "vllm"))


@check("packages.vllm-version", "vLLM's version can be compared", "vLLM 版本号可比较", matrices=ALL, problem="A5")
def vllm_version(case: Case) -> Iterator[Fault]:
    """vllm-ascend asks for releases by their number and takes no development version (its FAQ; utils.py)."""
    found, told = needed(case, "vllm"), case.facts.env("VLLM_VERSION")
    try:
        release = not Version(told or found).is_devrelease
    except InvalidVersion:
        release = False
    if not release:
        wanted = case.component("vllm").version or "0.10.1"
        yield Fault("X.Y.Z", told or found, f"export VLLM_VERSION={wanted}")


@check("packages.vllm-pair", "vllm-ascend is for this vLLM", "vllm-ascend 与 vLLM 配套", matrices=ALL, problem="A6")
def vllm_pair(case: Case) -> Iterator[Fault]:
    """Releases carry the number of the vLLM they are for; a build from a commit may carry none."""
    ours, found = needed(case, "vllm-ascend"), case.facts.env("VLLM_VERSION") or needed(case, "vllm")
    wanted, have = versions.numbers(ours, 3), versions.numbers(found, 3)
    from_commit = any(source_commit(case, name) for name in ("vllm", "vllm-ascend"))  # which says more than its version
    if wanted < (0, 7) or "dev" in ours or "dev" in found or from_commit:
        raise Skip(Text("built from a commit: the commits are compared", "从提交构建：按提交比较"))
    if wanted != have:
        yield Fault(".".join(map(str, wanted)), found, _install("vllm", case.component("vllm"), "vllm"))


@check("packages.kernels", "vllm-ascend's own operators are compiled", "vllm-ascend 自定义算子已编译", problem="B6")
def kernels(case: Case) -> Iterator[Fault]:
    """Sleep mode's allocator is one of them: with free_cache_engine no run starts without."""
    needed(case, "vllm-ascend")
    compiled = case.facts.texts("stack/ascend_kernels/compiled")
    sleep = not case.facts.has("stack/ascend_kernels/sleep_mode") or case.facts.flag("stack/ascend_kernels/sleep_mode")
    if not compiled or not sleep:
        found = NONE if not compiled else "__sleep_mode_enabled__ = False"
        component = case.component("vllm-ascend")
        yield Fault(
            "vllm_ascend_C*.so", found, f"COMPILE_CUSTOM_KERNELS=1 {_install('vllm-ascend', component, 'vllm-ascend')}"
        )


@check("packages.flash-attn", "flash_attn is not there", "没有 flash_attn", problem="A11")
def flash_attn(case: Case) -> Iterator[Fault]:
    """It cannot run on an NPU, and MindSpeed puts a module of that name in its place."""
    found = installed(case, "flash-attn")
    if found:
        yield Fault(NONE, f"flash-attn {found}", "pip uninstall -y flash-attn")


@check(
    "packages.rl-plugin",
    "MindSpeed-RL's plugin is loaded by verl",
    "verl 已加载 MindSpeed-RL 插件",
    matrices=(COMMERCIAL,),
    problem="S5",
)
def rl_plugin(case: Case) -> Iterator[Fault]:
    """Its set-up appends the import to verl's __init__, and only prints where that fails.

    Nobody needs it for S5: the matrix's transformers has the names, and so does the patch verl/index-first-axis.
    """
    needed(case, "verl")
    if not case.facts.texts("stack/modules/verl_npu"):
        raise Skip(Text("not installed, and not needed with this matrix", "未安装，此版本矩阵不需要"))
    if not case.facts.flag("stack/verl_loads_plugin"):
        yield Fault(
            "import verl_npu", NONE, "echo 'import verl_npu' >> $(python -c 'import verl; print(verl.__file__)')"
        )


@check("packages.twice", "no package is installed twice", "没有重复安装的包", matrices=ALL)
def twice(case: Case) -> Iterator[Fault]:
    for name, group in case.facts.table("stack/duplicates").items():
        yield Fault(
            Text("one", "一份"),
            f"{name} {', '.join(map(str, group.value))[:200]}" if isinstance(group.value, list) else name,
            f"pip uninstall -y {name}; pip install …",
        )


@check("packages.shadowed", "the current folder hides no package", "当前目录未遮蔽包", matrices=ALL)
def shadowed(case: Case) -> Iterator[Fault]:
    """A checkout's folder in the current one is imported instead of what is installed, without its compiled parts."""
    for name in case.facts.texts("stack/in_folder"):
        place = case.facts.text("python/folder")
        yield Fault(NONE, f"{place}/{name}", Text("cd to another folder", "切换到其他目录"))


@check(
    "packages.folders",
    "editable packages still have their folders",
    "可编辑安装的目录仍存在",
    matrices=ALL,
)
def folders(case: Case) -> Iterator[Fault]:
    for name, source in case.facts.table("stack/sources").items():
        if source.has("exists") and not source.flag("exists"):
            yield Fault(source.text("folder"), NONE, f"pip install -e …/{name}")
