"""Imports what a worker of verl imports, in its order: vllm-ascend patches names before its model runner takes them."""

import verl.workers.megatron_workers  # noqa: F401
from vllm_ascend.utils import adapt_patch

adapt_patch(is_global_patch=True)
adapt_patch()

import vllm_ascend.worker.model_runner_v1  # noqa: E402, F401
