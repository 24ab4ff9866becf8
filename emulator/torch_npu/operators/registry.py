"""How an operator of torch_npu is declared: schema, kernel, meta function, gradient.

An operator is one node for the dispatcher (`torch.ops.npu.NAME`, or `torch.ops.atb.NAME` where torch_npu puts it
there), so that Dynamo traces it as a whole and a captured graph replays the work inside it with current data. Its
kernel is plain torch on the CPU: the registry hands it CPU tensors on the *same memory* as the npu tensors it was
called with, refuses tensors on the wrong side, turns fresh results into npu tensors without a copy, and counts the
call in the trace.

Kernels take every argument of the schema under its own name, defaults filled in, and follow three rules:
- new tensors name their device (`x.new_empty`, `device=x.device`), never the default one;
- they return arguments or fresh tensors, never a view of an argument;
- in-place work goes through `view` below, not through `tensor.view`.
"""

import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Iterable, Sequence

import npu_device
import torch

from .. import settings, trace

# MindSpeed replaces torch.Tensor.view by a function that may copy, which would make an in-place kernel write into the
# copy. torch_npu is imported before MindSpeed, so this is still the original.
view = torch.Tensor.view

EXPORTS: dict[str, Callable] = {}
"""What torch_npu exports: `torch_npu.NAME` -> the operator."""

_operators: dict[str, "Operator"] = {}


@functools.cache
def _library(namespace: str) -> torch.library.Library:
    return torch.library.Library(namespace, "FRAGMENT")


def operator(
    schema: str,
    meta: Callable | None = None,
    host: Iterable[str] = (),
    *,
    namespace: str = "npu",
    phase: str = "forward",
    on_device: bool = False,
    gathered: bool = False,
    plans: bool = False,
    export: bool = True,
) -> Callable[[Callable], Callable]:
    """Registers the decorated kernel as operator `namespace::NAME`.

    schema     torch_npu's own, with argument names, order and defaults.
    meta       result tensors of the right shape and type from tensors without data; default: the kernel itself.
    host       names of tensor arguments that the operator reads while it is launched: they must be CPU tensors.
    phase      "backward" for operators that compute gradients; the trace keeps the two apart.
    on_device  the kernel wants the npu tensors themselves (it does not compute, or it uses aten operators on them).
    gathered   kernel and meta function take one object with an attribute per argument (for long signatures).
    plans      it finds out on the host what another operator will need: no work for the device, no use of its memory.
    export     also offer it as `torch_npu.NAME`.
    """

    def register(kernel: Callable) -> Callable:
        Operator(schema, kernel, meta or kernel, tuple(host), namespace, phase, on_device, gathered, plans, export)
        return kernel

    return register


def composite(schema: str) -> Callable[[Callable], Callable]:
    """Registers an operator that is nothing but calls of others, which are counted and differentiated in its place."""

    def register(function: Callable) -> Callable:
        name = schema.partition("(")[0].strip()
        library = _library("npu")
        library.define(schema)
        library.impl(name, function, "CompositeImplicitAutograd")
        EXPORTS[name] = getattr(torch.ops.npu, name)
        return function

    return register


def gradient(
    name: str,
    saves: Sequence[str] = (),
    saves_outputs: Sequence[int] = (),
    inputs: Sequence[str] = (),
    outputs: Sequence[int] = (0,),
    namespace: str = "npu",
) -> Callable[[Callable], Callable]:
    """Makes a registered operator differentiable; the decorated function calls the operator's backward operators.

    It gets `saved` and one gradient per result, and returns a dict argument name -> gradient. Attributes of `saved`:
    the tensor arguments in `saves`, every argument that is no tensor, `outputs`: a dict with the tensor results in
    `saves_outputs`, `results`: a list with the results that are no tensors, `wanted`: the arguments that need a
    gradient.

    inputs   arguments a gradient may be asked for.
    outputs  results a gradient may come from; the others are marked as not differentiable.
    """

    def register(backward: Callable) -> Callable:
        _operators[f"{namespace}::{name}"].make_differentiable(
            Gradient(backward, tuple(saves), tuple(saves_outputs), tuple(inputs), tuple(outputs))
        )
        return backward

    return register


def check(condition: bool, message: str | Callable[[], str], error: type[Exception] = RuntimeError) -> None:
    """Raises `error` with `message` (a function where building the text costs something) unless `condition` holds."""
    if not condition:
        raise error(message if isinstance(message, str) else message())


def unwritten(like: torch.Tensor, shape: Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """A result of which the device leaves parts unwritten: NaN with NPU_EMULATOR_POISON, zeros (repeatable) without."""
    result = like.new_zeros(shape, dtype=dtype)
    if result.is_floating_point() and settings.poison_level():
        result.fill_(float("nan"))
    return result


class Operator:
    """One registered operator: binds calls to the schema and runs the kernel on aliased memory."""

    def __init__(self, schema, kernel, meta, host, namespace, phase, on_device, gathered, plans, export):
        self.name, _, overload = schema.partition("(")[0].strip().partition(".")
        library = _library(namespace)
        qualified = f"{self.name}.{overload}" if overload else self.name
        library.define(schema)
        self.packet = getattr(getattr(torch.ops, namespace), self.name)
        self.overload = getattr(self.packet, overload or "default")
        self.arguments = self.overload._schema.arguments
        self.names = [a.name for a in self.arguments]
        self.positional = sum(not a.kwarg_only for a in self.arguments)
        if gathered:
            kernel, meta = self._spread(kernel), self._spread(meta)
        else:
            self._check_signature(kernel)
        self.kernel, self.host, self.phase = kernel, frozenset(host), phase
        self.plans = plans
        self.written = [a.alias_info is not None and a.alias_info.is_write for a in self.arguments]
        self._library, self._qualified = library, qualified
        assert self.host <= set(self.names), f"{self.name}: unknown host arguments {self.host - set(self.names)}"
        library.impl(qualified, self._run_on_device if on_device else self._run, "PrivateUse1")
        library.impl(qualified, self._with_defaults(meta), "Meta")
        _operators[f"{namespace}::{qualified}"] = self
        if export:
            EXPORTS[self.name] = self.packet

    def _check_signature(self, function: Callable) -> None:
        names = list(inspect.signature(function).parameters)
        assert names == self.names, f"{self.name}: kernel takes {names}, schema has {self.names}"

    def _spread(self, function: Callable) -> Callable:
        return lambda *values: function(types.SimpleNamespace(**dict(zip(self.names, values, strict=True))))

    def bind(self, args: tuple, kwargs: dict) -> list:
        """The call's values in the schema's order; the dispatcher leaves out trailing defaults."""
        values = list(args)
        for argument in self.arguments[len(args) :]:
            values.append(kwargs.get(argument.name, argument.default_value))
        return values

    def call(self, values: Sequence) -> object:
        """Calls the operator through the dispatcher with values in the schema's order."""
        keywords = dict(zip(self.names[self.positional :], values[self.positional :], strict=True))
        return self.overload(*values[: self.positional], **keywords)

    def _with_defaults(self, function: Callable) -> Callable:
        @functools.wraps(function)
        def bound(*args, **kwargs):
            return function(*self.bind(args, kwargs))

        return bound

    def _record(self, values: Sequence) -> None:
        tensors = _tensors(values)
        trace.record(self.name, self.phase, [tuple(t.shape) for t in tensors], [t.dtype for t in tensors])

    def _note_uses(self, values: Sequence) -> None:
        """Tells the race detector what the operator reads and writes, which it cannot see: kernels work on aliases."""
        if npu_device.races_on() and not self.plans:
            reads, writes = (
                [v for v, w in zip(values, self.written, strict=True) if w is kind] for kind in (False, True)
            )
            npu_device.note_uses(self.overload._schema.name, _tensors(reads), _tensors(writes))

    def _run_on_device(self, *args, **kwargs):
        values = self.bind(args, kwargs)
        self._record(values)
        return self.kernel(*values)

    def _run(self, *args, **kwargs):
        values = self.bind(args, kwargs)
        self._record(values)
        self._note_uses(values)
        memory = SharedMemory(self)
        values = [memory.enter(name, value) for name, value in zip(self.names, values, strict=True)]
        with plain_torch():
            return memory.leave(self.kernel(*values))

    def make_differentiable(self, rule: "Gradient") -> None:
        """Registers the autograd kernel: an autograd node if a gradient can be asked for, else straight on."""
        wanted = [self.names.index(name) for name in rule.inputs]

        def differentiate(*args, **kwargs):
            values = self.bind(args, kwargs)
            if torch.is_grad_enabled() and any(
                isinstance(values[i], torch.Tensor) and values[i].requires_grad for i in wanted
            ):
                return _Node.apply(self, rule, *values)
            with torch._C._AutoDispatchBelowAutograd():
                return self.call(values)

        self._library.impl(self._qualified, differentiate, "Autograd")


def _tensors(values: Iterable) -> list[torch.Tensor]:
    """The tensors among an operator's values, those in lists as well."""
    flat = (t for v in values for t in (v if isinstance(v, (list, tuple)) else (v,)))
    return [t for t in flat if isinstance(t, torch.Tensor)]


class SharedMemory:
    """One call's tensors: npu tensors seen as CPU tensors on the same memory, and the way back."""

    def __init__(self, op: Operator):
        self.op = op
        self.index = -1
        self._originals: dict[int, torch.Tensor] = {}
        self._aliases: list[torch.Tensor] = []

    def enter(self, name: str, value):
        """The value as the kernel sees it; raises where a tensor lies on the wrong side."""
        if isinstance(value, torch.Tensor):
            return self._host(name, value) if name in self.op.host else self._device(name, value)
        if isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
            return [self.enter(name, v) for v in value]
        return value

    def _host(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        check(
            tensor.device.type == "cpu",
            lambda: (
                f"{self.op.name}: argument {name!r} is read on the host while the operator is launched and must be a "
                f"CPU tensor, but it lies on {tensor.device}. Pass {name}.cpu()."
            ),
        )
        return tensor

    def _device(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != "npu":
            # scalars on the host are parameters to the device, as in every aten operator
            check(
                tensor.dim() == 0 or tensor.device.type != "cpu",
                lambda: (
                    f"Expected all tensors to be on the same device, but found at least two devices, cpu and npu:0! "
                    f"({self.op.name}: argument {name!r} is a CPU tensor of shape {tuple(tensor.shape)}; "
                    f"pass {name}.npu())"
                ),
            )
            return tensor
        self.index = tensor.device.index
        alias = npu_device.alias(tensor)
        self._originals[id(alias)] = tensor
        self._aliases.append(alias)
        return alias

    def leave(self, result):
        """The kernel's results as npu tensors: arguments stay themselves, fresh tensors change side without a copy."""
        if isinstance(result, torch.Tensor):
            if id(result) in self._originals:
                return self._originals[id(result)]
            fresh = npu_device.wrap(self._own_storage(result), self.index)
            if npu_device.races_on() and not self.op.plans:
                npu_device.note_uses(self.op.overload._schema.name, [], [fresh])
            return fresh
        if isinstance(result, (list, tuple)):
            return type(result)(self.leave(r) for r in result)
        return result

    def _own_storage(self, result: torch.Tensor) -> torch.Tensor:
        pointer = result.untyped_storage().data_ptr()
        shared = pointer and any(pointer == a.untyped_storage().data_ptr() for a in self._aliases)
        return result.clone() if shared else result


@contextlib.contextmanager
def plain_torch():
    """Kernels run without autograd, and the memory they allocate is the device's."""
    npu_device.enter_kernel()
    try:
        with torch.no_grad():
            yield
    finally:
        npu_device.leave_kernel()


class Gradient(types.SimpleNamespace):
    """What `gradient` was told about an operator."""

    def __init__(self, backward, saves, saves_outputs, inputs, outputs):
        super().__init__(backward=backward, saves=saves, saves_outputs=saves_outputs, inputs=inputs, outputs=outputs)


class _Node(torch.autograd.Function):
    """The autograd node of every differentiable operator."""

    @staticmethod
    def forward(ctx, op: Operator, rule: Gradient, *values):
        with torch._C._AutoDispatchBelowAutograd():
            result = op.call(values)
        results = result if isinstance(result, tuple) else (result,)
        named = dict(zip(op.names, values, strict=True))
        ctx.save_for_backward(*(named[n] for n in rule.saves), *(results[i] for i in rule.saves_outputs))
        ctx.mark_non_differentiable(
            *(r for i, r in enumerate(results) if isinstance(r, torch.Tensor) and i not in rule.outputs)
        )
        ctx.op, ctx.rule = op, rule
        ctx.results = [None if isinstance(r, torch.Tensor) else r for r in results]
        ctx.plain = {n: v for n, v in named.items() if not isinstance(v, torch.Tensor)}
        ctx.plain |= {n: None for n in rule.saves if named[n] is None}
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads):
        op, rule = ctx.op, ctx.rule
        tensors = ctx.saved_tensors
        saved = types.SimpleNamespace(**ctx.plain)
        saved.outputs = dict(zip(rule.saves_outputs, tensors[len(rule.saves) :], strict=True))
        saved.results = ctx.results
        for name, tensor in zip(rule.saves, tensors, strict=False):
            setattr(saved, name, tensor)
        saved.wanted = {n for n, needed in zip(op.names, ctx.needs_input_grad[2:], strict=True) if needed}
        found = rule.backward(saved, *grads)
        return None, None, *(found.get(name) for name in op.names)
