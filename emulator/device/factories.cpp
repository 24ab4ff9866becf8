// Operators that make tensors or change their geometry: there is no CPU kernel to call, the memory is the device's own.
#include "device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <optional>

namespace npu {
namespace {

using at::Tensor;
using c10::SymInt;
using c10::SymIntArrayRef;

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

void check_options(std::optional<at::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  TORCH_CHECK_NOT_IMPLEMENTED(
      layout.value_or(at::kStrided) == at::kStrided, "the emulated NPU has strided tensors only, not ", *layout);
}

int index_of(const std::optional<c10::Device>& device) {
  return checked_index(device && device->has_index() ? device->index() : -1);
}

Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
             std::optional<c10::Device> device, std::optional<bool> pin_memory,
             std::optional<at::MemoryFormat> memory_format) {
  check_options(layout, pin_memory);
  DeviceScope scope(index_of(device));
  return at::detail::empty_generic(size, device_allocator(), kKeys, c10::dtype_or_default(dtype), memory_format);
}

Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout> layout, std::optional<c10::Device> device,
                     std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  DeviceScope scope(index_of(device));
  return at::detail::empty_strided_generic(size, stride, device_allocator(), kKeys, c10::dtype_or_default(dtype));
}

// torch's has no memory, which no alias could stand for.
Tensor zero_tensor(SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                   std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  return empty(C10_AS_INTARRAYREF_SLOW(size), dtype, layout, device, pin_memory, std::nullopt).zero_();
}

Tensor view(const Tensor& self, SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

Tensor as_strided(const Tensor& self, SymIntArrayRef size, SymIntArrayRef stride, std::optional<SymInt> offset) {
  std::optional<int64_t> start;
  if (offset) {
    start = offset->guard_int(__FILE__, __LINE__);
  }
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), start);
}

Tensor reshape_alias(const Tensor& self, SymIntArrayRef size, SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

void grow_storage(c10::TensorImpl* tensor, size_t bytes) {
  auto* storage = tensor->unsafe_storage().unsafeGetStorageImpl();
  if (bytes > storage->nbytes()) {
    resize_storage(storage, bytes);
  }
}

const Tensor& resize_(const Tensor& self, SymIntArrayRef symbolic_size, std::optional<at::MemoryFormat> memory_format) {
  auto* tensor = self.unsafeGetTensorImpl();
  const auto size = C10_AS_INTARRAYREF_SLOW(symbolic_size);
  if (tensor->sizes() == size && !memory_format) {
    return self;
  }
  tensor->set_sizes_contiguous(size);
  if (memory_format && *memory_format != at::MemoryFormat::Preserve) {
    tensor->empty_tensor_restride(*memory_format);
  }
  if (tensor->numel() > 0) {
    grow_storage(tensor, (tensor->storage_offset() + tensor->numel()) * tensor->itemsize());
  }
  return self;
}

Tensor& set_to_storage(Tensor& self, at::Storage source) {
  return at::native::set_(self, std::move(source));
}
Tensor& set_to_tensor(Tensor& self, const Tensor& source) {
  return at::native::set_tensor_(self, source);
}
Tensor& set_to_part(Tensor& self, at::Storage source, SymInt symbolic_offset, SymIntArrayRef symbolic_size,
                    SymIntArrayRef symbolic_stride) {
  TORCH_CHECK(source.device() == self.device(), "Attempted to set the storage of a tensor on device \"", self.device(),
              "\" to a storage on different device \"", source.device(),
              "\".  This is no longer allowed; the devices must match.");
  const auto size = C10_AS_INTARRAYREF_SLOW(symbolic_size);
  const auto stride = C10_AS_INTARRAYREF_SLOW(symbolic_stride);
  const int64_t offset = symbolic_offset.guard_int(__FILE__, __LINE__);
  TORCH_CHECK(offset >= 0, "Tensor: invalid storage offset ", offset);
  auto* tensor = self.unsafeGetTensorImpl();
  tensor->set_storage_keep_dtype(std::move(source));
  if (stride.data() != nullptr) {
    tensor->set_sizes_and_strides(size, stride, offset);
  } else {
    tensor->set_sizes_contiguous(size);
    tensor->set_storage_offset(offset);
  }
  grow_storage(tensor, at::detail::computeStorageNbytes(tensor->sizes(), tensor->strides(), tensor->itemsize(), offset));
  return self;
}

// x.data = y between a cpu and an npu tensor, which offloading does. torch_npu allows it the same way
// (HasCompatibleShallowCopyType.cpp); parameters would refuse their new home otherwise.
bool may_take_data_of(const Tensor& self, const Tensor& from) {
  return self.layout() == c10::kStrided && from.layout() == c10::kStrided;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("_efficientzerotensor", zero_tensor);
  library.impl("view", view);
  library.impl("as_strided", as_strided);
  library.impl("_reshape_alias", reshape_alias);
  library.impl("resize_", resize_);
  library.impl("set_.source_Storage", set_to_storage);
  library.impl("set_.source_Tensor", set_to_tensor);
  library.impl("set_.source_Storage_storage_offset", set_to_part);
  library.impl("_has_compatible_shallow_copy_type", may_take_data_of);
}
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, library) {
  library.impl("_has_compatible_shallow_copy_type", may_take_data_of);
}

}  // namespace
}  // namespace npu
