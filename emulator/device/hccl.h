// The hccl process group's entry in the Python module.
#pragma once
#include <torch/csrc/utils/pybind.h>

namespace npu {
void bind_hccl(pybind11::module_& module);
}
