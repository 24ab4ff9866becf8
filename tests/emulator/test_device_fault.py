"""A host access to device memory ends the process with a message that says what happened."""

import signal

import pytest

from tests.emulator import processes

MESSAGE = "host code read or wrote device memory at 0x0010"
REMEDY = "Copy the tensor to the CPU first (.cpu())"

ACCESSES = {
    "a read": "ctypes.string_at(pointer, 4)",
    "a read far inside": "ctypes.string_at(pointer + 4000, 4)",
    "a write": "ctypes.memset(pointer, 0, 4)",
    "a copy to the host": "ctypes.memmove(ctypes.create_string_buffer(64), pointer, 64)",
    "a copy from the host": "ctypes.memmove(pointer, ctypes.create_string_buffer(64), 64)",
    "a pointer followed": "ctypes.c_int.from_address(pointer).value",
    "numpy on the address": (
        "__import__('numpy').frombuffer((ctypes.c_float * 8).from_address(pointer), dtype='float32').sum()"
    ),
}


def crash(access):
    code = f"""
import ctypes, torch
def wrong_code(pointer):
    return {access}
wrong_code(torch.ones(4096, device="npu").data_ptr())
print("survived")
"""
    return processes.run(code, check=False)


@pytest.mark.parametrize("name", ACCESSES)
def test_an_access_of_the_host_dies_with_a_message_and_the_python_stack(name):
    done = crash(ACCESSES[name])
    assert done.returncode == -signal.SIGSEGV
    assert "survived" not in done.stdout
    assert MESSAGE in done.stderr
    assert REMEDY in done.stderr
    assert done.stderr.count("host code read or wrote") == 1
    assert "in wrong_code" in done.stderr


def test_the_address_is_the_tensors():
    done = processes.run(
        "import ctypes, torch; x = torch.ones(4, device='npu'); print(hex(x.data_ptr()), flush=True);"
        "ctypes.c_char.from_address(x.data_ptr()).value",
        check=False,
    )
    assert f"{int(done.stdout, 16):#018x}" in done.stderr


@pytest.mark.parametrize("address", [0, 0x10, 0x7000_0000_0000])
def test_another_bad_address_says_nothing_about_devices(address):
    code = f"import ctypes, torch; torch.npu.init(); ctypes.string_at({address} or None, 4)"
    done = processes.run(code, check=False)
    if address:
        assert done.returncode == -signal.SIGSEGV
    assert "device memory" not in done.stderr


def test_a_signal_from_outside_ends_the_process_as_ever():
    code = "import os, signal, torch; torch.npu.init(); os.kill(os.getpid(), signal.SIGSEGV); print('survived')"
    done = processes.run(code, check=False)
    assert done.returncode == -signal.SIGSEGV
    assert "survived" not in done.stdout
    assert "device memory" not in done.stderr


def test_the_message_comes_where_stderr_is_not_a_file():
    code = "import io, sys; sys.stderr = sys.__stderr__ = io.StringIO(); import ctypes, torch;"
    done = processes.run(code + "ctypes.string_at(torch.ones(4, device='npu').data_ptr(), 4)", check=False)
    assert done.returncode == -signal.SIGSEGV
    assert MESSAGE in done.stderr
