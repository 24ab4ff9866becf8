"""Each way of mixing tensors of two devices raises as on a device; the few that a device allows pass."""

import itertools

import npu_device
import pytest
import torch
import torch.nn.functional as F

OTHER_DEVICE = "Expected all tensors to be on the same device, but found at least two devices, npu:0 and cpu"


def on_npu(*shape):
    return torch.ones(*shape or (3, 3), device="npu")


def on_cpu(*shape):
    return torch.ones(*shape or (3, 3))


def row(length=1):
    return torch.zeros(length, dtype=torch.long)


MIXED = {
    "npu + cpu": lambda: on_npu() + on_cpu(),
    "cpu + npu": lambda: on_cpu() + on_npu(),
    "npu @ cpu": lambda: on_npu() @ on_cpu(),
    "npu.add_(cpu)": lambda: on_npu().add_(on_cpu()),
    "cpu.add_(npu)": lambda: on_cpu().add_(on_npu()),
    "npu == cpu": lambda: on_npu() == on_cpu(),
    "out= on the cpu": lambda: torch.add(on_npu(), on_npu(), out=on_cpu()),
    "cat": lambda: torch.cat([on_npu(), on_cpu()]),
    "stack": lambda: torch.stack([on_cpu(), on_npu()]),
    "where, condition": lambda: torch.where(on_cpu() > 0, on_npu(), on_npu()),
    "where, value": lambda: torch.where(on_npu() > 0, on_npu(), on_cpu()),
    "linear, weight": lambda: F.linear(on_npu(), on_cpu()),
    "linear, bias": lambda: F.linear(on_npu(), on_npu(), on_cpu(3)),
    "bmm": lambda: torch.bmm(on_npu(1, 3, 3), on_cpu(1, 3, 3)),
    "embedding, indices": lambda: F.embedding(row(), on_npu()),
    "embedding, table": lambda: F.embedding(row().npu(), on_cpu()),
    "index_select": lambda: on_npu().index_select(0, row()),
    "index_select, index without dimensions": lambda: on_npu().index_select(0, torch.tensor(0)),
    "gather": lambda: on_npu().gather(0, row(3).view(1, 3)),
    "scatter": lambda: on_npu().scatter(0, row(3).view(1, 3), on_npu(1, 3)),
    "cpu[npu index]": lambda: on_cpu()[row().npu()],
    "masked_fill": lambda: on_npu().masked_fill(on_cpu() > 0, 0.0),
    "layer_norm": lambda: F.layer_norm(on_npu(), (3,), on_cpu(3), on_cpu(3)),
    "cross_entropy, target": lambda: F.cross_entropy(on_npu(), row(3)),
    "conv1d, weight": lambda: F.conv1d(on_npu(1, 3, 3), on_cpu(3, 3, 1)),
    "attention, mask": lambda: F.scaled_dot_product_attention(*[on_npu(1, 1, 3, 3)] * 3, attn_mask=on_cpu()),
    "lerp": lambda: torch.lerp(on_npu(), on_npu(), on_cpu()),
    "addcmul": lambda: torch.addcmul(on_npu(), on_cpu(), on_npu()),
    "multi-tensor add": lambda: torch._foreach_add([on_npu()], [on_cpu()]),
    "multi-tensor add_": lambda: torch._foreach_add_([on_npu(), on_cpu()], [on_npu(), on_npu()]),
    "searchsorted": lambda: torch.searchsorted(on_npu(3), on_cpu(3)),
    "written tensor without dimensions": lambda: torch.tensor(1.0).add_(on_npu(1)[0]),
    "conv1d, bias": lambda: F.conv1d(on_npu(1, 3, 3), on_npu(3, 3, 1), on_cpu(3)),
    "dot product with a tensor without dimensions": lambda: torch.dot(on_npu(1), torch.tensor(1.0)),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixing_devices_raises(name):
    with pytest.raises(RuntimeError, match=r"(?i)same device|device type|tensor for argument"):
        MIXED[name]()


def test_the_message_names_both_devices_and_the_argument():
    with pytest.raises(RuntimeError, match=rf"{OTHER_DEVICE}! \(when checking argument for argument mat2 in method"):
        on_npu() @ on_cpu()


@pytest.mark.parametrize("operation", ["add", "mul", "maximum", "eq", "where"])
@pytest.mark.parametrize("left, right", itertools.permutations(["npu:0", "npu:1"]))
def test_two_npus_do_not_mix(operation, left, right):
    a, b = torch.ones(3, device=left), torch.ones(3, device=right)
    with pytest.raises(RuntimeError, match=f"found at least two devices, {left} and {right}"):
        torch.where(a > 0, a, b) if operation == "where" else getattr(torch, operation)(a, b)


ALLOWED = {
    "a number": (lambda: on_npu() * 2, 18.0),
    "a cpu tensor without dimensions": (lambda: on_npu() + torch.tensor(2.0), 27.0),
    "on the left": (lambda: torch.tensor(2.0) - on_npu(), 9.0),
    "for a value in where": (lambda: torch.where(on_npu() > 2, on_npu(), torch.tensor(0.0)), 0.0),
    "in a multi-tensor operator": (lambda: torch._foreach_mul([on_npu()], torch.tensor(3.0))[0], 27.0),
    "indices on the cpu": (lambda: on_npu()[torch.tensor([0, 1])], 6.0),
    "a mask on the cpu": (lambda: on_npu()[on_cpu() > 0], 9.0),
    "an assignment by indices on the cpu": (lambda: on_npu().index_put_((row(),), torch.tensor(4.0)), 18.0),
    "a copy": (lambda: on_npu().copy_(2 * on_cpu()), 18.0),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_a_device_allows(name):
    function, total = ALLOWED[name]
    result = function()
    assert result.device == torch.device("npu:0")
    assert result.sum().item() == total


def test_numpy_wants_a_copy_on_the_cpu():
    with pytest.raises(TypeError, match=r"Use Tensor.cpu\(\)"):
        on_npu().numpy()


def test_a_generator_belongs_to_its_device():
    with pytest.raises(RuntimeError, match="Expected a 'npu' device type for generator but found 'cpu'"):
        torch.randn(2, device="npu", generator=torch.Generator())
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'npu'"):
        torch.randn(2, generator=torch.Generator(device="npu"))


def test_a_device_that_is_not_there():
    count = npu_device.device_count()
    with pytest.raises(RuntimeError, match=f"npu:0 to npu:{count - 1}; NPU_EMULATOR_DEVICES"):
        torch.empty(1, device=f"npu:{count}")


def test_storages_do_not_change_sides():
    with pytest.raises(RuntimeError, match="Attempted to set the storage"):
        on_npu().set_(on_cpu().untyped_storage(), 0, (3,), (1,))


def test_an_operator_without_any_kernel():
    library = torch.library.Library("device_test", "FRAGMENT")
    library.define("nowhere(Tensor x) -> Tensor")
    with pytest.raises(NotImplementedError, match="device_test::nowhere"):
        torch.ops.device_test.nowhere(on_npu())


def test_an_operator_with_a_cpu_kernel_only_runs_and_warns(capfd):
    library = torch.library.Library("device_test", "FRAGMENT")
    library.define("on_cpu(Tensor x) -> Tensor")
    library.impl("on_cpu", lambda x: x + 1, "CPU")
    results = [torch.ops.device_test.on_cpu(on_npu()) for _ in range(2)]
    assert capfd.readouterr().err.count("'device_test::on_cpu' has no kernel for the NPU") == 1
    result = results[1]
    assert result.device.type == "npu"
    assert result.sum().item() == 18


@pytest.mark.parametrize("make", [lambda: on_npu().to_sparse(), lambda: torch.eye(2).to_sparse().to("npu")])
def test_sparse_tensors_are_refused(make):
    with pytest.raises(NotImplementedError, match=r"emulated NPU has.*\.to_dense\(\)"):
        make()
