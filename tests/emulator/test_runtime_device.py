"""torch.npu at work: streams, events, random state, serialisation, tensor types, memory figures."""

import copy
import io
import pickle

import pytest
import torch
from torch_npu.npu import memory


def test_a_stream_is_current_inside_its_context():
    stream = torch.npu.Stream()
    before = torch.npu.current_stream()
    with torch.npu.stream(stream):
        assert torch.npu.current_stream() == stream
    assert torch.npu.current_stream() == before
    assert stream != before
    assert torch.npu.default_stream().npu_stream == 0


def test_streams_and_events_of_another_device():
    assert torch.npu.Stream(device=1).device == torch.device("npu:1")
    with torch.npu.device(1):
        assert torch.npu.current_device() == 1
        assert torch.npu.Stream().device.index == 1
        assert torch.zeros(1, device="npu").device.index == 1
    assert torch.npu.current_device() == 0


def test_an_event_measures_time():
    start, end = (torch.npu.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.ones(1000, device="npu").cumsum(0)
    end.record(torch.npu.current_stream())
    torch.npu.Stream().wait_event(end)
    assert 0 < start.elapsed_time(end) < 10_000
    assert end.query()
    with pytest.raises(RuntimeError, match="must be recorded"):
        start.elapsed_time(torch.npu.Event())


def test_a_copy_to_the_host_lands_at_the_event():
    x = torch.arange(4.0, device="npu")
    host = torch.empty(4, pin_memory=True)
    host.copy_(x, non_blocking=True)
    event = torch.npu.Event()
    event.record()
    assert host.isnan().all()
    event.synchronize()
    assert host.tolist() == [0, 1, 2, 3]


def test_seeds_repeat_and_devices_have_their_own_state():
    torch.npu.manual_seed_all(7)
    first = torch.randn(5, device="npu"), torch.randn(5, device="npu:1")
    torch.npu.manual_seed_all(7)
    assert torch.equal(torch.randn(5, device="npu"), first[0])
    assert torch.equal(torch.randn(5, device="npu:1"), first[1])
    assert torch.npu.initial_seed() == 7
    torch.npu.manual_seed(8)
    assert not torch.equal(torch.randn(5, device="npu"), first[0])


def test_random_state_can_be_kept_and_put_back():
    state = torch.npu.get_rng_state()
    assert state.device.type == "cpu"
    assert state.dtype is torch.uint8
    states = torch.npu.random.get_rng_state_all()
    x, y = torch.rand(3, device="npu"), torch.rand(3, device="npu:1")
    torch.npu.set_rng_state(state)
    assert torch.equal(torch.rand(3, device="npu"), x)
    torch.npu.random.set_rng_state_all(states)
    assert torch.equal(torch.rand(3, device="npu:1"), y)


def test_torch_manual_seed_reaches_the_device():
    torch.manual_seed(3)
    x = torch.rand(4, device="npu")
    torch.manual_seed(3)
    assert torch.equal(torch.rand(4, device="npu"), x)


def test_dropout_in_a_checkpoint_repeats_its_random_numbers():
    torch.npu.manual_seed(0)
    x = torch.ones(64, device="npu", requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(torch.nn.functional.dropout, x, 0.5, use_reentrant=False)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copy", "pickle"])
def test_tensors_copy_and_pickle_with_their_device(copier):
    base = torch.arange(6.0, device="npu:1").reshape(2, 3)
    x = copier(base)
    assert x.device == torch.device("npu:1")
    assert torch.equal(x.cpu(), base.cpu())
    x.zero_()
    assert base.sum().item() == 15, "the copy shares memory"


def test_a_deep_copy_keeps_views_views():
    base = torch.arange(6.0, device="npu").reshape(2, 3)
    x, view = copy.deepcopy((base, base[:, 1]))
    view.zero_()
    assert x.tolist() == [[0, 0, 2], [3, 0, 5]]


def test_save_and_load_to_either_side():
    model = torch.nn.Linear(3, 2).npu()
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "rng": torch.npu.get_rng_state()}, file)
    for target in ("npu", "cpu", "npu:2"):
        file.seek(0)
        weight = torch.load(file, map_location=target)["model"]["weight"]
        assert weight.device.type == target[:3]
        assert torch.equal(weight.cpu(), model.weight.detach().cpu())


@pytest.mark.parametrize("name, dtype", [("Float", torch.float32), ("BFloat16", torch.bfloat16), ("Long", torch.int64)])
def test_tensor_types(name, dtype):
    kind = getattr(torch.npu, f"{name}Tensor")
    x = torch.zeros(2, dtype=dtype, device="npu")
    assert isinstance(x, kind)
    assert not isinstance(x.cpu(), kind)
    assert not isinstance(x.to(torch.float16), kind)
    assert x.type() == f"torch.npu.{name}Tensor"
    assert x.cpu().type() == f"torch.{name}Tensor"
    assert kind([1, 2]).device.type == "npu"
    assert tuple(kind(2, 3).shape) == tuple(kind(size=(2, 3)).shape) == (2, 3)


def test_type_still_converts():
    assert torch.ones(2, device="npu").type(torch.float16).dtype is torch.float16


def test_memory_is_counted():
    torch.npu.reset_peak_memory_stats()
    before, free = torch.npu.memory_allocated(), torch.npu.mem_get_info()[0]
    x = torch.empty(1 << 20, dtype=torch.uint8, device="npu")
    assert torch.npu.memory_allocated() - before == 1 << 20
    assert free - torch.npu.mem_get_info()[0] == 1 << 20
    assert memory.memory_stats()["allocated_bytes.all.current"] == torch.npu.memory_allocated()
    del x
    assert torch.npu.memory_allocated() == before
    assert torch.npu.max_memory_allocated() == before + (1 << 20)
    assert torch.npu.mem_get_info()[1] == 64 << 30


def test_a_fraction_of_the_memory_is_a_limit():
    try:
        torch.npu.set_per_process_memory_fraction((torch.npu.memory_allocated() + (1 << 20)) / (64 << 30))
        with pytest.raises(RuntimeError, match="NPU out of memory"):
            torch.empty(1 << 21, dtype=torch.uint8, device="npu")
    finally:
        torch.npu.set_per_process_memory_fraction(1.0)
    with pytest.raises(ValueError, match="fraction"):
        torch.npu.set_per_process_memory_fraction(2)


def test_properties():
    properties = torch.npu.get_device_properties()
    assert (properties.name, properties.total_memory) == ("Ascend910B2", 64 << 30)
    assert torch.npu.get_device_name(1) == "Ascend910B2"
    assert torch.npu.get_soc_version() == 223
    with pytest.raises(AssertionError, match="Invalid device id 99"):
        torch.npu.get_device_name(99)


def test_autocast_and_scaler():
    x = torch.ones(2, 2, device="npu")
    with torch.npu.amp.autocast(dtype=torch.bfloat16):
        assert (x @ x).dtype is torch.bfloat16
        assert torch.npu.is_autocast_enabled()
    assert (x @ x).dtype is torch.float32
    assert torch.npu.amp.GradScaler(init_scale=4.0).scale(x).sum().item() == 16


def test_the_profiler_measures_nothing_and_says_so():
    import torch_npu.profiler as profiler

    seen = []
    with profiler.profile(activities=[profiler.ProfilerActivity.NPU], on_trace_ready=seen.append) as profile:
        profile.step()
    assert profile.step_num == 1
    assert seen == [profile]
    with pytest.raises(NotImplementedError, match="measures no times"):
        profile.export_chrome_trace("x.json")
