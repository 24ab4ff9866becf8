"""A small transformer trains on the npu exactly as on the CPU: every loss and gradient norm, bit for bit."""

import npu_device
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

STEPS = 12
WORDS = 50

VARIANTS = {
    "adamw": {},
    "adamw, dropout": {"dropout": 0.1},
    "sgd": {"optimizer": "sgd"},
    "bfloat16": {"dtype": torch.bfloat16},
    "multi-tensor adamw": {"foreach": True},
    "one tensor at a time": {"foreach": False},
    "fused adamw": {"fused": True},
    "poisoned memory": {"poison": 2},
}


class Translator(nn.Module):
    """Embedding, an encoder-decoder transformer, a head."""

    def __init__(self, dropout):
        super().__init__()
        self.words = nn.Embedding(WORDS, 32)
        self.body = nn.Transformer(32, 4, 2, 2, 64, dropout=dropout, batch_first=True)
        self.head = nn.Linear(32, WORDS)

    def forward(self, source, target):
        size = target.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(size, device=source.device, dtype=self.head.weight.dtype)
        return self.head(self.body(self.words(source), self.words(target), tgt_mask=mask))


def train(device, optimizer="adamw", dtype=torch.float32, dropout=0.0, poison=0, **options):
    """[(loss, gradient norm)] of STEPS steps, and the trained parameters on the CPU."""
    torch.manual_seed(0)
    model = Translator(dropout).to(device=device, dtype=dtype)
    kind = torch.optim.AdamW if optimizer == "adamw" else torch.optim.SGD
    momentum = {} if optimizer == "adamw" else {"momentum": 0.9}
    updates = kind(model.parameters(), lr=1e-2, **momentum, **options)
    data = torch.Generator().manual_seed(1)
    torch.manual_seed(2)
    npu_device.set_poison(poison)
    history = []
    for _ in range(STEPS):
        source, target = (torch.randint(0, WORDS, (4, 12), generator=data).to(device) for _ in range(2))
        loss = F.cross_entropy(model(source, target).float().flatten(0, 1), target.flatten())
        updates.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        updates.step()
        history.append((loss.item(), norm.item()))
    npu_device.set_poison(0)
    return history, [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize("name", VARIANTS)
def test_training_equals_the_cpus(name):
    with sdpa_kernel(SDPBackend.MATH):  # the CPU has a fused attention of its own, which rounds differently
        expected, expected_parameters = train("cpu", **VARIANTS[name])
        actual, actual_parameters = train("npu", **VARIANTS[name])
    assert actual == expected
    assert all(map(torch.equal, actual_parameters, expected_parameters))
    assert actual[-1][0] < actual[0][0]


def test_a_second_device_trains_alike():
    with sdpa_kernel(SDPBackend.MATH):
        assert train("npu:1")[0] == train("npu:0")[0]


def test_nothing_is_left_on_the_device():
    train("npu")
    before = npu_device.memory_used()
    train("npu")
    assert npu_device.memory_used() == before
