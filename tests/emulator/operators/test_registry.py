"""What holds for every operator: one node for the dispatcher, shapes without data, sides of memory, the trace."""

import functools
import re
from pathlib import Path

import pytest
import torch
import torch_npu
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves
from torch_npu import trace
from torch_npu.operators import registry

from tests.emulator.operators.examples import examples

HERE = Path(__file__).parent
README = HERE.parents[2] / "emulator" / "README.md"
ALL = [pytest.param(e, id=f"{i}-{e.name}") for i, e in enumerate(examples())]
# these run between processes, see test_moe_exchange.py
BETWEEN_RANKS = {"npu::npu_moe_distribute_dispatch_v2", "npu::npu_moe_distribute_combine_v2"}
# these look at npu tensors themselves and compute nothing: aten judges what they are given
ON_DEVICE = {"npu_format_cast", "npu_format_cast_", "get_npu_format", "npu_prefetch"}


def npu(tensor):
    return tensor.clone().npu()


def described(results):
    return [(tuple(t.shape), t.dtype) if isinstance(t, torch.Tensor) else t for t in tree_leaves(results)]


def test_every_operator_has_an_example():
    tried = {e.name for e in examples()} | BETWEEN_RANKS
    others = ("_C_ascend::weak_ref_tensor", "npu::graph_test_")  # computes nothing, and what test_graph.py registers
    ours = {name for name in registry._operators if not name.startswith(others)}
    assert tried == ours


@pytest.mark.parametrize("example", ALL)
def test_shapes_without_data(example):
    """The meta function promises what the kernel gives."""
    real = example.call(npu)
    promised = example.call(lambda t: t.to("meta"))
    assert described(promised) == described(real)


@pytest.mark.parametrize("example", ALL)
def test_fake_tensors_of_the_npu(example):
    """What Dynamo runs: fake tensors that claim to lie on the npu."""
    if not example.traceable:
        pytest.skip("runs eagerly only: it takes host and npu tensors and returns one")
    real = example.call(npu)
    mode = FakeTensorMode()
    fake = example.call(
        lambda t: mode.from_tensor(npu(t)), {h: mode.from_tensor(example.named()[h]) for h in example.host}
    )
    assert described(fake) == described(real)
    assert all(t.device.type == "npu" for t in tree_leaves(fake) if isinstance(t, torch.Tensor))


@pytest.mark.parametrize("example", ALL)
def test_results_lie_on_the_npu_also_under_another_default_device(example):
    want = example.call(npu)
    for device in ("cpu", "npu", "meta"):
        with torch.device(device):
            results = example.call(npu)
        for got, expected in zip(tree_leaves(results), tree_leaves(want), strict=True):
            if isinstance(got, torch.Tensor):
                assert got.device.type == "npu"
                if "workspace" not in example.name:
                    torch.testing.assert_close(got.cpu(), expected.cpu(), equal_nan=True)


def _tensor_arguments(example):
    return [n for n, v in example.named().items() if any(isinstance(t, torch.Tensor) for t in tree_leaves(v))]


MIXED = [
    pytest.param(e, name, id=f"{e.name}-{name}")
    for e in examples()
    if e.overload._schema.name.split("::")[1] not in ON_DEVICE
    for name in _tensor_arguments(e)
    if name not in e.host and len(_tensor_arguments(e)) > 1
]


@pytest.mark.parametrize(("example", "name"), MIXED)
def test_a_cpu_tensor_among_npu_tensors_raises(example, name):
    with pytest.raises(RuntimeError, match=rf"found at least two devices, cpu and npu:0! .*{name!r} is a CPU tensor"):
        example.call(npu, {name: example.named()[name]})


HOST = [pytest.param(e, name, id=f"{e.name}-{name}") for e in examples() for name in e.host]


@pytest.mark.parametrize(("example", "name"), HOST)
def test_an_argument_that_is_read_on_the_host_must_lie_there(example, name):
    message = rf"argument {name!r} is read on the host .* must be a CPU tensor, but it lies on npu:0. Pass {name}\.cpu"
    with pytest.raises(RuntimeError, match=message):
        example.call(npu, {name: example.named()[name].npu()})


def test_without_an_npu_tensor_there_is_no_operator():
    with pytest.raises(NotImplementedError, match="CPU"):
        torch_npu.npu_rms_norm(torch.ones(2, 4), torch.ones(4))


@pytest.mark.parametrize("example", ALL)
def test_a_call_is_counted_once_under_its_phase(example):
    name = example.overload._schema.name.split("::")[1]
    phase = registry._operators[example.name].phase
    assert phase == ("backward" if any(w in name for w in ("_grad", "backward")) else phase)
    before = trace.calls(name, phase)
    example.call(npu)
    assert trace.calls(name, phase) == before + 1


def test_the_trace_tells_forward_from_backward_with_shapes():
    trace.reset()
    x, gamma = torch.randn(3, 8).npu().requires_grad_(), torch.ones(8).npu()
    y, _ = torch_npu.npu_rms_norm(x, gamma)
    torch_npu.npu_swiglu(y).sum().backward()
    table = trace.document()["operators"]
    assert table["npu_rms_norm"]["forward"] == 1 and table["npu_rms_norm"]["shapes"] == [[3, 8], [8]]
    assert table["npu_swiglu_backward"]["backward"] == 1 and table["npu_swiglu_backward"]["forward"] == 0
    assert table["npu_rms_norm_backward"]["dtypes"] == ["float32"] * 4


def test_a_replaced_view_does_not_redirect_writes(monkeypatch):
    """MindSpeed replaces torch.Tensor.view by a function that may copy."""
    view = torch.Tensor.view
    monkeypatch.setattr(torch.Tensor, "view", lambda self, *shape: view(self.contiguous().clone(), *shape))
    cache = torch.zeros(2, 4, 1, 8).npu()
    key = torch.ones(1, 1, 8).npu()
    torch_npu._npu_reshape_and_cache(key, key, cache, cache.clone(), torch.tensor([5], dtype=torch.int32).npu())
    assert cache.sum() == 8
    query = torch.ones(1, 8).npu()
    angles = torch.cat((torch.zeros(4, 4), torch.ones(4, 4)), 1).npu()
    torch_npu._npu_rotary_embedding(torch.tensor([1]).npu(), query, query.clone(), 8, angles, True)
    assert query.tolist() == [[-1.0] * 4 + [1.0] * 4]


def block(x, gamma, cos, sin, weight, ends):
    y, _ = torch_npu.npu_rms_norm(x, gamma, epsilon=1e-5)
    y = torch_npu.npu_rotary_mul(y.reshape(4, 1, 1, 8), cos, sin).reshape(4, 8)
    (y,) = torch_npu.npu_grouped_matmul([y], [weight], split_item=2, group_type=0, group_list=ends, group_list_type=0)
    return torch_npu.npu_swiglu(y) + 1


def block_inputs():
    g = torch.Generator().manual_seed(3)
    shapes = ((4, 8), (8,), (4, 1, 1, 8), (4, 1, 1, 8), (2, 8, 6))
    return [*(torch.randn(s, generator=g).npu() for s in shapes), torch.tensor([1, 4]).npu()]


def test_dynamo_takes_operators_whole():
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    inputs = block_inputs()
    compiled = torch.compile(block, backend=backend, fullgraph=True)
    assert torch.equal(compiled(*inputs), block(*inputs))
    assert len(graphs) == 1
    called = {str(n.target) for n in graphs[0].graph.nodes}
    for name in ("npu_rms_norm", "npu_rotary_mul", "npu_grouped_matmul", "npu_swiglu"):
        assert any(name in target for target in called), f"{name} is not a node: {called}"
    torch._dynamo.reset()


def test_a_replayed_graph_works_on_current_data():
    """Sizes of groups are data: a tape of the operator's inner steps would keep those of the capture."""
    x, weight = torch.ones(4, 8).npu(), torch.stack([torch.full((8, 3), float(e)) for e in (1, 2)]).npu()
    ends = torch.tensor([1, 4]).npu()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        (y,) = torch_npu.npu_grouped_matmul(
            [x], [weight], split_item=2, group_type=0, group_list=ends, group_list_type=0
        )
    graph.replay()
    assert y[:, 0].tolist() == [8, 16, 16, 16]
    ends.copy_(torch.tensor([3, 4]))
    graph.replay()
    assert y[:, 0].tolist() == [8, 8, 8, 16]


def test_gradients_through_a_compiled_function():
    """AOTAutograd differentiates through the registered gradient operators."""

    def function(x, gamma):
        return torch_npu.npu_swiglu(torch_npu.npu_rms_norm(x, gamma)[0])

    x, gamma, *_ = block_inputs()
    grads = []
    for run in (function, torch.compile(function, backend="aot_eager", fullgraph=True)):
        leaves = [t.clone().requires_grad_() for t in (x, gamma)]
        run(*leaves).square().sum().backward()
        grads.append([leaf.grad for leaf in leaves])
    for eager, compiled in zip(*grads, strict=True):
        assert torch.equal(eager, compiled)
    torch._dynamo.reset()


def test_nothing_is_differentiated_when_nobody_asks():
    x = torch.randn(2, 8).npu().requires_grad_()
    with torch.no_grad():
        assert not torch_npu.npu_swiglu(x).requires_grad
    with torch.inference_mode():
        assert torch_npu.npu_swiglu(x).is_inference()
    assert torch_npu.npu_swiglu(x).requires_grad


def test_a_gradient_for_one_input_alone():
    x, gamma = torch.randn(2, 8).npu(), torch.ones(8).npu().requires_grad_()
    y, _ = torch_npu.npu_rms_norm(x, gamma)
    y.sum().backward()
    assert x.grad is None and gamma.grad is not None


def test_a_result_that_is_a_view_of_an_argument_becomes_its_own_tensor():
    """A rule for kernels; if one breaks it, its result must not alias the argument."""
    x = torch.arange(4.0).npu()
    memory = registry.SharedMemory(registry._operators["npu::npu_swiglu"])
    result = memory.leave(memory.enter("self", x)[1:])
    assert result.device.type == "npu" and result.tolist() == [1, 2, 3]
    result.zero_()
    assert x.tolist() == [0, 1, 2, 3]


def test_a_kernel_must_name_its_arguments_as_the_schema_does():
    with pytest.raises(AssertionError, match="kernel takes"):
        registry.operator("wrong_names(Tensor a, Tensor b) -> Tensor", namespace="npu_registry_test", export=False)(
            lambda b, a: a
        )


def test_double_gradients_are_refused():
    x = torch.randn(2, 8).npu().requires_grad_()
    (grad,) = torch.autograd.grad(torch_npu.npu_swiglu(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_every_exported_operator_is_found_in_torch_npu():
    for name, packet in registry.EXPORTS.items():
        assert getattr(torch_npu, name) is packet


def test_operators_that_are_only_named_refuse_and_hide_none():
    from torch_npu.operators.refused import REFUSED

    assert not set(REFUSED) & set(registry.EXPORTS)
    for name, purpose in REFUSED.items():
        function = functools.reduce(getattr, name.split("."), torch_npu)
        with pytest.raises(NotImplementedError, match=rf"has no torch_npu\.{name}, which is for {re.escape(purpose)}"):
            function(torch.ones(1).npu())


def test_the_readme_names_every_operator_and_the_test_that_holds_it():
    """Its table: operator and gradients, callers, reference, file."""
    import vllm_ascend_C  # noqa: F401

    rows = [line.split("|")[1:5] for line in README.read_text().splitlines() if re.match(r"\| `\w+::", line)]
    named = {}
    for names, callers, against, file in rows:
        first, *gradients = re.findall(r"`([^`]+)`", names)
        namespace = first.partition("::")[0]
        named |= {name: file.strip(" `") for name in (first, *(f"{namespace}::{name}" for name in gradients))}
        assert callers.strip() and against.strip(), first
        assert first.partition("::")[2].lstrip("_") in (HERE / named[first]).read_text(), f"{first}: {named[first]}"
    registered = {name.partition(".")[0] for name in registry._operators if "_test_" not in name}
    assert set(named) == registered
