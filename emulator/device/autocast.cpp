// Autocast on the npu: torch's own lists of operators for devices, as boxed kernels (torch's templates for the same
// purpose would take longer to compile than everything else here).
#include "device.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <string>

namespace npu {
namespace {

using at::Tensor;
using c10::IValue;
using c10::OperatorHandle;
using torch::jit::Stack;

// Inside a casting kernel the operator is called again, without autocast.
struct WithoutAutocast {
  c10::impl::ExcludeDispatchKeyGuard guard{c10::DispatchKey::AutocastPrivateUse1};
};

bool takes_part(const Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kNpu && tensor.is_floating_point() &&
      tensor.scalar_type() != at::kDouble;
}

template <class Visit>
void for_each_tensor(const OperatorHandle& op, const Stack& stack, const Visit& visit) {
  for (const IValue& value : torch::jit::last(stack, op.schema().arguments().size())) {
    if (value.isTensor()) {
      visit(value.toTensor());
    } else if (value.isTensorList()) {
      for (const Tensor& tensor : value.toTensorVector()) {
        visit(tensor);
      }
    }
  }
}

void cast_arguments(at::ScalarType dtype, const OperatorHandle& op, Stack& stack) {
  const size_t count = op.schema().arguments().size();
  for (size_t i = stack.size() - count; i < stack.size(); ++i) {
    IValue& value = stack[i];
    if (value.isTensor()) {
      value = at::autocast::cached_cast(dtype, value.toTensor(), kNpu);
    } else if (value.isTensorList()) {
      c10::List<Tensor> cast;
      for (const Tensor& tensor : value.toTensorVector()) {
        cast.push_back(at::autocast::cached_cast(dtype, tensor, kNpu));
      }
      value = std::move(cast);
    }
  }
}

void in_lower_precision(const OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  WithoutAutocast scope;
  cast_arguments(at::autocast::get_autocast_dtype(kNpu), op, *stack);
  op.callBoxed(stack);
}

void in_float32(const OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  WithoutAutocast scope;
  cast_arguments(at::kFloat, op, *stack);
  op.callBoxed(stack);
}

bool first_takes_part(const OperatorHandle& op, const Stack& stack) {
  const IValue& first = torch::jit::peek(stack, 0, op.schema().arguments().size());
  return first.isTensor() && takes_part(first.toTensor());
}

// Reductions have an output type of their own; it is set unless the caller did.
void with_float32_output(const OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  WithoutAutocast scope;
  const auto& arguments = op.schema().arguments();
  if (first_takes_part(op, *stack)) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      IValue& value = torch::jit::peek(*stack, i, arguments.size());
      if (arguments[i].name() == "dtype" && value.isNone()) {
        value = static_cast<int64_t>(at::kFloat);
      }
    }
  }
  op.callBoxed(stack);
}

void in_widest_type(const OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  WithoutAutocast scope;
  at::ScalarType widest = at::autocast::get_autocast_dtype(kNpu);
  for_each_tensor(op, *stack, [&](const Tensor& tensor) {
    if (takes_part(tensor)) {
      widest = tensor.scalar_type() == at::kFloat ? at::kFloat : widest;
    }
  });
  cast_arguments(widest, op, *stack);
  op.callBoxed(stack);
}

// norm has its output type in another overload.
template <const char* kOverload>
void norm_in_float32(const OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  WithoutAutocast scope;
  if (!first_takes_part(op, *stack)) {
    op.callBoxed(stack);
    return;
  }
  stack->push_back(static_cast<int64_t>(at::kFloat));
  c10::Dispatcher::singleton().findSchemaOrThrow("aten::norm", kOverload).callBoxed(stack);
}
constexpr char kNormDtype[] = "ScalarOpt_dtype";
constexpr char kNormDimDtype[] = "ScalarOpt_dim_dtype";

// torch's lists hold an operator and perhaps an overload: "conv_transpose2d, input" names conv_transpose2d.input.
std::string operator_named(std::string row) {
  const auto comma = row.find(", ");
  return comma == std::string::npos ? row : row.replace(comma, 2, ".");
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, library) {
  auto cast = [&library](const char* row, auto kernel) {
    library.impl(operator_named(row).c_str(), std::move(kernel));
  };
#define LOWER(...) cast(#__VA_ARGS__, torch::CppFunction::makeFromBoxedFunction<&in_lower_precision>());
  AT_FORALL_LOWER_PRECISION_FP(LOWER)
#define FLOAT32(...) cast(#__VA_ARGS__, torch::CppFunction::makeFromBoxedFunction<&in_float32>());
  AT_FORALL_FP32(FLOAT32)
#define OUTPUT(...) cast(#__VA_ARGS__, torch::CppFunction::makeFromBoxedFunction<&with_float32_output>());
  AT_FORALL_FP32_SET_OPT_DTYPE(OUTPUT)
#define WIDEST(...) cast(#__VA_ARGS__, torch::CppFunction::makeFromBoxedFunction<&in_widest_type>());
  AT_FORALL_PROMOTE(WIDEST)
  cast("norm.Scalar", torch::CppFunction::makeFromBoxedFunction<&norm_in_float32<kNormDtype>>());
  cast("norm.ScalarOpt_dim", torch::CppFunction::makeFromBoxedFunction<&norm_in_float32<kNormDimDtype>>());
}

}  // namespace
}  // namespace npu
