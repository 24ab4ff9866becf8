// Pinned memory: ordinary memory whose ranges are remembered.
#include "device.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace npu {
namespace {

struct PinnedAllocator final : c10::Allocator {
  static std::mutex& mutex() {
    static auto* instance = new std::mutex;
    return *instance;
  }
  static std::map<uintptr_t, size_t>& ranges() {
    static auto* instance = new std::map<uintptr_t, size_t>;
    return *instance;
  }
  static void release(void* data) {
    {
      std::lock_guard<std::mutex> lock(mutex());
      ranges().erase(reinterpret_cast<uintptr_t>(data));
    }
    std::free(data);
  }
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) {
      return {nullptr, nullptr, &c10::detail::deleteNothing, c10::Device(c10::kCPU)};
    }
    void* data = nullptr;
    TORCH_CHECK(posix_memalign(&data, 64, bytes) == 0, "the host has no pinned memory left for ", bytes, " bytes");
    std::lock_guard<std::mutex> lock(mutex());
    ranges()[reinterpret_cast<uintptr_t>(data)] = bytes;
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};
PinnedAllocator the_pinned_allocator;

}  // namespace

bool is_pinned(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  std::lock_guard<std::mutex> lock(PinnedAllocator::mutex());
  auto after = PinnedAllocator::ranges().upper_bound(address);
  if (after == PinnedAllocator::ranges().begin()) {
    return false;
  }
  --after;
  return address < after->first + after->second;
}

c10::Allocator* pinned_allocator() {
  return &the_pinned_allocator;
}

}  // namespace npu
