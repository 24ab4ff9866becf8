// The Python module npu_device.
#include "device.h"
#include "hccl.h"
#include "races.h"

#include <ATen/core/Generator.h>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <tuple>

namespace py = pybind11;

namespace {

// Python's stack below the fault message; without it when sys.stderr has no file descriptor.
void enable_python_stacks() {
  try {
    auto faulthandler = py::module_::import("faulthandler");
    if (!faulthandler.attr("is_enabled")().cast<bool>()) {
      faulthandler.attr("enable")(py::module_::import("sys").attr("__stderr__"));
    }
  } catch (const py::error_already_set&) {
  }
}

void init(int count) {
  npu::set_device_count(count);
  enable_python_stacks();
  npu::install_fault_handler();
}

at::Tensor host_alias(const at::Tensor& tensor) {
  return tensor.device().type() == npu::kNpu ? npu::host_alias(tensor.detach()) : tensor;
}

at::Tensor wrap(const at::Tensor& tensor, int index) {
  return npu::wrap(tensor, npu::checked_index(index));
}

void set_device(int index) {
  TORCH_CHECK(index >= 0, "Invalid NPU device index ", index, ": expected 0 or more");
  npu::exchange_device(npu::checked_index(index));
}

void set_budget(int64_t bytes, int index) {
  TORCH_CHECK(bytes >= 0, "the memory of an NPU must be 0 bytes or more, not ", bytes);
  const int first = index < 0 ? 0 : npu::checked_index(index);
  const int last = index < 0 ? npu::kMaxDevices - 1 : first;
  for (int device = first; device <= last; ++device) {
    npu::set_budget(device, bytes);
  }
}

std::tuple<int64_t, int64_t, int64_t> counts() {
  int64_t allocations = 0;
  int64_t frees = 0;
  for (int device = 0; device < npu::device_count(); ++device) {
    allocations += npu::memory_figures(device).allocations;
    frees += npu::memory_figures(device).frees;
  }
  return {allocations, frees, npu::operators_run()};
}

void set_poison(int mode) {
  TORCH_CHECK(mode >= 0 && mode <= 2, "poison is 0 (off), 1 (fresh memory) or 2 (fresh and freed memory), not ", mode);
  npu::set_poison(static_cast<npu::Poison>(mode));
}

npu::MemoryFigures figures(int index) {
  return npu::memory_figures(npu::checked_index(index));
}

uintptr_t host_pointer(uintptr_t pointer) {
  return reinterpret_cast<uintptr_t>(npu::host_pointer(reinterpret_cast<void*>(pointer)));
}

void fill_poison(uintptr_t pointer, size_t bytes) {
  npu::fill_poison(npu::host_pointer(reinterpret_cast<void*>(pointer)), bytes);
}

void bind_devices(py::module_& module) {
  module.def("init", &init, py::arg("count"), "Makes this process see `count` devices; installs the fault message.");
  module.def("device_count", &npu::device_count, "How many devices this process sees.");
  module.def("current_device", &npu::current_device, "The index of this thread's current device.");
  module.def("set_device", &set_device, py::arg("index"), "Makes a device this thread's current one.");
  module.def("default_generator", [](int index) { return npu::default_generator(index); }, py::arg("index") = -1,
             "The default random generator of a device (-1: the current one).");
}

void bind_tensors(py::module_& module) {
  module.def("alias", &host_alias, py::arg("tensor"),
             "A CPU tensor on the memory of an npu tensor, without gradient; a CPU tensor comes back as it is.");
  module.def("wrap", &wrap, py::arg("tensor"), py::arg("index") = -1,
             "Makes a fresh CPU tensor an npu tensor without a copy. The CPU tensor, and others on its storage, must "
             "not be used afterwards.");
  module.def("enter_kernel", [] { npu::enter_kernel(); },
             "From here on this thread's CPU tensors are allocated as memory of the current device.");
  module.def("leave_kernel", [] { npu::leave_kernel(); }, "Ends what enter_kernel() began.");
  module.def("host_pointer", &host_pointer, py::arg("pointer"), "The host address behind a device address.");
  module.def("allow_host_argument", &npu::allow_host_argument, py::arg("operator_name"),
             "The aten operator of that name (\"aten::index.Tensor\") takes CPU tensors beside npu tensors.");
  module.def("allow_namespace", &npu::allow_namespace, py::arg("name"),
             "Operators of that namespace run their CPU kernels on npu tensors without a warning.");
}

void bind_copies(py::module_& module) {
  module.def("synchronize", [](int index) {
    if (index < 0) {
      npu::land_all_copies();
    } else {
      npu::land_device_copies(npu::checked_index(index));
    }
  }, py::arg("index") = -1, "Waits for everything on a device (-1: on all): pending copies to the host land.");
  module.def("pending_copies", &npu::pending_copies, "How many non-blocking copies to the host have not landed.");
  module.def("overwritten_uploads", &npu::overwritten_uploads,
             "How often pinned memory changed before a non-blocking copy from it was known to be done.");
  module.def("forget_uploads", &npu::forget_uploads,
             "The copies from pinned memory until now count as done: a captured one reads it when it is replayed.");
  module.def("set_deferred", &npu::set_deferred, py::arg("deferred"),
             "Whether non-blocking copies to the host land at the next synchronisation (default) or at once.");
}

void bind_memory(py::module_& module) {
  module.def("memory_used", [](int index) { return figures(index).used; }, py::arg("index") = -1,
             "Bytes in use on a device.");
  module.def("memory_peak", [](int index) { return figures(index).peak; }, py::arg("index") = -1,
             "The most bytes in use on a device since the last reset_peak().");
  module.def("reset_peak", [](int index) { npu::reset_peak(npu::checked_index(index)); }, py::arg("index") = -1,
             "Starts memory_peak() anew.");
  module.def("set_budget", &set_budget, py::arg("bytes"), py::arg("index") = -1,
             "The memory of a device in bytes (-1: of every device).");
  module.def("budget", [](int index) { return figures(index).budget; }, py::arg("index") = -1,
             "The memory of a device in bytes.");
  module.def("memory_failures", [](int index) { return figures(index).failures; }, py::arg("index") = -1,
             "How often a device ran out of memory.");
  module.def("counts", &counts, "(allocations, frees, operators) of this process on all devices.");
  module.def("set_poison", &set_poison, py::arg("mode"),
             "0: memory as the host gives it; 1: fresh memory is filled with 0xFF (NaN); 2: freed memory as well.");
  module.def("fill_poison", &fill_poison, py::arg("pointer"), py::arg("nbytes"),
             "Fills memory with poison, given by host or device address.");
}

py::dict as_dict(const npu::races::Side& side) {
  py::dict dict;
  dict["operator"] = side.name;
  dict["stream"] = std::vector<int64_t>{side.stream.first, side.stream.second};
  dict["access"] = side.access == npu::races::Access::write ? "write" : "read";
  return dict;
}
py::list races() {
  py::list list;
  for (const npu::races::Race& race : npu::races::found()) {
    py::dict dict;
    dict["kind"] = race.kind;
    dict["first"] = as_dict(race.first);
    dict["second"] = as_dict(race.second);
    dict["shape"] = race.shape;
    dict["dtype"] = race.dtype;
    dict["bytes"] = race.bytes;
    dict["count"] = race.count;
    list.append(dict);
  }
  return list;
}

void set_races(int mode, const py::object& reporter) {
  TORCH_CHECK(mode >= 0 && mode <= 2, "races are 0 (off), 1 (warn) or 2 (error), not ", mode);
  auto* callable = new py::object(reporter);  // never released: it may be needed until the very end
  npu::races::set_mode(static_cast<npu::races::Mode>(mode), [callable](const std::string& text) {
    if (!Py_IsInitialized()) {
      return;
    }
    py::gil_scoped_acquire lock;
    (*callable)(text);
  });
}

void note_uses(const std::string& name, const std::vector<at::Tensor>& reads, const std::vector<at::Tensor>& writes) {
  if (!npu::races::on()) {
    return;
  }
  const char* kept = npu::races::kept(name);
  for (const at::Tensor& tensor : reads) {
    if (tensor.device().type() == npu::kNpu) {
      npu::races::Operator(kept, npu::current_stream(tensor.device().index())).reads(tensor);
    }
  }
  for (const at::Tensor& tensor : writes) {
    if (tensor.device().type() == npu::kNpu) {
      npu::races::Operator(kept, npu::current_stream(tensor.device().index())).writes(tensor);
    }
  }
}

std::optional<std::string> rename_uses(const std::optional<std::string>& name) {
  const char* before = npu::races::rename_uses(name ? npu::races::kept(*name) : nullptr);
  return before ? std::make_optional<std::string>(before) : std::nullopt;
}

void bind_races(py::module_& module) {
  module.def("set_races", &set_races, py::arg("mode"), py::arg("reporter"),
             "0: off; 1: `reporter` is called with the text of each pair of operators that race, once; 2: the second "
             "use raises.");
  module.def("races_on", &npu::races::on, "Whether uses of memory are watched.");
  module.def("races", &races, "What was found so far, one dictionary a kind and pair of operators.");
  module.def("order_streams", [] { npu::races::host_waits_device(-1); },
             "For races only: everything on all devices counts as done.");
  module.def("forget_races", &npu::races::forget, "Forgets what was found.");
  module.def("note_uses", &note_uses, py::arg("name"), py::arg("reads"), py::arg("writes"),
             "An operator that works on aliases uses these npu tensors on their devices' current streams.");
  module.def("rename_uses", &rename_uses, py::arg("name"),
             "Uses by this thread's operators go by this name from here on, and are none under an empty one; None ends "
             "it. Returns the name before.");
}

}  // namespace

PYBIND11_MODULE(npu_device, module) {
  if (!py::module_::import("sys").attr("modules").contains("torch")) {
    throw py::import_error("npu_device is a device of torch: import torch first, which loads the NPU by itself");
  }
  module.doc() = "An emulated NPU: a PyTorch device over host memory.";
  npu::install_cpu_allocator();
  npu::register_runtime();
  module.attr("aten_operators") = npu::register_operators();
  bind_devices(module);
  bind_tensors(module);
  bind_copies(module);
  bind_memory(module);
  bind_races(module);
  npu::bind_hccl(module);
}
