// The runtime that torch asks: devices, streams and events (device guard), generators and pinned memory (hooks).
#include "device.h"
#include "streams.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <utility>

namespace npu {
namespace {

int visible_devices = 1;
thread_local int this_device = 0;

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  void init() const override {}
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override { return new_generator(index); }
  c10::Device getDeviceFromPtr(void* pointer) const override {
    return is_device_pointer(pointer) ? npu_device(this_device) : c10::Device(c10::kCPU);
  }
  bool isPinnedPtr(const void* pointer) const override { return is_pinned(pointer); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage.unsafeGetStorageImpl(), bytes);
  }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(visible_devices); }
  void setCurrentDevice(c10::DeviceIndex index) const override { this_device = checked_index(index); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(this_device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return static_cast<c10::DeviceIndex>(index < 0 ? this_device : exchange_device(checked_index(index)));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
};

int index_of(c10::Device device) {
  return device.index() < 0 ? this_device : device.index();
}
StreamKey key_of(const c10::Stream& stream) {
  return {stream.device_index(), stream.id()};
}
c10::Stream stream_with(int device, int64_t id) {
  return c10::Stream(c10::Stream::UNSAFE, npu_device(device), id);
}
Event& event_of(void* event) {
  return *static_cast<Event*>(event);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kNpu; }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(visible_devices); }
  c10::Device getDevice() const override { return npu_device(this_device); }
  void setDevice(c10::Device device) const override { this_device = checked_index(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { this_device = device.index(); }
  c10::Device exchangeDevice(c10::Device device) const override {
    return npu_device(device.index() < 0 ? this_device : exchange_device(checked_index(device.index())));
  }

  c10::Stream getStream(c10::Device device) const override {
    return stream_with(index_of(device), current_stream(index_of(device)).second);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, npu_device(index_of(device)));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return stream_with(index_of(device), new_stream_id());
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return stream_with(stream.device_index(), exchange_stream(stream.device_index(), stream.id()));
  }
#if NPU_TORCH_AT_LEAST(2, 9)
  void* getStreamNativeHandle(const c10::Stream stream) const override { return reinterpret_cast<void*>(stream.id()); }
#endif
  // Work is done when it returns, but for copies to the host: a question lands them, so that who polls gets an end.
  bool queryStream(const c10::Stream& stream) const override {
    synchronizeStream(stream);
    return true;
  }
  void synchronizeStream(const c10::Stream& stream) const override { synchronize_stream(key_of(stream)); }
  void synchronizeDevice(const c10::DeviceIndex index) const override { land_device_copies(checked_index(index)); }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    if (races::on()) {
      races::record_stream(data, key_of(stream));
    }
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) {
      *event = new Event;
    }
    record_event(event_of(*event), key_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) {
      wait_event(event_of(event), key_of(stream));
    }
  }
  bool queryEvent(void* event) const override {
    synchronizeEvent(event);
    return true;
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) {
      return;
    }
    if (races::on()) {
      races::host_waits(event_of(event).clock);
    }
    land_copies(event_of(event).reached);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    return event_of(end).milliseconds - event_of(start).milliseconds;
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

}  // namespace

int device_count() {
  return visible_devices;
}
void set_device_count(int count) {
  TORCH_CHECK(count >= 1 && count <= kMaxDevices, "a process sees 1 to ", kMaxDevices, " emulated NPUs, not ", count,
              "; set NPU_EMULATOR_DEVICES accordingly");
  visible_devices = count;
}
int current_device() {
  return this_device;
}
int exchange_device(int index) {
  return std::exchange(this_device, index);
}
int checked_index(int index) {
  if (index < 0) {
    return this_device;
  }
  TORCH_CHECK(index < visible_devices, "Invalid NPU device index ", index, ": this process sees ", visible_devices,
              " device(s), npu:0 to npu:", visible_devices - 1, "; NPU_EMULATOR_DEVICES sets their number");
  return index;
}

void register_runtime() {
  static auto* hooks = new Hooks;
  at::RegisterPrivateUse1HooksInterface(hooks);
}

}  // namespace npu
