// Operators: the CPU kernel of every aten operator, called on aliases of the npu tensors among its arguments.
#include "arguments.h"
#include "device.h"
#include "races.h"
#include "device_checks.h"  // written by build.py from torch's own operator table

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/Generator.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_set>

namespace npu {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using c10::OperatorHandle;
using torch::jit::Stack;

std::atomic<int64_t> operator_count{0};

// ---- tables ---------------------------------------------------------------------------------------------------
// Operators that take CPU tensors beside npu tensors, as on CUDA: index tensors are moved, lengths are read by the host.
std::unordered_set<std::string>& host_argument_operators() {
  static auto* table = new std::unordered_set<std::string>{
      "aten::index.Tensor",
      "aten::index.Tensor_out",
      "aten::index_put",
      "aten::index_put_",
      "aten::_index_put_impl_",
      "aten::_unsafe_index.Tensor",
      "aten::_pack_padded_sequence",
      "aten::ctc_loss.Tensor",
      "aten::_ctc_loss.Tensor",
  };
  return *table;
}

// Operators whose result (or its shape) the host must know: a device runs its queue empty first.
const std::unordered_set<std::string>& synchronising_operators() {
  static const auto* table = new std::unordered_set<std::string>{
      "aten::equal",          "aten::nonzero",        "aten::nonzero.out",
      "aten::masked_select",  "aten::masked_select.out", "aten::_unique",
      "aten::_unique2",       "aten::unique_dim",     "aten::unique_consecutive",
      "aten::unique_dim_consecutive", "aten::repeat_interleave.Tensor", "aten::bincount",
  };
  return *table;
}

std::unordered_set<std::string>& quiet_namespaces() {
  static auto* table = new std::unordered_set<std::string>{"aten", "prims", "prim", "quantized", "inductor", "_quantized"};
  return *table;
}

std::string full_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

// torch's rule, which its device backends share: see check_devices().
bool takes_host_scalars(std::string_view name) {
  return std::binary_search(std::begin(kTakesHostScalars), std::end(kTakesHostScalars), name);
}

// ---- one call -------------------------------------------------------------------------------------------------
bool wants_generator(const c10::Argument& argument) {
  const auto* optional = argument.type()->castRaw<c10::OptionalType>();
  return optional != nullptr && optional->getElementType()->kind() == c10::GeneratorType::Kind;
}

void argument_to_cpu(IValue& value, const c10::Argument& argument, int position, Arguments& arguments) {
  if (value.isTensor()) {
    value = arguments.to_cpu(value.toTensor(), position);
  } else if (value.isTensorList()) {
    const auto tensors = value.toTensorList();
    c10::List<at::Tensor> aliases;
    aliases.reserve(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      aliases.push_back(arguments.to_cpu(tensors.get(i), position));
    }
    value = std::move(aliases);
  } else if (value.isOptionalTensorList()) {
    const auto tensors = value.toOptionalTensorList();
    c10::List<std::optional<at::Tensor>> aliases;
    aliases.reserve(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      const std::optional<at::Tensor> tensor = tensors.get(i);
      aliases.push_back(tensor ? std::make_optional(arguments.to_cpu(*tensor, position)) : std::nullopt);
    }
    value = std::move(aliases);
  } else if (value.isDevice()) {
    const c10::Device device = value.toDevice();
    if (device.type() == kNpu) {
      arguments.device = checked_index(device.has_index() ? device.index() : -1);
      value = c10::Device(c10::kCPU);
    } else {
      arguments.wants_cpu = device.is_cpu();
    }
  } else if (value.isGenerator()) {
    value = arguments.to_cpu(value.toGenerator());
  } else if (value.isNone() && wants_generator(argument)) {
    value = cpu_generator_of(default_generator(arguments.device_or_current()));
  }
}

void result_to_npu(IValue& value, Arguments& arguments) {
  if (value.isTensor()) {
    value = arguments.to_npu(value.toTensor());
  } else if (value.isTensorList()) {
    const auto tensors = value.toTensorList();
    c10::List<at::Tensor> results;
    results.reserve(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      results.push_back(arguments.to_npu(tensors.get(i)));
    }
    value = std::move(results);
  }
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// Which CPU tensors may stand beside npu tensors is torch's rule for every device backend: operators that torch marks
// "device_check: NoCheck" (element-wise ones) take tensors without dimensions for scalars, unless they write to them;
// the others take none. device_checks.h holds the marks.
void check_devices(const OperatorHandle& op, const Arguments& arguments) {
  TORCH_CHECK(!arguments.of_generator, "Expected a 'cpu' device type for generator but found 'npu'");
  const auto& schema = op.schema();
  const std::string name = full_name(schema.operator_name());
  int wrong = arguments.host_argument;
  for (const int scalar : arguments.host_scalars) {
    if (wrong < 0 && (!takes_host_scalars(name) || is_written(schema.arguments()[scalar]))) {
      wrong = scalar;
    }
  }
  if (wrong < 0) {
    return;
  }
  const bool may_be_on_host = wrong > 0 && host_argument_operators().count(name) > 0;
  if (may_be_on_host || arguments.device < 0) {  // without a device: a factory-like call, no npu tensors
    return;
  }
  TORCH_CHECK(
      false,
      "Expected all tensors to be on the same device, but found at least two devices, npu:", arguments.device,
      " and cpu! (when checking argument for argument ", schema.arguments()[wrong].name(),
      " in method wrapper_PrivateUse1_", schema.overload_name(), "_",
      std::string_view(schema.name()).substr(schema.name().find("::") + 2), ")");
}

// ---- uses of memory, for races.cpp ----------------------------------------------------------------------------
template <class Visit>
void for_each_tensor(const IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const auto& tensor : value.toTensorList()) {
      visit(static_cast<at::Tensor>(tensor));
    }
  } else if (value.isOptionalTensorList()) {
    for (const auto& tensor : value.toOptionalTensorList()) {
      visit(static_cast<std::optional<at::Tensor>>(tensor).value_or(at::Tensor()));
    }
  }
}

// A view shares memory and touches none.
bool is_view(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && !argument.alias_info()->isWrite();
}

races::Operator uses_of(const OperatorHandle& op, int device) {
  const std::string& name = op.schema().name();
  const bool stays = name.compare(0, 6, "aten::") == 0;
  return {stays ? name.c_str() : races::kept(name), current_stream(device)};
}

void note_arguments(const OperatorHandle& op, const Stack& stack, size_t first) {
  int device = current_device();
  const auto& arguments = op.schema().arguments();
  for (size_t i = arguments.size(); i-- > 0;) {
    for_each_tensor(stack[first + i], [&](const at::Tensor& tensor) {
      device = tensor.defined() && tensor.device().type() == kNpu ? tensor.device().index() : device;
    });
  }
  const races::Operator uses = uses_of(op, device);
  for (const bool writing : {false, true}) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (is_view(arguments[i]) || is_written(arguments[i]) != writing) {
        continue;
      }
      for_each_tensor(stack[first + i], [&](const at::Tensor& tensor) {
        if (tensor.defined() && tensor.device() == npu_device(device)) {  // the check of devices comes later
          writing ? uses.writes(tensor) : uses.reads(tensor);
        }
      });
    }
  }
}

void note_results(const OperatorHandle& op, const Stack& stack, size_t first, int device) {
  const races::Operator uses = uses_of(op, device);
  const auto& returns = op.schema().returns();
  for (size_t i = 0; i < returns.size(); ++i) {
    if (!is_view(returns[i])) {
      for_each_tensor(stack[first + i], [&](const at::Tensor& tensor) { uses.makes(tensor); });
    }
  }
}

void run_operator(const OperatorHandle& op, DispatchKeySet, Stack* stack) {
  ++operator_count;
  const auto& schema = op.schema();
  const size_t first_argument = stack->size() - schema.arguments().size();
  if (C10_UNLIKELY(races::on())) {
    note_arguments(op, *stack, first_argument);
  }
  Arguments arguments;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    argument_to_cpu((*stack)[first_argument + i], schema.arguments()[i], static_cast<int>(i), arguments);
  }
  if (C10_UNLIKELY(arguments.host_argument >= 0 || !arguments.host_scalars.empty())) {
    check_devices(op, arguments);
  }
  {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    std::optional<KernelScope> device_memory;
    if (!arguments.wants_cpu) {
      device_memory.emplace(arguments.device_or_current());
    }
    op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);
  }
  arguments.write_back();
  const size_t first_result = stack->size() - schema.returns().size();
  for (size_t i = first_result; i < stack->size(); ++i) {
    result_to_npu((*stack)[i], arguments);
  }
  if (C10_UNLIKELY(races::on())) {
    note_results(op, *stack, first_result, arguments.device_or_current());
  }
}

void run_synchronising(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  synchronize_stream(current_stream());
  run_operator(op, keys, stack);
  if (races::on()) {
    races::host_waits(current_stream());
  }
}

// Indexing with a mask counts its true elements on the host; indexing with integers does not.
void run_indexing(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  for (const IValue& value : torch::jit::last(*stack, op.schema().arguments().size())) {
    if (!value.isOptionalTensorList()) {
      continue;
    }
    for (const IValue& index : value.toListRef()) {
      if (index.isTensor() && index.toTensor().defined() &&
          (index.toTensor().scalar_type() == at::kBool || index.toTensor().scalar_type() == at::kByte)) {
        synchronize_stream(current_stream());
      }
    }
  }
  run_operator(op, keys, stack);
}

// Operators of other libraries that have a CPU kernel and none for the npu. torch_npu runs them on the CPU, too
// (VariableFallbackKernel.cpp, npu_cpu_fallback), and warns once for each.
void run_foreign_operator(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  static std::mutex mutex;
  static auto* warned = new std::unordered_set<std::string>;
  const std::string name = full_name(op.schema().operator_name());
  const std::string space = name.substr(0, name.find("::"));
  bool warn = false;
  {
    std::lock_guard<std::mutex> lock(mutex);
    warn = quiet_namespaces().count(space) == 0 && warned->insert(name).second;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      op.hasKernelForDispatchKey(DispatchKey::CPU) ||
          op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd),
      "Could not run '", name, "' on npu tensors: it has no kernel for the NPU (PrivateUse1) and none for the CPU.");
  if (warn) {
    TORCH_WARN("'", name, "' has no kernel for the NPU: it runs on the CPU, which is slow on a device.");
  }
  run_operator(op, keys, stack);
}

void refuse_sparse(const OperatorHandle& op, DispatchKeySet, Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "'", full_name(op.schema().operator_name()), "': the emulated NPU has no sparse tensors; ",
      "make them on the CPU (.cpu()) or dense (.to_dense()).");
}

bool is_served_by_cpu_kernel(const OperatorHandle& op, const c10::OperatorName& name) {
  constexpr std::string_view kMultiTensor = "aten::_foreach_";
  if (!op.hasSchema() || op.hasKernelForDispatchKey(DispatchKey::PrivateUse1)) {
    return false;
  }
  // The multi-tensor operators are single operators on a device though torch composes them on the CPU.
  return op.hasKernelForDispatchKey(DispatchKey::CPU) ||
      std::string_view(name.name).substr(0, kMultiTensor.size()) == kMultiTensor;
}

// Operators without a gradient of their own (collectives) pass the autograd key of the npu by torch's fallback, which
// torch registers for PrivateUse1 itself since some version after 2.7.
void register_autograd_fallback() {
  constexpr auto kAutograd = DispatchKey::AutogradPrivateUse1;
  if (c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kAutograd)) {
    return;
  }
  static auto* library = new torch::Library(torch::Library::IMPL, "_", kAutograd, __FILE__, __LINE__);
  library->fallback(torch::autograd::basicAutogradNotImplementedFallback());
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_foreign_operator>());
}
TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_sparse>());
}
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_sparse>());
}

}  // namespace

int64_t operators_run() {
  return operator_count;
}
void allow_host_argument(const std::string& operator_name) {
  host_argument_operators().insert(operator_name);
}
void allow_namespace(const std::string& name) {
  quiet_namespaces().insert(name);
}

// At load time rather than in a static table: the operators differ between versions of torch.
int register_operators() {
  register_autograd_fallback();
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", DispatchKey::PrivateUse1, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  int registered = 0;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.getNamespace() != std::optional<std::string_view>("aten")) {
      continue;
    }
    const auto op = dispatcher.findOp(name);
    if (!op || !is_served_by_cpu_kernel(*op, name)) {
      continue;
    }
    const std::string full = full_name(name);
    if (synchronising_operators().count(full)) {
      library->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_synchronising>());
    } else if (full.find("index") != std::string::npos && host_argument_operators().count(full)) {
      library->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_indexing>());
    } else {
      library->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_operator>());
    }
    ++registered;
  }
  return registered;
}

}  // namespace npu
