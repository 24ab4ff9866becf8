"""verl's own converter of weights, after importing what a new architecture brings: `python -m recipes.convert MODULE …`

Runs on the devices and the packages of the environment it is started in.
"""

import contextlib
import importlib
import runpy
import sys

if __name__ == "__main__":
    with contextlib.suppress(ImportError):  # as the converter does: MindSpeed replaces parts of Megatron as it loads
        importlib.import_module("mindspeed.megatron_adaptor")
    importlib.import_module(sys.argv.pop(1))
    runpy.run_module("scripts.converter_hf_to_mcore", run_name="__main__", alter_sys=True)
