"""`invoke triage`: logs of all kinds in, the first cause out."""

import fcntl
import gzip
import json
import os
import subprocess
import sys
import time
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checks import conditions, problems
from checks.triage import command
from checks.triage.cleaning import clean
from checks.triage.clock import Gaps, times
from checks.triage.diagnosis import diagnose
from checks.triage.reading import BLOCK, LONGEST, Log
from checks.triage.scan import STALL, scan
from checks.triage.sieve import Sieve
from errors import UserError
from tests.test_tasks import ROOT

OOM = "torch.OutOfMemoryError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.96 GiB total capacity)"
CLOSED = "RuntimeError: [pair.cc:553] Connection closed by peer [192.0.2.3]:50331"
NOTIFY = (
    "EI0002: [PID: 7] 2025-11-30-12:31:00.000.001 The wait execution of the Notify register times out. Reason: none"
)
DRIVER = (
    "Traceback (most recent call last):",
    '  File "/verl/trainer/main_ppo.py", line 42, in main',
    "    run_ppo(config)",
)
TASK = "ray.exceptions.RayTaskError(RuntimeError): ray::TaskRunner.run() (pid=12, ip=192.0.2.2)"


@pytest.fixture
def write(tmp_path):
    """Writes lines into a log; its path."""

    def write(*lines, name="train.log", folder=tmp_path):
        path = folder / name
        path.write_bytes(b"".join(line if isinstance(line, bytes) else f"{line}\n".encode() for line in lines))
        return str(path)

    return write


def told(*logs):
    return diagnose([scan(Log(log)) for log in logs])


def roles(diagnosis):
    return [(finding.problem.id, finding.role) for finding in diagnosis.findings]


# What cannot be read


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "found nothing in it"),
        (bytes(range(256)) * 40, "found a binary file"),
        (gzip.compress(b""), "found nothing in it"),
        (b"\x1f\x8b\x08\x00 no gzip at all", "expected a gzipped log"),
    ],
    ids=["empty", "binary", "empty, gzipped", "broken gzip"],
)
def test_what_is_no_log_is_refused(write, content, message):
    with pytest.raises(UserError, match=message) as refused:
        command.run(write(content), [], False, "en")
    assert refused.value.code == 2


def test_a_folder_and_a_missing_file_are_refused(tmp_path):
    for name, message in ((tmp_path, "without a train.log"), (tmp_path / "none", "No such file")):
        with pytest.raises(UserError, match=message):
            command.run(str(name), [], False, "en")


def test_exit_codes_and_messages(write):
    def triage(*arguments, **options):
        words = [sys.executable, str(ROOT / "cli.py"), "triage", *arguments]
        return subprocess.run(words, capture_output=True, cwd=ROOT, timeout=120, **options)

    assert triage(write(OOM)).returncode == 0
    nothing = triage("-", "--lang", "zh", input=b"all is well\n")
    assert nothing.returncode == 3 and "没有发现已知问题" in nothing.stdout.decode()
    refused = triage(str(ROOT))
    assert refused.returncode == 2 and b"expected a log or a run directory" in refused.stderr
    assert b"Traceback" not in refused.stderr


# Reading


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_lines_are_counted_over_blocks(write, pack):
    filler = [b"x" * 999 + b"\n"] * (3 * BLOCK // 1000)
    log = Log(write(pack(b"".join([*filler, f"{OOM}\n".encode(), *filler]))))
    (finding,) = diagnose([scan(log)]).findings
    assert (finding.line, log.lines) == (len(filler) + 1, 2 * len(filler) + 1)


def test_what_a_cut_off_archive_holds_is_used(write):
    lines = [f"{OOM}\n", *(f"{number * 7919} {number}\n" for number in range(100_000))]
    log = Log(write(gzip.compress("".join(lines).encode())[:-50_000]))
    assert roles(diagnose([scan(log)])) == [("D1", "cause")]
    assert "cut off" in log.notes[0]


def test_a_line_of_five_megabytes_and_no_end(write):
    long = b"y" * (5 * LONGEST)
    diagnosis = told(write(f"{OOM}\n".encode(), long, b"\n", f"{CLOSED}\n".encode(), long))
    assert [finding.line for finding in diagnosis.findings] == [1, 3]
    assert diagnosis.logs[0].log.lines == 4


def test_bytes_that_are_no_utf8(write):
    assert roles(told(write(b"\xff\xfe(WorkerDict pid=7) \xe4\n", f"{OOM} \n".encode()[:-1] + b"\xff\n"))) == [
        ("D1", "cause")
    ]


# Cleaning


@pytest.mark.parametrize(
    ("raw", "text", "source", "rank", "time", "said"),
    [
        ("\x1b[36m(WorkerDict pid=7, ip=192.0.2.2)\x1b[0m a", "a", "WorkerDict pid=7, ip=192.0.2.2", "", "", 1),
        ("(WorkerDict pid=7) a [repeated 15x across cluster]", "a", "WorkerDict pid=7", "", "", 15),
        ("(Worker_TP3 pid=9) ERROR 11-30 12:31:02 [core.py:710] a", "a", "Worker_TP3 pid=9", "", "12:31:02", 1),
        ("(TaskRunner pid=1) (EngineCore_DP0 pid=2) a", "a", "TaskRunner pid=1 > EngineCore_DP0 pid=2", "", "", 1),
        ("[rank3]: a", "a", "", "3", "", 1),
        ("50%|##  | 1/2\r100%|####| 2/2\ra", "a", "", "", "", 1),
        ("[ERROR] 2025-11-30-12:31:02 (PID:7, Device:1, RankID:5) ERR02200", None, "", "5", "12:31:02", 1),
    ],
)
def test_a_line_is_taken_apart(raw, text, source, rank, time, said):
    line = clean(raw)
    assert (line.source, line.rank, line.time, line.times) == (source, rank, time, said)
    assert text is None or line.text == text


# The first cause


def test_the_cause_comes_before_what_follows_from_it(write):
    diagnosis = told(write(f"(WorkerDict pid=7) {OOM}", f"(WorkerDict pid=8) {CLOSED}", *DRIVER, TASK, CLOSED))
    assert roles(diagnosis) == [("D1", "cause"), ("C13", "consequence")]
    assert diagnosis.findings[0].source == "WorkerDict pid=7" and not diagnosis.unexplained


def test_only_consequences_are_called_so(write, capsys):
    assert command.run(write(f"(WorkerDict pid=8) {CLOSED}", *DRIVER, TASK, CLOSED), [], False, "en") == 0
    assert "look at the log of the process that ended first" in capsys.readouterr().out


def test_an_unknown_error_is_not_explained_by_what_follows_from_it(write, capsys):
    log = write(
        "(WorkerDict pid=7) ValueError: the moon is full", f"(WorkerDict pid=8) {CLOSED}", *DRIVER, TASK, CLOSED
    )
    assert command.run(log, [], False, "en") == 3
    shown = capsys.readouterr().out
    assert "no known problem" in shown and "the moon is full" in shown and f"{log}:1" in shown


def test_a_known_problem_after_an_unknown_error_is_not_its_cause(write):
    diagnosis = told(
        write(*DRIVER, "KeyError: 'raw_prompt'", *["shutting down"] * 50, "OSError: [Errno 24] Too many open files")
    )
    assert roles(diagnosis) == [("C9", "cause")], "the driver's last error counts"
    diagnosis = told(write(*DRIVER, "KeyError: 'raw_prompt'", *["bye"] * 50, "(WorkerDict pid=7) Too many open files"))
    assert roles(diagnosis) == [("C9", "also")] and not diagnosis.known
    assert diagnosis.unexplained[1].text == "KeyError: 'raw_prompt'"


def test_the_message_of_an_exception_may_have_several_lines(write):
    lines = (
        *DRIVER,
        "RuntimeError: Error(s) in loading state_dict for GPTModel:",
        '\tUnexpected key(s) in state_dict: "a._extra_state"',
    )
    assert roles(told(write(*lines))) == [("F2", "cause")]


def test_what_is_said_is_quoted_before_source_that_a_traceback_shows(write):
    words = "Please set micro_batch_size or set use_flash_attn=True in config."
    (finding,) = told(write(*DRIVER, f"    raise RuntimeError('{words}')", f"RuntimeError: {words}")).findings
    assert (finding.problem.id, finding.line, finding.times) == ("F13", 5, 2)


def test_a_traceback_is_that_of_the_same_process(write):
    frame = "  File x, line 7, in compute_log_prob"
    lines = ("(Dict pid=1) Traceback (most recent call last):", "(Dict pid={})" + frame, f"(Dict pid=1) {OOM}")
    for process, problem in ((1, "S10"), (2, "D1")):
        assert roles(told(write(*(line.format(process) for line in lines)))) == [(problem, "cause")]


def test_a_traceback_over_two_blocks(write):
    filler = [b"y" * 99 + b"\n"] * (BLOCK // 100)
    lines = [
        b"Traceback (most recent call last):\n",
        b"  File x, line 7, in compute_log_prob\n",
        *filler[:90],
        f"{OOM}\n".encode(),
    ]
    for cut in (40, 60, 70):  # the block ends within the traceback
        assert roles(told(write(*filler[cut:], *lines))) == [("S10", "cause")]


def test_a_generic_fault_gives_way_to_what_says_more(write, capsys):
    kernel = "RuntimeError: NPU function error: AclrtSynchronizeDeviceWithTimeout, error code is 507015"
    assert command.run(write(kernel), [], False, "en") == 0
    assert "generic: K1" in (shown := capsys.readouterr().out) and "plog" in shown
    assert roles(told(write("HCCL_BUFFSIZE is too SMALL, NEEDED = 609MB", kernel))) == [
        ("E11", "cause"),
        ("K1", "also"),
    ]


def test_how_many_said_it_and_until_when(write):
    lines = [f"(WorkerDict pid={pid}) ERROR 11-30 12:00:{pid:02} [core.py:7] {OOM}" for pid in range(8)]
    (finding,) = told(write(*lines, f"(WorkerDict pid=9) {OOM} [repeated 3x across cluster]")).findings
    assert (finding.times, finding.processes, finding.time, finding.last_time) == (11, 9, "12:00:00", "12:00:07")


def test_the_earliest_of_several_logs(write):
    first = write(f"(Worker pid=1) ERROR 11-30 12:30:05 [a.py:1] {NOTIFY}", name="rank0.log")
    second = write("ERROR 11-30 12:00:05 [a.py:1] OSError: [Errno 24] Too many open files", name="rank1.log")
    third = write(f"ERROR 11-30 11:59:00 [a.py:1] {OOM}", name="rank2.log")
    assert roles(told(first)) == [("C4", "cause")]
    diagnosis = told(first, second, third)
    assert roles(diagnosis) == [("D1", "cause"), ("C9", "also"), ("C4", "consequence")]
    assert diagnosis.findings[0].log == third


# Times without a line


def at(clock, text="working"):
    return f"(WorkerDict pid=7) INFO 11-30 {clock} [a.py:1] {text}"


def test_a_stall_is_told_with_its_phase(write):
    start = [
        "Started a local Ray instance",
        "TaskRunner hostname:",
        "Total training steps: 9",
        "Model config after override",
    ]
    loading = [*start, at("12:00:00", "load from dist_checkpointing"), at("12:31:00", "loaded")]
    (finding,) = told(write(*loading)).findings
    assert finding.problem.id == "S6" and "31 minutes" in finding.evidence.en and finding.line == 6
    assert not told(write(*loading[:-1], at("12:09:00", "loaded"))).findings, "nine minutes are none"
    cached = at("12:00:00", "Using /root/.cache/torch_extensions/py311_cpu as PyTorch extensions root...")
    assert [f.problem.id for f in told(write(cached, at("13:00:00"))).findings] == ["B8"]


def test_a_run_that_went_on_did_not_stall(write):
    step = "step:{} - critic/score/mean:0.5"
    gap = [at("12:00:00"), at("12:40:00")]
    assert [f.problem.id for f in told(write(step.format(1), *gap)).findings] == ["C24"]
    assert not told(write(step.format(1), *gap, step.format(2))).findings, "long answers take long"
    assert not told(write(at("12:00:00"), step.format(1), at("12:40:00"))).findings, "a step has no time of its own"


def test_a_run_that_is_alive_and_silent(write, tmp_path, capsys):
    log = write("Started a local Ray instance", "Training from scratch", "step:1 - critic/score/mean:0.5")
    os.utime(log, (0, time.time() - 2400))
    with (tmp_path / ".lock").open("w") as lock:
        assert command.run(str(tmp_path), [], False, "en") == 3, "it has ended"
        capsys.readouterr()
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert command.run(str(tmp_path), [], False, "zh") == 0
        assert "C24" in (shown := capsys.readouterr().out) and "此行之后 40 分钟没有任何输出；阶段：step 2" in shown


@given(st.lists(st.integers(0, 86399), max_size=30), st.integers(1, 40))
def test_gaps_are_those_of_a_slow_reading(seconds, block):
    lines = [
        f"2025-11-30 {second // 3600:02}:{second // 60 % 60:02}:{second % 60:02} x\n".encode() for second in seconds
    ]
    gaps, found = Gaps(STALL), []
    for start in range(0, len(lines), block):
        found += [gap for *_, gap in gaps.found(b"".join(lines[start : start + block]))]
    steps = [(after - before) % 86400 for before, after in pairwise(seconds)]
    assert found == [step for step in steps if STALL <= step < 43200]


def test_what_is_no_time_of_day():
    for text in (b"[12:00:00<01:00:00]", b"ratio 12:00:00", b"11-30 1a:00:00 x", b"11-30 12:00", b""):
        assert not len(times(text)[0])


# The sieve


@given(
    st.lists(st.text("abcd", min_size=4, max_size=8), min_size=1, max_size=6, unique=True),
    st.text("abcd\n", max_size=200),
)
def test_the_sieve_finds_what_a_search_finds(texts, data):
    found = sorted(Sieve((text, text) for text in texts).found(data.encode()))
    assert found == sorted(
        (place, text) for text in texts for place in range(len(data)) if data.startswith(text, place)
    )


# With the run's recipe


NON_BLOCK = "TypeError: collective_rpc() got an unexpected keyword argument 'non_block'"
RECIPE = """
actor_rollout_ref:
  actor: {ppo_max_token_len_per_gpu: 16384}
  rollout: {mode: async, n: 16, enable_prefix_caching: true}
trainer: {device: cuda}
launch: {env: {TASK_QUEUE_ENABLE: 2}}
"""


@pytest.fixture
def run_folder(tmp_path, write):
    (tmp_path / "config.yaml").write_text(RECIPE)

    def make(*lines):
        write(*lines)
        return str(tmp_path)

    return make


@pytest.mark.parametrize(
    ("line", "change"),
    [
        ("RuntimeError: Do not support TASK_QUEUE_ENABLE = 2", "--set launch.env.TASK_QUEUE_ENABLE=1  (now 2)"),
        (NON_BLOCK, "--set actor_rollout_ref.rollout.mode=sync  (now async)"),
        ("ValueError: vLLM Ascend does not support V0 engine.", "--set +launch.env.VLLM_USE_V1=1  (now null)"),
        ("ValueError: Current node has no NPU available. x", "--set trainer.device=npu  (now cuda)"),
    ],
)  # fmt: skip
def test_the_exact_change_for_the_recipe(run_folder, capsys, line, change):
    assert command.run(run_folder(line), [], False, "en") == 0
    assert change in capsys.readouterr().out


def test_a_condition_that_the_recipe_does_not_meet_is_named(run_folder, capsys, tmp_path):
    folder = run_folder(NON_BLOCK)
    (tmp_path / "config.yaml").write_text(RECIPE.replace("async", "sync"))
    command.run(folder, [], True, "en")
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["changes"] == [
        "this recipe does not have actor_rollout_ref.rollout.mode = async",
        "actor_rollout_ref.rollout.mode is sync already",
    ]


def test_a_recipe_that_cannot_be_read_is_refused(run_folder, tmp_path):
    folder = run_folder(OOM)
    (tmp_path / "config.yaml").write_text("a: [")
    with pytest.raises(UserError, match="expected a run's recipe"):
        command.run(folder, [], False, "en")


def test_the_linter_speaks_of_the_same_recipe(tmp_path, write, capsys):
    """The changes that depend on the recipe's sizes are the linter's."""
    from omegaconf import OmegaConf

    from recipes.compose import compose
    from recipes.lint.run import findings_of_run

    recipe = compose("smoke", ["data.train_batch_size=7"])
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(recipe.config))
    write("AssertionError: only support equal chunk. Got size of DataProto 7 and chunk 2.")
    command.run(str(tmp_path), [], False, "en", findings_of_run)
    assert "[sizes.mini-batch]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("a.b = 1", True), ("a.b = 2", False), ("a.b != 2", True), ("a.b > 0", True), ("a.b > 1", False),
        ("a.b < 2", True), ("a.c = true", True), ("a.none = null", True), ("a.none > 1", False), ("a.text > 1", False),
    ],
)  # fmt: skip
def test_a_condition(condition, holds):
    from omegaconf import OmegaConf

    assert conditions.holds(OmegaConf.create({"a": {"b": 1, "c": True, "text": "x"}}), condition) == holds


def test_a_condition_that_is_none():
    from omegaconf import OmegaConf

    with pytest.raises(ValueError, match="KEY OP VALUE"):
        conditions.holds(OmegaConf.create({}), "a is b")


# Whatever comes


PIECES = [
    OOM,
    CLOSED,
    NOTIFY,
    "step:3 - critic/score/mean:0.5 - a:nan",
    "\r",
    "\x1b[36m",
    "(WorkerDict pid=7) ",
    "[repeated 2x across cluster]",
]
PIECES += [
    "Traceback (most recent call last):",
    "  File x, in update_actor",
    "Error:",
    "step:",
    "11-30 12:00:00 ",
    "pid=",
    "\n",
    "\0",
]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=20), st.binary(max_size=20)), max_size=60))
def test_any_bytes_give_a_diagnosis_or_a_message(tmp_path, pieces):
    path = tmp_path / "fuzzed"
    path.write_bytes(
        b"".join(piece if isinstance(piece, bytes) else piece.encode("utf-8", "replace") for piece in pieces)
    )
    try:
        diagnosis = told(str(path))
    except UserError as error:
        assert str(path) in str(error)
        return
    lines = path.read_bytes().split(b"\n")
    for finding in diagnosis.findings:
        assert finding.line is None or 1 <= finding.line <= len(lines)
        assert finding.problem.id in problems.load()
