// An emulated NPU as a PyTorch device ("PrivateUse1"): what the subjects of this folder share.
//
// Device memory is host memory whose address carries one extra bit. The bit makes the address one that no process
// can have mapped, so whatever touches device memory without asking for its host address faults, as on a device.
// Operators run PyTorch's CPU kernels on CPU tensors that alias the device memory (alias.cpp, dispatch.cpp).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include <torch/version.h>

#define NPU_TORCH_AT_LEAST(major, minor) (TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR >= (major) * 100 + (minor))

namespace npu {

constexpr c10::DeviceType kNpu = c10::DeviceType::PrivateUse1;
constexpr int kMaxDevices = 64;

// ---- addresses ------------------------------------------------------------------------------------------------
// Bit 52 is set in no user address: x86-64 uses 47 bits (56 with five-level paging), aarch64 48 or 52, and the byte
// that aarch64 ignores starts at bit 56.
constexpr uintptr_t kDeviceBit = uintptr_t{1} << 52;

inline void* host_pointer(const void* pointer) {
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(pointer) & ~kDeviceBit);
}
inline void* device_pointer(void* pointer) {
  return pointer ? reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(pointer) | kDeviceBit) : nullptr;
}
inline bool is_device_pointer(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) & kDeviceBit;
}

// ---- devices (runtime.cpp) ------------------------------------------------------------------------------------
int device_count();
void set_device_count(int count);
int current_device();
// The index to use for "npu", "npu:3" or -1; raises when this process has no such device.
int checked_index(int index);
int exchange_device(int index);
// Tells torch about generators, pinned memory and devices. Once.
void register_runtime();
inline c10::Device npu_device(int index) {
  return c10::Device(kNpu, static_cast<c10::DeviceIndex>(index));
}

// Makes `index` this thread's current device for a scope.
struct DeviceScope {
  int previous;
  explicit DeviceScope(int index) : previous(exchange_device(index)) {}
  ~DeviceScope() { exchange_device(previous); }
  DeviceScope(const DeviceScope&) = delete;
};

// ---- memory (memory.cpp) --------------------------------------------------------------------------------------
enum class Poison : int { off = 0, fresh = 1, freed = 2 };

struct MemoryFigures {
  int64_t used, peak, budget, allocations, frees, failures;
};
MemoryFigures memory_figures(int device);
void reset_peak(int device);
void set_budget(int device, int64_t bytes);
void set_poison(Poison poison);
void fill_poison(void* host_memory, size_t bytes);
c10::Allocator* device_allocator();
// Puts the allocator of this module in front of torch's CPU allocator. Once, before any kernel runs.
void install_cpu_allocator();
// Memory that a CPU kernel returned becomes memory of `device`.
c10::DataPtr adopt(c10::DataPtr&& cpu, size_t bytes, int device);
// Changes the size of a device storage; keeps what fits.
void resize_storage(c10::StorageImpl* storage, size_t bytes);

// In scope, memory that this thread asks torch's CPU allocator for is memory of the current device.
void enter_kernel();
void leave_kernel();
struct KernelScope {
  DeviceScope device;
  explicit KernelScope(int index) : device(index) { enter_kernel(); }
  ~KernelScope() { leave_kernel(); }
};

// ---- pinned memory of the host (pinned.cpp) -------------------------------------------------------------------
bool is_pinned(const void* pointer);
c10::Allocator* pinned_allocator();

// ---- aliases (alias.cpp) --------------------------------------------------------------------------------------
// A CPU tensor on the memory of an npu tensor.
at::Tensor host_alias(const at::Tensor& npu);
// The same with the storage of an earlier alias, so that kernels see which of their arguments overlap.
at::Tensor host_alias_on(const at::Tensor& npu, c10::Storage cpu_storage);
// An npu tensor with the geometry of `cpu` on a device storage.
at::Tensor npu_view_of(const at::Tensor& cpu, c10::Storage npu_storage);
// The fresh result of a CPU kernel becomes an npu tensor: its storage changes sides, nothing is copied.
// `cpu` must not be used afterwards.
at::Tensor wrap(const at::Tensor& cpu, int device);

// ---- operators (dispatch.cpp) ---------------------------------------------------------------------------------
// Registers the CPU kernel of every aten operator for the npu. Returns how many. Once.
int register_operators();
int64_t operators_run();
// `operator_name` ("aten::index.Tensor") may take CPU tensors beside npu tensors.
void allow_host_argument(const std::string& operator_name);
// Operators of this namespace run their CPU kernels without a warning.
void allow_namespace(const std::string& name);

// ---- streams (streams.cpp) ------------------------------------------------------------------------------------
using StreamKey = std::pair<int, int64_t>;        // device, stream id
using Reached = std::map<StreamKey, uint64_t>;    // how far each stream's work is known to be done
StreamKey current_stream();  // of this thread, on its current device
StreamKey current_stream(int device);
// Notes one more piece of work on a stream; returns its number.
uint64_t note_work(StreamKey stream);
// What is done once everything queued on `stream` until now is done.
Reached reached_by(StreamKey stream);

// ---- copies (copies.cpp) --------------------------------------------------------------------------------------
void set_deferred(bool deferred);
size_t pending_copies();
int64_t overwritten_uploads();
// The copies from pinned memory until now count as done: a captured one reads the memory when it is replayed.
void forget_uploads();
void land_all_copies();
void land_device_copies(int device);
void land_copies(const Reached& reached);
// What an operator does whose result the host must know: waits for a stream.
void synchronize_stream(StreamKey stream);

// ---- random numbers (generator.cpp) ---------------------------------------------------------------------------
const at::Generator& default_generator(int device);
at::Generator new_generator(int device);
// The CPU generator that an npu generator drives.
at::Generator cpu_generator_of(const at::Generator& npu);

// ---- faults (fault.cpp) ---------------------------------------------------------------------------------------
void install_fault_handler();

}  // namespace npu
