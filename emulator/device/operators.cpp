// Operators that devices have and CPUs lack, or that the CPU kernel cannot serve.
#include "device.h"
#include "races.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/Stream.h>
#include <torch/library.h>

#include <array>
#include <initializer_list>
#include <optional>
#include <tuple>
#include <vector>

namespace npu {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

bool given(const OptionalTensor& tensor) {
  return tensor.has_value() && tensor->defined();
}
Tensor part(const Tensor& gates, int64_t index, int64_t parts) {
  return gates.chunk(parts, 1)[index];
}
Tensor beside(const std::vector<Tensor>& gates) {
  return at::cat(gates, 1);
}
Tensor sigmoid_slope(const Tensor& sigmoid) {
  return sigmoid * (1 - sigmoid);
}
Tensor tanh_slope(const Tensor& tanh) {
  return 1 - tanh * tanh;
}

void check_device(const Tensor& tensor, const Tensor& input, const char* argument) {
  TORCH_CHECK(tensor.device() == input.device(),
              "Expected all tensors to be on the same device, but found at least two devices, ", input.device(), " and ",
              tensor.device(), "! (when checking argument for argument ", argument,
              " in method wrapper_PrivateUse1__convolution_overrideable)");
}

void note_reads(const char* name, std::initializer_list<Tensor> tensors) {
  if (races::on()) {
    for (const Tensor& tensor : tensors) {
      races::Operator(name, current_stream(tensors.begin()->device().index())).reads(tensor);
    }
  }
}
Tensor made(const char* name, const Tensor& result) {
  if (races::on() && result.defined()) {
    races::Operator(name, current_stream(result.device().index())).makes(result);
  }
  return result;
}

// ---- convolution: torch asks a PrivateUse1 device through these two names ---------------------------------------
Tensor convolution(const Tensor& input, const Tensor& weight, const OptionalTensor& bias, c10::IntArrayRef stride,
                   c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
                   c10::IntArrayRef output_padding, int64_t groups) {
  check_device(weight, input, "weight");
  OptionalTensor host_bias;
  if (given(bias)) {
    check_device(*bias, input, "bias");
    host_bias = host_alias(*bias);
  }
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  note_reads("aten::convolution", {input, weight, bias.value_or(Tensor())});
  KernelScope device_memory(input.device().index());
  const Tensor output = at::convolution(host_alias(input), host_alias(weight), host_bias, stride, padding, dilation,
                                        transposed, output_padding, groups);
  return made("aten::convolution", wrap(output, input.device().index()));
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& grad_output, const Tensor& input, const Tensor& weight, c10::IntArrayRef stride,
    c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed, c10::IntArrayRef output_padding,
    int64_t groups, std::array<bool, 3> wanted) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const int device = input.device().index();
  constexpr const char* name = "aten::convolution_backward";
  note_reads(name, {grad_output, input, weight});
  KernelScope device_memory(device);
  const std::vector<int64_t> bias_size{transposed ? weight.size(1) * groups : weight.size(0)};
  auto [grad_input, grad_weight, grad_bias] =
      at::convolution_backward(host_alias(grad_output), host_alias(input), host_alias(weight), bias_size, stride,
                               padding, dilation, transposed, output_padding, groups, wanted);
  return {made(name, wrap(grad_input, device)), made(name, wrap(grad_weight, device)),
          made(name, wrap(grad_bias, device))};
}

// ---- dropout: the CPU kernel draws from the CPU's default generator ----------------------------------------------
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
  if (input.numel() == 0 || !train.value_or(true) || p == 0) {
    return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  }
  Tensor noise = at::empty_like(input);
  noise.bernoulli_(1 - p);  // no generator: the npu's default one
  Tensor mask = noise.to(at::kBool);
  if (p < 1) {
    noise.div_(1 - p);
  }
  return {input * noise, mask};
}

// ---- recurrent cells: gates (batch, parts * hidden), in the order of torch.nn.LSTM (i, f, g, o) and GRU (r, z, n) ----
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                                             const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  Tensor gates = input_gates + hidden_gates;
  if (given(input_bias)) {
    gates = gates + *input_bias + *hidden_bias;
  }
  const Tensor i = part(gates, 0, 4).sigmoid();
  const Tensor f = part(gates, 1, 4).sigmoid();
  const Tensor g = part(gates, 2, 4).tanh();
  const Tensor o = part(gates, 3, 4).sigmoid();
  const Tensor cy = f * cx + i * g;
  const Tensor hy = o * cy.tanh();
  return {hy, cy, beside({i, f, g, o})};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const OptionalTensor& grad_hy, const OptionalTensor& grad_cy,
                                                      const Tensor& cx, const Tensor& cy, const Tensor& workspace,
                                                      bool has_bias) {
  if (!given(grad_hy) && !given(grad_cy)) {
    return {};
  }
  const Tensor i = part(workspace, 0, 4);
  const Tensor f = part(workspace, 1, 4);
  const Tensor g = part(workspace, 2, 4);
  const Tensor o = part(workspace, 3, 4);
  const Tensor tanh_cy = cy.tanh();
  const Tensor from_hidden = given(grad_hy) ? *grad_hy : at::zeros_like(cy);
  Tensor grad_cell = from_hidden * o * tanh_slope(tanh_cy);
  if (given(grad_cy)) {
    grad_cell = grad_cell + *grad_cy;
  }
  const Tensor grad_gates = beside({
      grad_cell * g * sigmoid_slope(i),
      grad_cell * cx * sigmoid_slope(f),
      grad_cell * i * tanh_slope(g),
      from_hidden * tanh_cy * sigmoid_slope(o),
  });
  return {grad_gates, grad_cell * f, has_bias ? grad_gates.sum(0) : Tensor()};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                    const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const Tensor input = given(input_bias) ? input_gates + *input_bias : input_gates;
  const Tensor hidden = given(hidden_bias) ? hidden_gates + *hidden_bias : hidden_gates;
  const Tensor r = (part(input, 0, 3) + part(hidden, 0, 3)).sigmoid();
  const Tensor z = (part(input, 1, 3) + part(hidden, 1, 3)).sigmoid();
  const Tensor hidden_n = part(hidden, 2, 3);
  const Tensor n = (part(input, 2, 3) + r * hidden_n).tanh();
  return {n + z * (hx - n), beside({r, z, n, hx, hidden_n})};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy, const Tensor& workspace,
                                                                     bool has_bias) {
  const Tensor r = part(workspace, 0, 5);
  const Tensor z = part(workspace, 1, 5);
  const Tensor n = part(workspace, 2, 5);
  const Tensor hx = part(workspace, 3, 5);
  const Tensor hidden_n = part(workspace, 4, 5);
  const Tensor grad_n = grad_hy * (1 - z) * tanh_slope(n);
  const Tensor grad_r = grad_n * hidden_n * sigmoid_slope(r);
  const Tensor grad_z = grad_hy * (hx - n) * sigmoid_slope(z);
  const Tensor grad_input = beside({grad_r, grad_z, grad_n});
  const Tensor grad_hidden = beside({grad_r, grad_z, grad_n * r});
  return {grad_input, grad_hidden, grad_hy * z, has_bias ? grad_input.sum(0) : Tensor(),
          has_bias ? grad_hidden.sum(0) : Tensor()};
}

// ---- streams ---------------------------------------------------------------------------------------------------
// Operators are done when they return, so nothing is freed that a stream still uses; races.cpp wants to know.
void record_stream(Tensor& self, at::Stream stream) {
  TORCH_CHECK(stream.device_type() == kNpu, "record_stream: expected a stream of the npu, found one of ",
              stream.device());
  if (races::on() && self.has_storage()) {
    races::record_stream(self.storage().data_ptr(), {stream.device_index(), stream.id()});
  }
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("convolution_overrideable", convolution);
  library.impl("convolution_backward_overrideable", convolution_backward);
  library.impl("native_dropout", native_dropout);
  library.impl("_thnn_fused_lstm_cell", lstm_cell);
  library.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  library.impl("_thnn_fused_gru_cell", gru_cell);
  library.impl("_thnn_fused_gru_cell_backward", gru_cell_backward);
  library.impl("record_stream", record_stream);
}

}  // namespace
}  // namespace npu
