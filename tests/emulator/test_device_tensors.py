"""Tensors of the npu behave as torch's do: views, in-place and out= variants, copies of objects, saving and loading."""

import copy
import io
import pickle

import npu_device
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st


def matrix():
    return torch.arange(24.0, device="npu").reshape(4, 6)


VIEWS = {
    "transpose": lambda x: x.t(),
    "slice": lambda x: x[1:3],
    "step": lambda x: x[:, ::2],
    "select": lambda x: x[2],
    "view": lambda x: x.view(2, 12),
    "unflatten": lambda x: x.unflatten(1, (2, 3)),
    "expand": lambda x: x[:, :1].expand(4, 6),
    "diagonal": lambda x: x.diagonal(),
    "unfold": lambda x: x.unfold(1, 3, 1),
    "as_strided": lambda x: x.as_strided((2, 2), (1, 2), 1),
    "narrow": lambda x: x.narrow(1, 2, 3),
    "permute": lambda x: x.view(2, 2, 6).permute(2, 0, 1),
    "split": lambda x: x.split(2)[1],
    "unbind": lambda x: x.unbind(1)[3],
    "view as integers": lambda x: x.view(torch.int32),
    "detach": lambda x: x.detach(),
    "real": lambda x: torch.view_as_complex(x.view(4, 3, 2)).real,
    "conjugate": lambda x: torch.view_as_complex(x.view(4, 3, 2)).conj(),
    "imaginary part of the conjugate": lambda x: torch.view_as_complex(x.view(4, 3, 2)).conj().imag,
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_share_memory_and_equal_the_cpus(name):
    x = matrix()
    view = VIEWS[name](x)
    assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    expected = VIEWS[name](x.cpu())
    assert (view.shape, view.stride(), view.storage_offset()) == (
        expected.shape,
        expected.stride(),
        expected.storage_offset(),
    )
    assert torch.equal(view.cpu(), expected)
    assert torch.equal((view + view).cpu(), expected + expected)
    assert view._is_view() == expected._is_view()


def test_writing_through_a_view_is_seen_by_its_base():
    x = matrix()
    expected = x.cpu()
    x.t()[1:3].mul_(2)
    x[:, ::3] = 7
    x.view(-1)[5:7].zero_()
    expected.t()[1:3].mul_(2)
    expected[:, ::3] = 7
    expected.view(-1)[5:7].zero_()
    assert torch.equal(x.cpu(), expected)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_chain_of_views_and_writes_equals_the_cpus(data):
    npu, cpu = matrix(), matrix().cpu()
    moves = {
        "transpose": lambda t, a, b: t.transpose(0, -1),
        "slice": lambda t, a, b: t[min(a, t.size(0) - 1) :],
        "step": lambda t, a, b: t[..., :: b + 1],
        "flatten": lambda t, a, b: t.flatten(),
        "unsqueeze": lambda t, a, b: t.unsqueeze(0),
        "flip": lambda t, a, b: t.flip(0),
        "add": lambda t, a, b: t.add_(a),
        "mul": lambda t, a, b: t.mul_(b),
        "fill a row": lambda t, a, b: t[0].fill_(a).expand_as(t) if t.dim() > 1 else t,
    }
    steps = st.tuples(st.sampled_from(sorted(moves)), st.integers(0, 3), st.integers(0, 2))
    for name, a, b in data.draw(st.lists(steps, max_size=6)):
        if name in ("add", "mul") and 0 in npu.stride():
            continue  # torch refuses to write to expanded memory
        npu, cpu = moves[name](npu, a, b), moves[name](cpu, a, b)
    assert npu.stride() == cpu.stride()
    assert torch.equal(npu.cpu(), cpu)


def test_in_place_operators_return_the_tensor_itself_and_count_versions():
    x = matrix()
    before = x._version
    assert x.add_(1) is x
    assert x._version == before + 1
    y = torch.ones(2, device="npu", requires_grad=True)
    z = y.exp()
    z.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_out_variants_fill_resize_and_return_what_they_are_given():
    a = matrix()
    exact = torch.empty(4, 6, device="npu")
    assert torch.add(a, a, out=exact) is exact
    empty = torch.empty(0, device="npu")
    torch.mm(a, a.t(), out=empty)
    assert torch.equal(empty.cpu(), a.cpu() @ a.cpu().t())
    values, indices = torch.empty(0, device="npu"), torch.empty(0, dtype=torch.long, device="npu")
    torch.sort(a, descending=True, out=(values, indices))
    assert indices[0].tolist() == [5, 4, 3, 2, 1, 0]
    part = torch.zeros(4, 12, device="npu")
    torch.mul(a, 2, out=part[:, ::2])
    assert torch.equal(part[:, ::2].cpu(), a.cpu() * 2)
    assert not part[:, 1::2].any()


def test_overlapping_memory_is_refused_as_on_the_cpu():
    x = torch.arange(6.0, device="npu")
    with pytest.raises(RuntimeError, match="unsupported operation"):
        torch.add(x[:-1], 1, out=x[1:])
    with pytest.raises(RuntimeError, match=r"unsupported operation|more than one element"):
        x[:1].expand(6).add_(1)


def test_results_without_memory_and_without_elements():
    assert torch.empty(0, 3, device="npu").sum().item() == 0
    assert torch.ones(3, device="npu")[:0].add(1).shape == (0,)
    assert torch.cat([torch.empty(0, device="npu"), torch.ones(2, device="npu")]).tolist() == [1, 1]


@pytest.mark.parametrize("device", ["npu", "npu:1"])
def test_factories_make_tensors_where_they_are_asked_to(device):
    expected = torch.device("npu:1" if device.endswith("1") else "npu:0")
    made = [
        torch.zeros(2, device=device),
        torch.arange(3, device=device),
        torch.tensor([1, 2], device=device),
        torch.rand(2, device=device),
        torch.randperm(4, device=device),
        torch.full((2,), 3, device=device),
        torch.eye(2, device=device),
        torch.linspace(0, 1, 3, device=device),
        torch.tril_indices(2, 2, device=device),
        torch.empty_like(torch.ones(2), device=device),
        torch.ones(2, device="npu:1" if expected.index else "npu:0").new_zeros(3),
    ]
    assert {t.device for t in made} == {expected}
    with torch.device(device):
        assert torch.ones(2).device == expected
        assert torch.nn.Linear(2, 2).weight.device == expected


def test_tensors_are_printed_with_their_values():
    text = repr(torch.arange(3.0, device="npu"))
    assert text == "tensor([0., 1., 2.], device='npu:0')"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_saving_and_loading(dtype):
    x = matrix().to(dtype)
    file = io.BytesIO()
    torch.save({"whole": x, "part": x[1:, ::2]}, file)
    for location, device in ((None, "npu:0"), ("cpu", "cpu"), ("npu:1", "npu:1")):
        file.seek(0)
        loaded = torch.load(file, map_location=location)
        assert loaded["whole"].device == torch.device(device)
        assert torch.equal(loaded["whole"].cpu(), x.cpu())
        assert torch.equal(loaded["part"].cpu(), x.cpu()[1:, ::2])
        assert loaded["part"].untyped_storage().data_ptr() == loaded["whole"].untyped_storage().data_ptr()


def test_copies_of_objects_and_pickles():
    x = matrix()
    layer = torch.nn.Linear(6, 2).npu()
    for again in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert again.device == x.device
        assert again.data_ptr() != x.data_ptr()
        assert torch.equal(again.cpu(), x.cpu())
    twin = copy.deepcopy(layer)
    assert torch.equal(twin(x).cpu(), layer(x).cpu())


def test_data_moves_between_the_sides_of_a_parameter():
    layer = torch.nn.Linear(3, 2).npu()
    before, used = layer.weight.data.cpu(), npu_device.memory_used()
    layer.weight.data = layer.weight.data.to("cpu")
    assert layer.weight.device.type == "cpu"
    assert npu_device.memory_used() == used - 24
    layer.weight.data = layer.weight.data.to("npu")
    assert torch.equal(layer.weight.data.cpu(), before)


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_recurrent_layers_equal_the_cpus(kind, bias, bidirectional):
    torch.manual_seed(0)
    cpu = kind(5, 7, num_layers=2, bias=bias, bidirectional=bidirectional)
    npu = copy.deepcopy(cpu).npu()
    x = torch.randn(4, 3, 5, requires_grad=True)
    y = x.detach().npu().requires_grad_()
    for layer, inputs in ((cpu, x), (npu, y)):
        output, state = layer(inputs)
        state = state if isinstance(state, tuple) else (state,)
        (output.square().sum() + sum(s.sum() for s in state)).backward()
    torch.testing.assert_close(y.grad.cpu(), x.grad)
    for a, b in zip(npu.parameters(), cpu.parameters(), strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad)
    torch.testing.assert_close(npu(y)[0].cpu(), cpu(x)[0])


def test_packed_sequences():
    lstm = torch.nn.LSTM(2, 3, batch_first=True)
    x, lengths = torch.randn(2, 4, 2), torch.tensor([4, 2])
    pack = torch.nn.utils.rnn.pack_padded_sequence
    expected, _ = lstm(pack(x, lengths, batch_first=True))
    actual, _ = lstm.npu()(pack(x.npu(), lengths, batch_first=True))
    torch.testing.assert_close(actual.data.cpu(), expected.data)


def test_dlpack_says_that_it_does_not_know_the_device():
    with pytest.raises(ValueError, match="Unknown device type npu"):
        torch.from_dlpack(torch.ones(2, device="npu"))


def test_transforms_and_checks_of_torch_work():
    x = torch.randn(3, 4, device="npu", dtype=torch.double, requires_grad=True)
    assert torch.func.vmap(torch.sum)(x).shape == (3,)
    assert torch.autograd.gradcheck(lambda t: (t.sin() * t).sum(1), x)
    assert torch.autograd.gradgradcheck(lambda t: (t**3).sum(), x)
    compiled = torch.compile(lambda t: (t * 2).relu(), backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), (x * 2).relu())
    with torch.inference_mode():
        assert (x.detach() * 2).is_inference()


def test_a_stream_can_be_recorded_and_must_be_the_npus():
    x = torch.ones(3, device="npu")
    x.record_stream(torch.npu.Stream())
    with pytest.raises((RuntimeError, TypeError)):
        x.record_stream(torch.Stream(device="cpu"))
