"""Stand-in for TransformerEngine's Megatron extension on an emulated NPU, for installations without MindSpeed.

On a device MindSpeed replaces `megatron.core.extensions.transformer_engine`; no package index has it (the package of
that name is an empty placeholder). This package plays its part for megatron-core 0.12.1: modules with the parameter
names and the checkpoint layout of TransformerEngine, computing with the operators of torch_npu, so that verl's weight
converter, its distributed checkpoints and its packed forward run unchanged.

A process imports it as `npu_transformer_engine` and calls `npu_transformer_engine.install.install()` once.

    norm            TENorm
    linear          TELinear and its column, row and norm + column forms
    grouped_linear  the experts' TEColumnParallelGroupedLinear, TERowParallelGroupedLinear
    attention       TEDotProductAttention, packed sequences and context parallelism included
    swiglu, rotary  fused forms of Megatron's SwiGLU and rotary embedding
    optimizer       FusedAdam
    extension       what is registered as megatron.core.extensions.transformer_engine
    install         registers it and adapts Megatron-core, one reason each

Megatron's random state tracker needs nothing from here: torch_npu's transfer_to_npu gives it the NPU's generators.
"""
