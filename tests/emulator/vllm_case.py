"""Run by test_vllm_ascend, on the emulator: one engine, one JSON line of what it did.

vllm_case.py FOLDER STEPS ENGINE_ARGUMENTS: a model of vllm_reference.py in FOLDER; STEPS are run in their order.
"""

import json
import os
import sys
from pathlib import Path

import torch
from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt


class Case:
    """The engine and the steps that can be done with it; each step returns what the test compares."""

    def __init__(self, folder, arguments):
        self.folder = folder
        self.expected = json.loads((folder / "expected.json").read_text())
        self.llm = LLM(
            model=str(folder / arguments.pop("model", "model")),
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=256,
            max_num_seqs=4,
            seed=0,
            **arguments,
        )

    def generate(self):
        """Greedy tokens of the prompts."""
        prompts = [TokensPrompt(prompt_token_ids=p) for p in self.expected["prompts"]]
        parameters = SamplingParams(
            temperature=0, max_tokens=len(self.expected["old"][0]), ignore_eos=True, detokenize=False
        )
        self.llm.llm_engine.reset_prefix_cache()
        return [list(o.outputs[0].token_ids) for o in self.llm.generate(prompts, parameters, use_tqdm=False)]

    def load_new(self):
        """The second weights into the running model, as verl does it."""
        return self._load(torch.load(self.folder / "new_weights.pt"))

    def _load(self, weights):
        model = self._model()
        for layer in model.model.layers:
            for name, parameter in layer.mlp.named_parameters():
                if "w13_weight" in name or "w2_weight" in name:  # these parameters were replaced after loading
                    parameter.weight_loader = layer.mlp.experts.weight_loader
        return len(model.load_weights(iter(weights.items())))

    def _model(self):
        runner = self.llm.llm_engine.model_executor.driver_worker.worker.model_runner
        return runner.model.unwrap() if hasattr(runner.model, "unwrap") else runner.model

    def sleep_1(self):
        return self._sleep(1)

    def sleep_2(self):
        return self._sleep(2)

    def _sleep(self, level):
        """Bytes that became free."""
        free = torch.npu.mem_get_info()[0]
        self.llm.sleep(level)
        return torch.npu.mem_get_info()[0] - free

    def wake(self):
        """Whether a weight is NaN once the weights have their memory back."""
        self.llm.wake_up(tags=["weights"])
        nan = any(bool(p.isnan().any()) for p in self._model().parameters())
        self.llm.wake_up(tags=["kv_cache"])
        return nan

    def counters(self):
        from vllm.compilation.counter import compilation_counter

        return {k: v for k, v in vars(compilation_counter).items() if v}

    def memory(self):
        """Blocks of the KV cache, used and total bytes."""
        free, total = torch.npu.mem_get_info()
        return self.llm.llm_engine.vllm_config.cache_config.num_gpu_blocks, total - free, total


def main(folder, steps, arguments):
    case = Case(Path(folder), json.loads(arguments))
    results = [[step, getattr(case, step)()] for step in steps.split(",")]
    print("RESULT", json.dumps(results), flush=True)
    if "RANK" in os.environ:
        torch.distributed.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
