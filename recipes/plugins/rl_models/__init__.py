"""Architectures that neither transformers, verl nor vLLM know, as `actor_rollout_ref.model.external_lib` brings them.

A new model of a known family needs three things: its modules for Hugging Face's layout (conversion, reference), its
Megatron config, and its class in vLLM. One module here is one architecture: copy it for another.
"""
