"""The cpu image's environment is invokew's."""

import platform

import environment
from image.steps import cpu
from image.steps.step import PROJECT, run


def test_the_environment_is_invokew_s(monkeypatch):
    asked = []
    monkeypatch.setattr(environment, "set_up", lambda root, machine: asked.append((root, machine)))
    assert run("cpu", cpu.make, []) == 0
    assert asked == [(PROJECT, platform.machine())]


def test_a_failed_set_up_ends_in_one_line_with_what_was_found(monkeypatch, capsys):
    def fail(root, machine):
        raise environment.SetupError("torch: the disk is full; free 4 GB\n    found: No space left on device")

    monkeypatch.setattr(environment, "set_up", fail)
    assert run("cpu", cpu.make, []) == 1
    said = capsys.readouterr().err
    assert said == (
        "image: cpu: expected the cpu matrix's environment, found No space left on device; "
        "torch: the disk is full; free 4 GB\n"
    )
