"""The environment variables that decide how the stack behaves; others are nobody's business."""

from __future__ import annotations

import os
import re

from checks.secrets import redacted

VARIABLES = re.compile(
    r"^(ASCEND|ACL|ATB|HCCL|HCCP|NPU|TASK_QUEUE|CPU_AFFINITY|PYTORCH|TORCH|VLLM|VERL|RAY|NCCL|GLOO|TP_SOCKET|MASTER|OMP|"
    r"MKL|HYDRA|HF|TRANSFORMERS|CUDA|LCCL|LCAL|P2P_HCCL|MULTI_STREAM|STREAMS_PER_DEVICE|COMBINED_ENABLE|SOC)_|"
    r"^(PATH|PYTHONPATH|LD_LIBRARY_PATH|LD_PRELOAD|HOME|TMPDIR|VIRTUAL_ENV|LANG|LC_ALL|INF_NAN_MODE_ENABLE|RANK|WORLD_SIZE"
    r"|LOCAL_RANK|(HTTPS?|NO|ALL)_PROXY|(https?|no|all)_proxy)$"
)


def variables() -> dict[str, str]:
    """The variables that matter, without what they must not tell."""
    return redacted({name: value for name, value in os.environ.items() if VARIABLES.match(name)})
