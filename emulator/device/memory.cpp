// Memory: blocks, the budget of each device, poison, the allocators of the device and, while a kernel runs,
// of the CPU.
#include "device.h"
#include "races.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#if NPU_TORCH_AT_LEAST(2, 9)
#include <c10/core/CachingDeviceAllocator.h>
#endif

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iomanip>
#include <mutex>
#include <sstream>

namespace npu {
namespace {

// ---- figures --------------------------------------------------------------------------------------------------
struct DeviceMemory {
  std::atomic<int64_t> used{0};
  std::atomic<int64_t> peak{0};
  std::atomic<int64_t> budget{INT64_MAX};
  std::atomic<int64_t> allocations{0};
  std::atomic<int64_t> frees{0};
  std::atomic<int64_t> failures{0};
};
DeviceMemory memory_of[kMaxDevices];

// Sizes as torch_npu prints them (NPUCachingAllocator.cpp, format_size).
std::string readable(int64_t bytes) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(2);
  if (bytes <= 1024) {
    text << bytes << " bytes";
  } else if (bytes <= 1048576) {
    text << bytes / 1024.0 << " KiB";
  } else if (bytes <= 1073741824) {
    text << bytes / 1048576.0 << " MiB";
  } else {
    text << bytes / 1073741824.0 << " GiB";
  }
  return text.str();
}

// The text and the type (RuntimeError, not torch.OutOfMemoryError) of torch_npu at v7.2.0-pytorch2.7.1,
// NPUCachingAllocator.cpp:1429; programs and logs are searched for it. Nothing is cached here, so what is reserved
// equals what is allocated.
[[noreturn]] void raise_out_of_memory(int device, int64_t wanted, int64_t used, int64_t budget) {
  const std::string in_use = readable(used);
  TORCH_CHECK(
      false,
      "NPU out of memory. Tried to allocate ", readable(wanted), " (NPU ", device, "; ",
      readable(budget), " total capacity; ",
      in_use, " already allocated; ",
      in_use, " current active; ",
      readable(std::max<int64_t>(budget - used, 0)), " free; ",
      in_use, " reserved in total by PyTorch) ",
      "If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.");
}

void account(int device, int64_t bytes) {
  DeviceMemory& memory = memory_of[device];
  const int64_t used = memory.used.fetch_add(bytes) + bytes;
  const int64_t budget = memory.budget;
  if (used > budget) {
    memory.used -= bytes;
    ++memory.failures;
    raise_out_of_memory(device, bytes, used - bytes, budget);
  }
  int64_t peak = memory.peak;
  while (peak < used && !memory.peak.compare_exchange_weak(peak, used)) {
  }
  ++memory.allocations;
}

void unaccount(int device, int64_t bytes) {
  memory_of[device].used -= bytes;
  ++memory_of[device].frees;
}

// ---- blocks ---------------------------------------------------------------------------------------------------
// Every block, a host one too, has this header in front: raw_allocate() wants the data pointer to be the context that
// the deleter gets, so there is nowhere else to say whose memory it is.
constexpr uint64_t kMagic = 0x6e70755f626c6f63;
constexpr int kHost = -1;
struct Header {
  size_t bytes;
  uint64_t magic;
  int device;
  Shadow* shadow;  // of races.cpp; null unless it is on
  char padding[32];
};
static_assert(sizeof(Header) == 64, "data must stay aligned to 64 bytes");

Header* header_of(void* data) {
  auto* header = static_cast<Header*>(data) - 1;
  return header->magic == kMagic ? header : nullptr;
}

std::atomic<int> poison_mode{static_cast<int>(Poison::off)};
constexpr int kPoisonByte = 0xFF;  // NaN in every floating type, -1 in every signed integer

// With Poison::freed, freed blocks stay out of the heap for a while: the heap would hand them out again at once and
// the poison would be overwritten before anybody reads it.
class Quarantine {
 public:
  void add(Header* header) {
    std::lock_guard<std::mutex> lock(mutex_);
    blocks_.push_back(header);
    bytes_ += header->bytes;
    while (bytes_ > kLimit) {
      bytes_ -= blocks_.front()->bytes;
      std::free(blocks_.front());
      blocks_.pop_front();
    }
  }

 private:
  static constexpr size_t kLimit = size_t{64} << 20;
  std::mutex mutex_;
  std::deque<Header*> blocks_;
  size_t bytes_ = 0;
};
Quarantine& quarantine() {
  static auto* instance = new Quarantine;  // never destroyed: blocks are freed until the very end of the process
  return *instance;
}

void* new_block(size_t bytes, int device) {
  void* memory = nullptr;
  if (posix_memalign(&memory, 64, bytes + sizeof(Header)) != 0) {
    if (device != kHost) {
      unaccount(device, static_cast<int64_t>(bytes));
    }
    TORCH_CHECK(false, "the host has no memory left for ", readable(static_cast<int64_t>(bytes)),
                "; the memory of the emulated NPU lies on the host");
  }
  auto* header = static_cast<Header*>(memory);
  header->bytes = bytes;
  header->magic = kMagic;
  header->device = device;
  header->shadow = nullptr;
  return header + 1;
}

void free_block(void* data) {
  if (data == nullptr) {
    return;
  }
  Header* header = header_of(data);
  if (header == nullptr) {  // from torch's own allocator, before this module was loaded
    std::free(data);
    return;
  }
  const int device = header->device;
  header->magic = 0;
  if (C10_UNLIKELY(header->shadow != nullptr)) {
    races::freed(header->shadow, header->bytes);
  }
  if (device == kHost) {
    std::free(header);
    return;
  }
  unaccount(device, static_cast<int64_t>(header->bytes));
  if (poison_mode == static_cast<int>(Poison::freed)) {
    std::memset(data, kPoisonByte, header->bytes);
    quarantine().add(header);
    return;
  }
  std::free(header);
}

void* new_device_block(size_t bytes, int device) {
  account(device, static_cast<int64_t>(bytes));
  void* data = new_block(bytes, device);
  if (C10_UNLIKELY(races::on())) {
    header_of(data)->shadow = races::allocated(bytes, current_stream(device));
  }
  if (poison_mode != static_cast<int>(Poison::off)) {
    std::memset(data, kPoisonByte, bytes);
  }
  return data;
}

c10::DataPtr device_data(size_t bytes, int device) {
  if (bytes == 0) {
    return {nullptr, npu_device(device)};
  }
  void* data = new_device_block(bytes, device);
  return {device_pointer(data), data, &free_block, npu_device(device)};
}

// ---- allocators -----------------------------------------------------------------------------------------------
thread_local int kernel_depth = 0;

#if NPU_TORCH_AT_LEAST(2, 9)
struct DeviceAllocator final : c10::DeviceAllocator {  // what torch.accelerator.memory_* asks
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  // Operators are done when they return, so no block is freed while a stream still uses it; races.cpp wants to know.
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (races::on()) {
      races::record_stream(data, {stream.device_index(), stream.id()});
    }
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    const MemoryFigures figures = memory_figures(device);
    for (auto* bytes : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes}) {
      (*bytes)[0].current = figures.used;
      (*bytes)[0].peak = figures.peak;
    }
    stats.allocation[0].allocated = figures.allocations;
    stats.allocation[0].freed = figures.frees;
    stats.allocation[0].current = figures.allocations - figures.frees;
    stats.num_ooms = figures.failures;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    memory_of[device].allocations = 0;
    memory_of[device].frees = 0;
    memory_of[device].failures = 0;
  }
  void resetPeakStats(c10::DeviceIndex device) override { reset_peak(device); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const MemoryFigures figures = memory_figures(device);
    return {figures.budget - figures.used, figures.budget};
  }
#else
struct DeviceAllocator final : c10::Allocator {
#endif
  c10::DataPtr allocate(size_t bytes) override { return device_data(bytes, current_device()); }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(host_pointer(to), host_pointer(from), bytes);
  }
};
DeviceAllocator the_device_allocator;

// In front of torch's own: what a CPU kernel allocates while it serves the npu is device memory, so that results and
// scratch count against the budget and are poisoned.
struct CpuAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) {
      return {nullptr, nullptr, &free_block, c10::Device(c10::kCPU)};
    }
    void* data = kernel_depth > 0 ? new_device_block(bytes, current_device()) : new_block(bytes, kHost);
    return {data, data, &free_block, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};
CpuAllocator the_cpu_allocator;

// Memory that is not ours (numpy's, say) and becomes device memory.
struct Foreign {
  c10::DataPtr data;
  size_t bytes;
  int device;
};
void release_foreign(void* context) {
  auto* foreign = static_cast<Foreign*>(context);
  unaccount(foreign->device, static_cast<int64_t>(foreign->bytes));
  delete foreign;
}

}  // namespace

MemoryFigures memory_figures(int device) {
  const DeviceMemory& memory = memory_of[device];
  return {memory.used, memory.peak, memory.budget, memory.allocations, memory.frees, memory.failures};
}
void reset_peak(int device) {
  memory_of[device].peak = memory_of[device].used.load();
}
void set_budget(int device, int64_t bytes) {
  memory_of[device].budget = bytes;
}
void set_poison(Poison poison) {
  poison_mode = static_cast<int>(poison);
}
void fill_poison(void* host_memory, size_t bytes) {
  std::memset(host_memory, kPoisonByte, bytes);
}
void enter_kernel() {
  ++kernel_depth;
}
void leave_kernel() {
  --kernel_depth;
}

Shadow** shadow_of(const c10::DataPtr& data) {
  Header* header = data.get_deleter() == &free_block && data.get_context() ? header_of(data.get_context()) : nullptr;
  return header == nullptr || header->device == kHost ? nullptr : &header->shadow;
}

c10::Allocator* device_allocator() {
  return &the_device_allocator;
}
void install_cpu_allocator() {
  c10::SetAllocator(c10::kCPU, &the_cpu_allocator, /*priority=*/1);
}

c10::DataPtr adopt(c10::DataPtr&& cpu, size_t bytes, int device) {
  void* data = cpu.get();
  if (data == nullptr) {
    return {nullptr, npu_device(device)};
  }
  if (cpu.get_deleter() != &free_block) {
    account(device, static_cast<int64_t>(bytes));
    return {device_pointer(data), new Foreign{std::move(cpu), bytes, device}, &release_foreign, npu_device(device)};
  }
  Header* header = header_of(data);
  if (header != nullptr && header->device != device) {  // a worker thread's, or a device's that was current before
    account(device, static_cast<int64_t>(header->bytes));
    if (header->device != kHost) {
      unaccount(header->device, static_cast<int64_t>(header->bytes));
    }
    header->device = device;
  }
  return {device_pointer(data), cpu.release_context(), &free_block, npu_device(device)};
}

void resize_storage(c10::StorageImpl* storage, size_t bytes) {
  c10::DataPtr data = device_data(bytes, storage->device().index());
  const size_t kept = std::min(bytes, storage->nbytes());
  if (kept > 0) {
    std::memcpy(host_pointer(data.get()), host_pointer(storage->data()), kept);
  }
  storage->set_data_ptr_noswap(std::move(data));
  storage->set_nbytes(bytes);
}

REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &the_device_allocator);

}  // namespace npu
