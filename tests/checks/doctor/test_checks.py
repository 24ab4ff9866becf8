"""Every check on a machine where it finds something and on one where it does not, and nine machines as a whole."""

from dataclasses import replace

import pytest

from checks import doctor
from checks.doctor import report
from checks.doctor.verdict import judge
from checks.words import Text
from tests.checks.doctor.cases import CASES, COMMERCIAL, COMMERCIAL_CASES
from tests.checks.doctor.machines import APPLIED, case

CHECKS = {one.id: one for one in doctor.CHECKS}


def result(name: str, of):
    """What a check says of a case, together with those that it builds on."""
    wanted, waiting = set(), [name]
    while waiting:
        wanted.add(one := waiting.pop())
        waiting += CHECKS[one].after
    return {one.check.id: one for one in judge(of, [CHECKS[one] for one in wanted])}[name]


def test_every_check_has_a_case():
    assert not CHECKS.keys() - {one.check for one in CASES} - {name for name, _, _ in COMMERCIAL_CASES}
    assert len(CHECKS) >= 60


@pytest.mark.parametrize("broken", CASES, ids=lambda one: f"{one.check}-{one.found[:20]}")
def test_a_check_finds_what_is_wrong_and_nothing_else(broken):
    check = CHECKS[broken.check]
    values, patches = {**broken.fit, **broken.values}, broken.patches or APPLIED
    found = result(broken.check, case(broken.machine, broken.change, broken.matrix, values, patches))
    assert found.status == check.level, (found.status, found.reason, found.faults)
    assert any(broken.found in report.sentence(fault, "en") for fault in found.faults), found.faults
    fit = result(broken.check, case(broken.machine, None, broken.matrix, broken.fit))
    assert fit.status == "pass", (fit.status, fit.reason, fit.faults)


@pytest.mark.parametrize(("name", "change", "found"), COMMERCIAL_CASES)
def test_checks_of_the_commercial_matrix(name, change, found):
    fit = {**COMMERCIAL, "packages/transformers": "4.55.0"}
    broken = result(name, case("fit-a2-host", {**fit, **change}, "commercial", {}))
    assert broken.status == "fail" and any(found in report.sentence(fault, "en") for fault in broken.faults)
    assert result(name, case("fit-a2-host", fit, "commercial", {})).status == "pass"


def test_builds_of_commits_are_not_compared_by_the_versions_that_they_were_given():
    """vllm-ascend 1de16ea is between releases, and so is its vLLM: their numbers need not agree."""
    given = {"packages/vllm": "0.10.1.1+empty", "packages/vllm-ascend": "0.10.0rc1"}
    assert result("packages.vllm-pair", case("image-container", given)).status == "skip"
    index = {f"stack/sources/{name}": {"version": "0.10", "from": "index"} for name in ("vllm", "vllm-ascend")}
    assert result("packages.vllm-pair", case("image-container", {**given, **index})).status == "fail"


# Machine: what fails, what warns, and the checks that the rest is put down to.
VERDICTS = {
    "fit-a2-host": ("", "", ""),
    "fit-container": ("", "", ""),
    "image-container": ("", "", ""),
    "a3": ("npu.generation", "", ""),  # the recipe is for A2
    "no-driver": ("npu.driver", "", "npu.driver"),
    "wrong-cann": ("cann.version cann.latest cann.mixed", "", "cann.version"),
    "missing-mounts": (
        "host.shared-memory host.open-files npu.driver container.driver-libraries container.dcmi "
        "container.install-info container.rights container.network recipe.model recipe.megatron-weights recipe.data "
        "recipe.checkpoint-shared",
        "container.hccn recipe.kept",
        "host.shared-memory npu.driver",
    ),
    "package-fights": (
        "packages.torch packages.torch-npu packages.verl packages.vllm packages.tensordict packages.megatron-once "
        "packages.torch-pair packages.torch-cuda packages.torchvision packages.transformers packages.numpy "
        "packages.opencv packages.uvloop packages.triton packages.vllm-empty packages.flash-attn packages.twice "
        "packages.shadowed packages.folders",
        "packages.ray",
        "packages.triton packages.folders",
    ),
    "no-npu": ("npu.present", "", "npu.present"),
}


@pytest.mark.parametrize("machine", VERDICTS)
def test_recorded_machines(machine):
    results = judge(case(machine, values={}), doctor.CHECKS)
    failed, warned, causes = (set(names.split()) for names in VERDICTS[machine])
    assert {one.check.id for one in results if one.status == "fail"} == failed
    assert {one.check.id for one in results if one.status == "warn"} == warned
    assert {one.because for one in results if one.because} == causes
    assert not [(one.check.id, one.reason) for one in results if one.status == "unknown"]


def test_without_an_npu_it_says_so_once():
    results = judge(case("no-npu"), doctor.CHECKS)
    assert [one.check.id for one in results if one.status not in ("pass", "skip")] == ["npu.present"]
    assert sum(one.because == "npu.present" for one in results) > 80


def test_what_cannot_be_told_is_not_denied():
    change = {f"npu/{name}": {"unknown": "not read within 15 s"} for name in ("bus", "nodes", "smi")}
    found = result("npu.present", case("fit-a2-host", change))
    assert found.status == "unknown" and "not read within 15 s" in found.reason.en


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("host.compilers", "tools"),
        ("host.compilers", "tools/g++"),
        ("npu.driver", "npu/driver"),
        ("cann.installed", "cann"),
        ("cann.sourced", "cann/sourced"),
        ("cann.nnal", "cann"),
        ("cann.kernels", "cann/kernels"),
    ],
)
def test_what_was_not_read_in_time_is_not_called_absent(name, place):
    found = result(name, case("fit-a2-host", {place: {"unknown": "not read within 15 s"}}))
    assert found.status in ("unknown", "skip") and not found.faults


def test_the_matrix_of_machines_without_npus_finds_nothing_there():
    assert {one.status for one in judge(case("no-npu", matrix="cpu"), doctor.CHECKS)} <= {"pass", "skip"}


def test_every_text_is_there_in_both_languages():
    texts = [one.title for one in doctor.CHECKS]
    for broken in CASES:
        values = {**broken.fit, **broken.values}
        of = case(broken.machine, broken.change, broken.matrix, values, broken.patches or APPLIED)
        faults = result(broken.check, of).faults
        texts += [text for fault in faults for text in (fault.expected, fault.found, fault.remedy)]
    for text in texts:
        if isinstance(text, Text):
            assert text.en.isascii() or "…" in text.en or "×" in text.en, text
            assert any("、" <= letter <= "鿿" for letter in text.zh) or text.en == text.zh, text


@pytest.mark.parametrize("name", ["image.patches", "recipe.patches-applied"])
def test_in_an_image_no_patch_is_to_be_applied(name):
    """Its packages are root's, and its user is not."""
    pending = tuple(replace(one, state="pending") for one in APPLIED)
    (fault, *_) = result(name, case("image-container", patches=pending)).faults
    assert fault.remedy.en == "start a new container from the image"
    if name.startswith("recipe."):
        (fault,) = result(name, case("fit-a2-host", patches=pending)).faults
        assert fault.remedy == "invoke patches.apply --matrix performance"


def test_the_plugin_is_not_asked_for():
    """The image of the commercial matrix does without it."""
    assert (
        result("packages.rl-plugin", case("fit-a2-host", {"stack/modules/verl_npu": []}, "commercial")).status == "skip"
    )
