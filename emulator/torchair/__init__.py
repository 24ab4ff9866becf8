"""torchair, the graph compiler: imported by MindSpeed and vllm-ascend, used only in modes that are not emulated."""

from . import ge, scope  # noqa: F401


def register_fx_node_ge_converter(operator):
    """Decorator for converters to the compiler's graphs: they are kept out."""
    return lambda converter: converter


def patch_for_hcom() -> None:
    """Prepare collectives for compiled graphs."""


def get_npu_backend(*args, **kwargs):
    """A backend of torch.compile that refuses to compile: code asks for it at import, whether or not it compiles."""

    def compiler(graph, example_inputs):
        raise NotImplementedError(
            "The emulated NPU has no torchair compiler; use aclgraph (torchair_graph_config.enabled=false)."
        )

    return compiler
