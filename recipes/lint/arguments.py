"""Names that vLLM 0.11.0 and vllm-ascend read from an engine's arguments; others are refused or silently ignored.

tests/recipes/lint/test_real_rollout.py compares each of them with the code that reads it.
"""

from recipes.lint.rule import CPU, PERFORMANCE


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Fields of vLLM's EngineArgs: any other keyword is a TypeError (vLLM 0.11.0, entrypoints/llm.py:287-319).
ENGINE_ARGUMENTS = _names(
    """model served_model_name tokenizer hf_config_path runner convert task skip_tokenizer_init enable_prompt_embeds
    tokenizer_mode trust_remote_code allowed_local_media_path allowed_media_domains download_dir
    safetensors_load_strategy load_format config_format dtype kv_cache_dtype seed max_model_len cuda_graph_sizes
    distributed_executor_backend pipeline_parallel_size tensor_parallel_size decode_context_parallel_size
    data_parallel_size data_parallel_rank data_parallel_start_rank data_parallel_size_local data_parallel_address
    data_parallel_rpc_port data_parallel_hybrid_lb data_parallel_backend enable_expert_parallel enable_dbo
    dbo_decode_token_threshold dbo_prefill_token_threshold eplb_config enable_eplb expert_placement_strategy
    _api_process_count _api_process_rank num_redundant_experts eplb_window_size eplb_step_interval
    eplb_log_balancedness max_parallel_loading_workers block_size enable_prefix_caching prefix_caching_hash_algo
    disable_sliding_window disable_cascade_attn swap_space cpu_offload_gb gpu_memory_utilization kv_cache_memory_bytes
    max_num_batched_tokens max_num_partial_prefills max_long_partial_prefills long_prefill_token_threshold max_num_seqs
    max_logprobs logprobs_mode disable_log_stats revision code_revision rope_scaling rope_theta hf_token hf_overrides
    tokenizer_revision quantization enforce_eager disable_custom_all_reduce limit_mm_per_prompt interleave_mm_strings
    media_io_kwargs mm_processor_kwargs disable_mm_preprocessor_cache mm_processor_cache_gb mm_processor_cache_type
    mm_shm_cache_max_object_size_mb mm_encoder_tp_mode io_processor_plugin skip_mm_profiling video_pruning_rate
    enable_lora enable_lora_bias max_loras max_lora_rank default_mm_loras fully_sharded_loras max_cpu_loras lora_dtype
    lora_extra_vocab_size ray_workers_use_nsight num_gpu_blocks_override num_lookahead_slots model_loader_extra_config
    ignore_patterns enable_chunked_prefill disable_chunked_mm_input disable_hybrid_kv_cache_manager
    structured_outputs_config reasoning_parser guided_decoding_backend guided_decoding_disable_fallback
    guided_decoding_disable_any_whitespace guided_decoding_disable_additional_properties logits_processor_pattern
    speculative_config show_hidden_metrics_for_version otlp_traces_endpoint collect_detailed_traces scheduling_policy
    scheduler_cls pooler_config override_pooler_config compilation_config worker_cls worker_extension_cls
    kv_transfer_config kv_events_config generation_config enable_sleep_mode override_generation_config model_impl
    override_attention_dtype calculate_kv_scales mamba_cache_dtype mamba_ssm_cache_dtype additional_config
    use_tqdm_on_load pt_load_map_location enable_multimodal_encoder_data_parallel logits_processors async_scheduling
    kv_sharing_fast_prefill"""
)

# What verl passes itself (verl 21271aa, workers/rollout/vllm_rollout/vllm_rollout_spmd.py:192-214).
PASSED = (
    "model", "enable_sleep_mode", "tensor_parallel_size", "distributed_executor_backend", "dtype", "enforce_eager",
    "gpu_memory_utilization", "disable_custom_all_reduce", "skip_tokenizer_init", "max_model_len", "max_num_seqs",
    "load_format", "disable_log_stats", "max_num_batched_tokens", "enable_chunked_prefill", "enable_prefix_caching",
    "trust_remote_code", "seed",
)  # fmt: skip

# compilation_config: fields of vLLM's CompilationConfig; LLM drops others (entrypoints/llm.py:254-263).
COMPILATION_KEYS = _names(
    """level debug_dump_path cache_dir backend custom_ops splitting_ops use_inductor compile_sizes
    inductor_compile_config inductor_passes cudagraph_mode use_cudagraph cudagraph_num_of_warmups
    cudagraph_capture_sizes cudagraph_copy_inputs full_cuda_graph use_inductor_graph_partition pass_config"""
)

# additional_config: what vllm-ascend reads of it, mostly in ascend_config.py. 0.11.0rc1 reads two more.
_ADDITIONAL = _names(
    """torchair_graph_config ascend_scheduler_config weight_prefetch_config expert_map_path eplb_policy_type
    expert_map_record_path init_redundancy_expert dynamic_eplb num_iterations_eplb_update gate_eplb
    num_wait_worker_iterations chunked_prefill_for_mla enable_shared_expert_dp multistream_overlap_shared_expert
    lmhead_tensor_parallel_size oproj_tensor_parallel_size refresh kv_cache_dtype"""
)
ADDITIONAL_KEYS = {
    PERFORMANCE: _ADDITIONAL,
    CPU: _ADDITIONAL | {"recompute_scheduler_enable", "enable_cpu_binding"},
}

# ascend_scheduler_config: `enabled` and the fields of AscendSchedulerConfig (core/schedule_config.py:26-70).
SCHEDULER_KEYS = _names(
    """enabled enable_chunked_prefill max_long_partial_prefills long_prefill_token_threshold policy scheduler_cls
    enable_pd_transfer decode_max_num_seqs runner_type max_num_batched_tokens max_num_seqs max_model_len
    max_num_partial_prefills num_lookahead_slots cuda_graph_sizes is_multimodal_model send_delta_data
    disable_chunked_mm_input disable_hybrid_kv_cache_manager async_scheduling"""
)

# torchair_graph_config (ascend_config.py:136-153); those that are refused unless it is enabled (161-188).
TORCHAIR_ONLY = (
    "mode", "use_cached_graph", "use_cached_kv_cache_bytes", "graph_batch_sizes", "graph_batch_sizes_init",
    "enable_multistream_mla", "enable_kv_nz",
)  # fmt: skip
_TORCHAIR = frozenset(TORCHAIR_ONLY) | {"enabled", "enable_view_optimize", "enable_frozen_parameter"}
TORCHAIR_KEYS = {PERFORMANCE: _TORCHAIR, CPU: _TORCHAIR | {"enable_super_kernel"}}
