"""The requirement of vllm-ascend on torch-npu."""

import re

from patches.patch import Drifted, Lines, NotNeeded, Patch

DATED = re.compile(r"torch-npu==(2\.7\.1)(\.dev\d+)")
RANGE = r"torch-npu>=\1\2,<2.8"  # the dated build, and the release that followed it


def _edit(text: str) -> str:
    """Widens the one dated pin."""
    found = DATED.findall(text)
    if len(found) > 1:
        raise Drifted("one dated pin of torch-npu", str(len(found)))
    if not found and not re.search(r"torch-npu>=2\.7\.1\.dev\d+,<2\.8", text):
        raise NotNeeded("torch-npu is not pinned to a dated build")
    return DATED.sub(RANGE, text)


PATCH = Patch(
    id="vllm-ascend/torch-npu-pin",
    problem="",
    matrices=("performance", "commercial"),
    why="requires exactly torch-npu 2.7.1.dev20250724: installing with requirements replaces the matrix's wheel "
    "by it, or fails where no index has it",
    upstream="v0.11.0rc1 asks for 2.7.1",
    targets=tuple(
        Lines("vllm_ascend", pattern, _edit)
        for pattern in ("requirements.txt", "pyproject.toml", "vllm_ascend-*.dist-info/METADATA")
    ),
)
