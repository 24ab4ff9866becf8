// Aliases: CPU tensors on device memory, and results of CPU kernels that become npu tensors. Nothing is copied.
#include "device.h"

#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>

namespace npu {
namespace {

void release_storage(void* storage) {
  c10::raw::intrusive_ptr::decref(static_cast<c10::StorageImpl*>(storage));
}

// A CPU storage on the memory of a device storage, which it keeps alive. It may be resized: a kernel that does so
// gets new memory, which dispatch.cpp then hands to the device storage.
c10::Storage cpu_storage_on(c10::StorageImpl* device_storage) {
  void* data = host_pointer(device_storage->data_ptr().get());
  c10::raw::intrusive_ptr::incref(device_storage);
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(),
      device_storage->nbytes(),
      c10::DataPtr(data, device_storage, &release_storage, c10::Device(c10::kCPU)),
      c10::GetAllocator(c10::kCPU),
      device_storage->resizable()));
}

// A tensor with the geometry, type and lazy bits of `like` on another storage.
at::Tensor same_geometry(const at::Tensor& like, c10::Storage storage, c10::DispatchKey key) {
  const auto* from = like.unsafeGetTensorImpl();
  auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), from->dtype());
  impl->set_sizes_and_strides(from->sizes(), from->strides(), from->storage_offset());
  if (from->is_wrapped_number()) {
    impl->set_wrapped_number(true);
  }
  at::Tensor result(std::move(impl));
  if (like.is_conj()) {
    result._set_conj(true);
  }
  if (like.is_neg()) {
    result._set_neg(true);
  }
  return result;
}

void check_strided(const at::Tensor& tensor) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      tensor.layout() == c10::kStrided && tensor.has_storage(),
      "the emulated NPU has strided tensors only and was given one of layout ", tensor.layout(),
      "; make it on the CPU (.cpu()) or dense (.to_dense())");
}

}  // namespace

at::Tensor host_alias(const at::Tensor& npu) {
  TORCH_CHECK(npu.device().type() == kNpu, "Expected all tensors to be on the same device, but found at least two ",
              "devices, npu:", current_device(), " and ", npu.device(), "!");
  check_strided(npu);
  return same_geometry(npu, cpu_storage_on(npu.storage().unsafeGetStorageImpl()), c10::DispatchKey::CPU);
}

at::Tensor host_alias_on(const at::Tensor& npu, c10::Storage cpu_storage) {
  check_strided(npu);
  return same_geometry(npu, std::move(cpu_storage), c10::DispatchKey::CPU);
}

at::Tensor npu_view_of(const at::Tensor& cpu, c10::Storage npu_storage) {
  return same_geometry(cpu, std::move(npu_storage), c10::DispatchKey::PrivateUse1);
}

at::Tensor wrap(const at::Tensor& cpu, int device) {
  if (!cpu.defined() || cpu.device().type() == kNpu) {
    return cpu;
  }
  check_strided(cpu);
  c10::StorageImpl* storage = cpu.storage().unsafeGetStorageImpl();
  if (storage->device().is_cpu()) {
    const size_t bytes = storage->nbytes();
    c10::DataPtr data = adopt(storage->set_data_ptr(c10::DataPtr()), bytes, device);
    storage->set_data_ptr_noswap(std::move(data));
    storage->set_nbytes(bytes);
    storage->set_allocator(device_allocator());
  }
  return npu_view_of(cpu, cpu.storage());
}

}  // namespace npu
