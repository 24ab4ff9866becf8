"""Random numbers: a seed gives the CPU's numbers; generators are the npu's own and the CPU's is left alone."""

import npu_device
import pytest
import torch
import torch.nn.functional as F

DRAWS = {
    "rand": lambda device, generator: torch.rand(100, device=device, generator=generator),
    "randn": lambda device, generator: torch.randn(100, device=device, generator=generator),
    "randint": lambda device, generator: torch.randint(0, 50, (100,), device=device, generator=generator),
    "randperm": lambda device, generator: torch.randperm(50, device=device, generator=generator),
    "normal_": lambda device, generator: torch.empty(100, device=device).normal_(2, 3, generator=generator),
    "exponential_": lambda device, generator: torch.empty(100, device=device).exponential_(generator=generator),
    "bernoulli": lambda device, generator: torch.bernoulli(torch.full((99,), 0.3, device=device), generator=generator),
    "multinomial": lambda device, generator: torch.multinomial(torch.ones(50, device=device), 9, generator=generator),
    "trunc_normal_": lambda device, generator: torch.nn.init.trunc_normal_(
        torch.empty(50, device=device), generator=generator
    ),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_seed_gives_the_cpus_numbers(name):
    cpu, npu = torch.Generator().manual_seed(5), torch.Generator(device="npu").manual_seed(5)
    for _ in range(2):
        expected, actual = DRAWS[name]("cpu", cpu), DRAWS[name]("npu", npu)
        assert actual.device.type == "npu"
        assert torch.equal(actual.cpu(), expected)


@pytest.mark.parametrize("name", DRAWS)
def test_without_a_generator_the_devices_default_one_is_used(name):
    torch.manual_seed(5)
    cpu_state = torch.get_rng_state()
    actual = DRAWS[name]("npu", None)
    assert torch.equal(torch.get_rng_state(), cpu_state)
    torch.manual_seed(5)
    assert torch.equal(actual.cpu(), DRAWS[name]("cpu", None))


@pytest.mark.parametrize("p", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_draws_from_the_npus_generator(p, dtype):
    x = torch.ones(1000, dtype=dtype)
    torch.manual_seed(5)
    cpu_state = torch.get_rng_state()
    y = x.npu().requires_grad_()
    actual = F.dropout(y, p)
    actual.sum().backward()
    assert torch.equal(torch.get_rng_state(), cpu_state)
    expected = F.dropout(x, p)
    assert torch.equal(actual.cpu(), expected)
    torch.testing.assert_close(y.grad.cpu(), expected, rtol=1e-2, atol=0)
    assert not torch.equal(F.dropout(y, 0.5), F.dropout(y, 0.5))


def test_dropout_that_does_nothing():
    x = torch.ones(10, device="npu")
    assert torch.equal(F.dropout(x, 0.5, training=False), x)
    assert torch.equal(F.dropout(x, 0.0), x)


def test_states_are_saved_and_restored_for_each_device():
    for index in range(2):
        generator = npu_device.default_generator(index)
        state = generator.get_state()
        first = torch.rand(3, device=f"npu:{index}")
        torch.rand(3, device=f"npu:{1 - index}")
        generator.set_state(state)
        assert torch.equal(torch.rand(3, device=f"npu:{index}"), first)


def test_generators_are_cloned_and_seeded():
    generator = torch.Generator(device="npu:1")
    assert generator.device == torch.device("npu:1")
    generator.manual_seed(11)
    assert generator.initial_seed() == 11
    twin = generator.clone_state()
    assert torch.equal(
        torch.rand(3, device="npu:1", generator=generator), torch.rand(3, device="npu:1", generator=twin)
    )


def test_a_checkpoint_repeats_its_dropout():
    from torch.utils.checkpoint import checkpoint

    x = torch.randn(64, device="npu", requires_grad=True)
    output = checkpoint(lambda t: F.dropout(t, 0.5), x, use_reentrant=False)
    output.sum().backward()
    torch.testing.assert_close(x.grad, torch.where(output == 0, 0.0, 2.0))
