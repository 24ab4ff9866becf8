// The arguments of one operator call on their way to the CPU kernel and back.
#pragma once
#include "device.h"

#include <c10/util/SmallVector.h>

#include <unordered_map>
#include <utility>
#include <vector>

namespace npu {

class Arguments {
 public:
  int device = -1;            // of the first npu tensor, or of a device argument
  bool wants_cpu = false;     // a device argument asks for a result on the CPU
  bool of_generator = false;  // `device` is that of a generator: there was no npu tensor before it
  int host_argument = -1;     // the first argument that holds a CPU tensor with dimensions
  c10::SmallVector<int, 2> host_scalars;  // the arguments that hold CPU tensors without dimensions

  int device_or_current() const { return device < 0 ? current_device() : device; }

  at::Tensor to_cpu(const at::Tensor& tensor, int argument) {
    if (!tensor.defined()) {
      return tensor;
    }
    if (tensor.device().type() != kNpu) {
      note_host_tensor(tensor, argument);
      return tensor;
    }
    note_device(tensor.device().index());
    if (const Pair* known = find(Key::npu_tensor, tensor.unsafeGetTensorImpl())) {
      return known->cpu;
    }
    const Pair* relative = tensor.has_storage() ? find(Key::npu_storage, storage_of(tensor)) : nullptr;
    at::Tensor cpu = relative ? host_alias_on(tensor, relative->cpu.storage()) : host_alias(tensor);
    remember({tensor, cpu});
    return cpu;
  }

  at::Generator to_cpu(const at::Generator& generator) {
    const at::Generator cpu = cpu_generator_of(generator);
    if (device < 0) {
      device = generator.device().index();
      of_generator = true;
    }
    return cpu;
  }

  // A result is one of the arguments, a view of one, or fresh.
  at::Tensor to_npu(const at::Tensor& result) const {
    if (!result.defined()) {
      return result;
    }
    if (const Pair* known = find(Key::cpu_tensor, result.unsafeGetTensorImpl())) {
      return known->npu;
    }
    if (wants_cpu || !result.device().is_cpu()) {
      return result;
    }
    const Pair* relative = result.has_storage() ? find(Key::cpu_storage, storage_of(result)) : nullptr;
    return relative ? npu_view_of(result, relative->npu.storage()) : wrap(result, device_or_current());
  }

  // out= variants and resizing kernels change sizes, or give the storage new memory.
  void write_back() {
    for (Pair& pair : pairs_) {
      auto* npu_storage = storage_of(pair.npu);
      auto* cpu_storage = storage_of(pair.cpu);
      const size_t bytes = cpu_storage->nbytes();
      if (cpu_storage->data_ptr().get() != host_pointer(npu_storage->data_ptr().get())) {
        c10::DataPtr data = adopt(cpu_storage->set_data_ptr(c10::DataPtr()), bytes, npu_storage->device().index());
        npu_storage->set_data_ptr_noswap(std::move(data));
        npu_storage->set_nbytes(bytes);
      } else if (npu_storage->nbytes() != bytes) {
        npu_storage->set_nbytes(bytes);
      }
      auto* npu = pair.npu.unsafeGetTensorImpl();
      const auto* cpu = pair.cpu.unsafeGetTensorImpl();
      if (npu->sizes() != cpu->sizes() || npu->strides() != cpu->strides() ||
          npu->storage_offset() != cpu->storage_offset()) {
        npu->set_sizes_and_strides(cpu->sizes(), cpu->strides(), cpu->storage_offset());
      }
    }
  }

 private:
  struct Pair {
    at::Tensor npu;
    at::Tensor cpu;
  };
  enum class Key { npu_tensor, npu_storage, cpu_tensor, cpu_storage };
  static constexpr size_t kKeys = 4;
  using Positions = std::unordered_map<const void*, size_t>;

  // Most calls have a handful of tensors, multi-tensor optimizers have thousands: a scan for the former, maps for the
  // latter.
  static constexpr size_t kScanned = 16;

  static c10::StorageImpl* storage_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

  static const void* key_of(const Pair& pair, Key key) {
    switch (key) {
      case Key::npu_tensor:
        return pair.npu.unsafeGetTensorImpl();
      case Key::npu_storage:
        return storage_of(pair.npu);
      case Key::cpu_tensor:
        return pair.cpu.unsafeGetTensorImpl();
      default:
        return storage_of(pair.cpu);
    }
  }

  const Pair* find(Key key, const void* wanted) const {
    if (!maps_.empty()) {
      const Positions& positions = maps_[static_cast<size_t>(key)];
      const auto found = positions.find(wanted);
      return found == positions.end() ? nullptr : &pairs_[found->second];
    }
    for (const Pair& pair : pairs_) {
      if (key_of(pair, key) == wanted) {
        return &pair;
      }
    }
    return nullptr;
  }

  void remember(Pair pair) {
    pairs_.push_back(std::move(pair));
    if (!maps_.empty()) {
      map_position(pairs_.size() - 1);
    } else if (pairs_.size() > kScanned) {
      maps_.resize(kKeys);
      for (size_t position = 0; position < pairs_.size(); ++position) {
        map_position(position);
      }
    }
  }

  void map_position(size_t position) {
    for (size_t key = 0; key < kKeys; ++key) {
      maps_[key].emplace(key_of(pairs_[position], static_cast<Key>(key)), position);
    }
  }

  void note_device(int index) {
    TORCH_CHECK(device < 0 || device == index,
                "Expected all tensors to be on the same device, but found at least two devices, npu:", device,
                " and npu:", index, "!");
    device = index;
    of_generator = false;
  }

  void note_host_tensor(const at::Tensor& tensor, int argument) {
    if (!tensor.device().is_cpu() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      return;
    }
    if (tensor.dim() == 0) {
      host_scalars.push_back(argument);
    } else if (host_argument < 0) {
      host_argument = argument;
    }
  }

  c10::SmallVector<Pair, 6> pairs_;
  std::vector<Positions> maps_;  // one a key, or none
};

}  // namespace npu
