// Random numbers: an npu generator drives a CPU generator of its own, so a seed gives the CPU's numbers on the npu.
#include "device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GeneratorImpl.h>

#include <vector>

namespace npu {
namespace {

class NpuGenerator final : public c10::GeneratorImpl {
 public:
  NpuGenerator(int device, at::Generator cpu)
      : GeneratorImpl{npu_device(device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)}, cpu_(std::move(cpu)) {}

  const at::Generator& cpu() const { return cpu_; }

  void set_current_seed(uint64_t seed) override { cpu_.set_current_seed(seed); }
  uint64_t current_seed() const override { return cpu_.current_seed(); }
  uint64_t seed() override { return cpu_.seed(); }
  // A device's generator counts; the CPU's has a state without an offset.
  void set_offset(uint64_t offset) override {
    TORCH_CHECK(offset == 0, "the generator of the emulated NPU has no offset; use get_state() and set_state()");
  }
  uint64_t get_offset() const override { return 0; }
  void set_state(const c10::TensorImpl& state) override { cpu_.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return cpu_.unsafeGetGeneratorImpl()->get_state(); }
  NpuGenerator* clone_impl() const override { return new NpuGenerator(device().index(), cpu_.clone()); }

 private:
  at::Generator cpu_;
};

}  // namespace

at::Generator new_generator(int device) {
  return at::make_generator<NpuGenerator>(checked_index(device), at::detail::createCPUGenerator());
}

const at::Generator& default_generator(int device) {
  // For every device there could be: the number of devices is set after the first generator may have been asked for.
  static const auto* generators = [] {
    auto* list = new std::vector<at::Generator>;
    for (int index = 0; index < kMaxDevices; ++index) {
      list->push_back(at::make_generator<NpuGenerator>(index, at::detail::createCPUGenerator()));
    }
    return list;
  }();
  return generators->at(checked_index(device));
}

at::Generator cpu_generator_of(const at::Generator& npu) {
  TORCH_CHECK(npu.device().type() == kNpu, "Expected a 'npu' device type for generator but found '", npu.device().type(),
              "'");
  return static_cast<NpuGenerator*>(npu.unsafeGetGeneratorImpl())->cpu();
}

}  // namespace npu
