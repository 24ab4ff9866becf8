"""The one line that says why a run failed, found in logs as verl, Ray and vLLM write them."""

import pytest

from recipes.failure import root_cause, status

DRIVER = """Error executing job with overrides: ['trainer.nnodes=1']
Traceback (most recent call last):
  File "/site-packages/verl/trainer/main_ppo.py", line 42, in main
    run_ppo(config)
"""


@pytest.mark.parametrize(
    ("log", "text", "line"),
    [
        pytest.param(
            DRIVER
            + """ray.exceptions.RayTaskError(AssertionError): ray::TaskRunner.run() (pid=12, ip=10.0.0.1)
  File "/site-packages/verl/trainer/ppo/ray_trainer.py", line 9, in init_workers
ray.exceptions.RayTaskError(AssertionError): ray::WorkerDict.actor_rollout_init_model() (pid=13)
  File "/site-packages/megatron/core/transformer/dot_product_attention.py", line 50, in __init__
AssertionError: Context parallelism is only supported by TEDotProductAttention!
""",
            "AssertionError: Context parallelism is only supported by TEDotProductAttention!",
            9,
            id="the innermost cause of the driver's traceback",
        ),
        pytest.param(
            "\x1b[36m(raylet)\x1b[0m ModuleNotFoundError: No module named 'acl'\n"
            "\x1b[36m(WorkerDict pid=7, ip=10.0.0.1)\x1b[0m torch.OutOfMemoryError: NPU out of memory. Tried 2 GiB\n"
            "\x1b[36m(WorkerDict pid=8)\x1b[0m RuntimeError: [gloo] Connection closed by peer [10.0.0.1]:3242\n"
            + DRIVER
            + "ray.exceptions.RayTaskError(RuntimeError): ray::TaskRunner.run() (pid=12)\n"
            "RuntimeError: [gloo] Connection closed by peer [10.0.0.1]:3242\n",
            "torch.OutOfMemoryError: NPU out of memory. Tried 2 GiB",
            2,
            id="a broken connection is not the cause",
        ),
        pytest.param(
            "(WorkerDict pid=7) *** SIGSEGV received at time=1764 on cpu 0 ***\n"
            + DRIVER
            + "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n",
            "*** SIGSEGV received at time=1764 on cpu 0 ***",
            1,
            id="a worker that was killed",
        ),
        pytest.param(
            "(WorkerDict pid=7) ValueError: tried one way, then another\n" + DRIVER + "KeyError: 'raw_prompt'\n",
            "KeyError: 'raw_prompt'",
            6,
            id="an error that was handled is not the cause",
        ),
        pytest.param(
            "(WorkerDict pid=7) OSError: [Errno 28] No space left on device [repeated 2x across cluster]\n",
            "OSError: [Errno 28] No space left on device",
            1,
            id="what Ray adds is left out",
        ),
    ],
)
def test_the_cause_is_found(log, text, line):
    cause = root_cause(log.splitlines())
    assert (cause.text, cause.line) == (text, line)


def test_a_log_without_an_error_has_no_cause():
    assert root_cause(["step:1 - a:1", "Traceback (most recent call last):", "  ValueError: in the middle"]) is None


def test_a_status_in_words():
    assert status(1) == "exit code 1"
    assert "SIGKILL" in status(137) and "memory" in status(137)
    assert status(139) == "ended by signal 11"
