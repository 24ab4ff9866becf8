// The process group "hccl": gloo on aliases of npu tensors.
#include "hccl.h"

#include "device.h"
#include "races.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <utility>
#include <vector>

namespace npu {
namespace {

using at::Tensor;
using c10d::Work;
using WorkPtr = c10::intrusive_ptr<Work>;
using Tensors = std::vector<Tensor>;
using TensorLists = std::vector<Tensors>;

Tensor on_host(const Tensor& tensor) {
  TORCH_CHECK(tensor.device().type() == kNpu, "No backend type associated with device type ", tensor.device().type(),
              ": the hccl process group takes npu tensors");
  return npu::host_alias(tensor.detach());
}
Tensors on_host(const Tensors& tensors) {
  Tensors aliases;
  for (const Tensor& tensor : tensors) {
    aliases.push_back(on_host(tensor));
  }
  return aliases;
}
TensorLists on_host(const TensorLists& lists) {
  TensorLists aliases;
  for (const Tensors& tensors : lists) {
    aliases.push_back(on_host(tensors));
  }
  return aliases;
}

Tensors flat(const TensorLists& lists) {
  Tensors tensors;
  for (const Tensors& list : lists) {
    tensors.insert(tensors.end(), list.begin(), list.end());
  }
  return tensors;
}

// Work on a stream of the group's own, for races.cpp: what the current stream is given later is ordered after the
// collective once somebody has waited for it.
class OrderedWork final : public Work {
 public:
  OrderedWork(WorkPtr work, races::Clock done, int device)
      : work_(std::move(work)), done_(std::move(done)), device_(device) {}
  bool isCompleted() override {
    const bool completed = work_->isCompleted();
    if (completed) {
      races::host_waits(done_);
    }
    return completed;
  }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  int sourceRank() const override { return work_->sourceRank(); }
  std::vector<Tensor> result() override { return work_->result(); }
  void synchronize() override {
    work_->synchronize();
    order();
  }
  bool wait(std::chrono::milliseconds timeout) override {
    const bool done = work_->wait(timeout);
    order();
    return done;
  }
  void abort() override { work_->abort(); }
  uint64_t getSequencenumber() const override { return work_->getSequencenumber(); }
  // Who asks for it gets the results in callbacks of his own: they count as ordered from here.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    order();
    return work_->getFuture();
  }

 private:
  void order() { races::wait(done_, current_stream(device_)); }

  WorkPtr work_;
  races::Clock done_;
  int device_;
};

// What endCoalescing() returns: several pieces of work as one.
class CoalescedWork final : public Work {
 public:
  explicit CoalescedWork(std::vector<WorkPtr> works) : works_(std::move(works)) {}
  bool isCompleted() override {
    for (const WorkPtr& work : works_) {
      if (!work->isCompleted()) {
        return false;
      }
    }
    return true;
  }
  bool isSuccess() const override {
    for (const WorkPtr& work : works_) {
      if (!work->isSuccess()) {
        return false;
      }
    }
    return true;
  }
  bool wait(std::chrono::milliseconds timeout) override {
    for (const WorkPtr& work : works_) {
      work->wait(timeout);
    }
    return true;
  }

 private:
  std::vector<WorkPtr> works_;
};

// Work after which something is left to do on the host, once: divide a sum, hand out the parts of a buffer.
class FollowedWork final : public Work {
 public:
  FollowedWork(WorkPtr work, std::function<void()> after) : work_(std::move(work)), after_(std::move(after)) {}
  bool isCompleted() override { return work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  bool wait(std::chrono::milliseconds timeout) override {
    const bool done = work_->wait(timeout);
    if (auto after = std::exchange(after_, nullptr)) {
      after();
    }
    return done;
  }

 private:
  WorkPtr work_;
  std::function<void()> after_;
};

Tensor flattened(const Tensors& tensors) {
  Tensors flat;
  for (const Tensor& tensor : tensors) {
    flat.push_back(tensor.reshape(-1));
  }
  return at::cat(flat);
}
std::vector<int64_t> sizes_of(const Tensors& tensors) {
  std::vector<int64_t> sizes;
  for (const Tensor& tensor : tensors) {
    sizes.push_back(tensor.numel());
  }
  return sizes;
}
void hand_out(const Tensor& buffer, Tensors& tensors) {
  const std::vector<int64_t> sizes = sizes_of(tensors);
  const Tensors parts = buffer.split_with_sizes(sizes);
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].copy_(parts[i].view(tensors[i].sizes()));
  }
}

// The reduction that gloo is asked for.
template <class Options>
Options for_gloo(Options options, const Tensors& tensors) {
  if (options.reduceOp == c10d::ReduceOp::AVG) {
    options.reduceOp = c10d::ReduceOp::SUM;
  } else if (options.reduceOp == c10d::ReduceOp::SUM && !tensors.empty() && tensors[0].scalar_type() == at::kBool) {
    options.reduceOp = c10d::ReduceOp::MAX;  // as torch_npu: a sum of truth values is "or"
  }
  return options;
}

bool of_one_size(const Tensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const Tensor& one) { return one.sizes() == tensors[0].sizes(); });
}

class ProcessGroupHccl final : public c10d::Backend {
 public:
  std::string name(int rank) const {
    return "emulated_hccl_" + std::to_string(number_) + "_" + std::to_string(rank);
  }

  ProcessGroupHccl(c10::intrusive_ptr<c10d::Backend> gloo, int rank, int size)
      : Backend(rank, size), gloo_(std::move(gloo)) {}

  const std::string getBackendName() const override { return "hccl"; }
  bool supportsCoalescing() const override { return true; }
  void setSequenceNumberForGroup() override { gloo_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return gloo_->getSequenceNumberForGroup(); }
#if NPU_TORCH_AT_LEAST(2, 9)
  void setTimeout(std::chrono::milliseconds timeout) override { gloo_->setTimeout(timeout); }
#endif
  void abort() override { gloo_->abort(); }
  void shutdown() override { gloo_->shutdown(); }

  void startCoalescing() override {
    coalescing_ = true;
    coalesced_.clear();
  }
  WorkPtr endCoalescing() override {
    coalescing_ = false;
    return c10::make_intrusive<CoalescedWork>(std::exchange(coalesced_, {}));
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    const bool is_root = getRank() == options.rootRank;
    const Issued issued = issue("hccl::broadcast", is_root ? Tensors{} : tensors, is_root ? tensors : Tensors{});
    Tensors host = on_host(tensors);
    return keep(gloo_->broadcast(host, options), issued);
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    const Issued issued = issue("hccl::allreduce", tensors, {});
    Tensors host = on_host(tensors);
    return keep(averaged(gloo_->allreduce(host, for_gloo(options, host)), host, options.reduceOp), issued);
  }
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    const Issued issued = issue("hccl::allreduce_coalesced", tensors, {});
    Tensors host = on_host(tensors);
    WorkPtr work = gloo_->allreduce_coalesced(host, for_gloo(options, host));
    return keep(averaged(std::move(work), host, options.reduceOp), issued);
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    const bool is_root = getRank() == options.rootRank;
    const Issued issued = issue("hccl::reduce", is_root ? tensors : Tensors{}, is_root ? Tensors{} : tensors);
    Tensors host = on_host(tensors);
    WorkPtr work = gloo_->reduce(host, for_gloo(options, host));
    return keep(averaged(std::move(work), is_root ? host : Tensors{}, options.reduceOp), issued);
  }

  WorkPtr allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    const Issued issued = issue("hccl::allgather", flat(outputs), inputs);
    TensorLists host_outputs = on_host(outputs);
    Tensors host_inputs = on_host(inputs);
    // hccl compares the numbers of elements, gloo the shapes.
    for (size_t i = 0; i < std::min(host_inputs.size(), host_outputs.size()); ++i) {
      if (!host_outputs[i].empty() && host_inputs[i].numel() == host_outputs[i][0].numel()) {
        host_inputs[i] = host_inputs[i].reshape(host_outputs[i][0].sizes());
      }
    }
    if (!host_outputs.empty() && !of_one_size(host_outputs.back())) {
      return keep(allgather_uneven(host_outputs.back(), host_inputs.back(), options), issued);
    }
    return keep(gloo_->allgather(host_outputs, host_inputs, options), issued);
  }
  WorkPtr _allgather_base(Tensor& output, Tensor& input, const c10d::AllgatherOptions& options) override {
    const Issued issued = issue("hccl::allgather_base", {output}, {input});
    Tensor host_output = on_host(output);
    Tensor host_input = on_host(input);
    return keep(gloo_->_allgather_base(host_output, host_input, options), issued);
  }
  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    const Issued issued = issue("hccl::allgather_coalesced", flat(outputs), inputs);
    TensorLists host_outputs = on_host(outputs);
    Tensors host_inputs = on_host(inputs);
    return keep(gloo_->allgather_coalesced(host_outputs, host_inputs, options), issued);
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override {
    const Issued issued = issue("hccl::allgather_into_tensor_coalesced", outputs, inputs);
    Tensors host_outputs = on_host(outputs);
    Tensors host_inputs = on_host(inputs);
    return keep(gloo_->allgather_into_tensor_coalesced(host_outputs, host_inputs, options), issued);
  }
  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    const Issued issued = issue("hccl::gather", flat(outputs), inputs);
    TensorLists host_outputs = on_host(outputs);
    Tensors host_inputs = on_host(inputs);
    return keep(gloo_->gather(host_outputs, host_inputs, options), issued);
  }
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override {
    const Issued issued = issue("hccl::scatter", outputs, flat(inputs));
    Tensors host_outputs = on_host(outputs);
    TensorLists host_inputs = on_host(inputs);
    return keep(gloo_->scatter(host_outputs, host_inputs, options), issued);
  }

  // gloo has this form, and the list form of all-to-all, in some versions of torch only.
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) override {
    const Issued issued = issue("hccl::reduce_scatter", outputs, flat(inputs));
    Tensor output = on_host(outputs.at(0));
    const Tensors parts = on_host(inputs.at(0));
    Tensors buffer{flattened(parts)};
    c10d::AllreduceOptions reduction;
    reduction.reduceOp = options.reduceOp;
    reduction.timeout = options.timeout;
    WorkPtr work = averaged(gloo_->allreduce(buffer, for_gloo(reduction, buffer)), buffer, options.reduceOp);
    auto take_own = [=, this]() mutable {
      output.copy_(buffer[0].split_with_sizes(sizes_of(parts))[getRank()].view(output.sizes()));
    };
    return keep(c10::make_intrusive<FollowedWork>(std::move(work), std::move(take_own)), issued);
  }
  WorkPtr _reduce_scatter_base(Tensor& output, Tensor& input, const c10d::ReduceScatterOptions& options) override {
    const Issued issued = issue("hccl::reduce_scatter_base", {output}, {input});
    Tensor host_output = on_host(output);
    Tensor host_input = on_host(input);
    WorkPtr work = gloo_->_reduce_scatter_base(host_output, host_input, for_gloo(options, {host_input}));
    return keep(averaged(std::move(work), {host_output}, options.reduceOp), issued);
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override {
    const Issued issued = issue("hccl::reduce_scatter_tensor_coalesced", outputs, inputs);
    Tensors host_outputs = on_host(outputs);
    Tensors host_inputs = on_host(inputs);
    WorkPtr work = gloo_->reduce_scatter_tensor_coalesced(host_outputs, host_inputs, for_gloo(options, host_inputs));
    return keep(averaged(std::move(work), host_outputs, options.reduceOp), issued);
  }

  WorkPtr alltoall_base(Tensor& output, Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override {
    const Issued issued = issue("hccl::alltoall_base", {output}, {input});
    Tensor host_output = on_host(output);
    Tensor host_input = on_host(input);
    return keep(gloo_->alltoall_base(host_output, host_input, output_splits, input_splits, options), issued);
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    const Issued issued = issue("hccl::alltoall", outputs, inputs);
    Tensors host_outputs = on_host(outputs);
    const Tensors host_inputs = on_host(inputs);
    Tensor sent = flattened(host_inputs);
    Tensor received = at::empty_like(flattened(host_outputs));
    std::vector<int64_t> output_sizes = sizes_of(host_outputs);
    std::vector<int64_t> input_sizes = sizes_of(host_inputs);
    WorkPtr work = gloo_->alltoall_base(received, sent, output_sizes, input_sizes, options);
    auto take_parts = [=]() mutable { hand_out(received, host_outputs); };
    return keep(c10::make_intrusive<FollowedWork>(std::move(work), std::move(take_parts)), issued);
  }

  WorkPtr send(Tensors& tensors, int to, int tag) override {
    const Issued issued = issue("hccl::send", {}, tensors);
    Tensors host = on_host(tensors);
    return keep(gloo_->send(host, to, tag), issued);
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    const Issued issued = issue("hccl::recv", tensors, {});
    Tensors host = on_host(tensors);
    return keep(gloo_->recv(host, from, tag), issued);
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    const Issued issued = issue("hccl::recvAnysource", tensors, {});
    Tensors host = on_host(tensors);
    return keep(gloo_->recvAnysource(host, tag), issued);
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    synchronize_stream(current_stream());
    c10d::BarrierOptions host_options = options;
    host_options.device.reset();
    host_options.device_ids.clear();
    return keep(gloo_->barrier(host_options));
  }

 private:
  struct Issued {  // empty unless races.cpp is on
    races::Clock done;
    int device = 0;
  };
  // A collective's uses of memory, on the group's own stream, which waits for the current one first. Memory stays until
  // it is done.
  Issued issue(const char* name, const Tensors& written, const Tensors& read) {
    if (!races::on() || (written.empty() && read.empty())) {
      return {};
    }
    const int device = (written.empty() ? read : written)[0].device().index();
    if (device < 0) {  // of a host tensor, which is refused
      return {};
    }
    const StreamKey own{device, -1 - number_};
    races::wait(races::record(current_stream(device)), own);
    const races::Operator uses(name, own);
    for (const Tensor& tensor : read) {
      uses.reads(tensor);
      races::record_stream(tensor.storage().data_ptr(), own);
    }
    for (const Tensor& tensor : written) {
      uses.writes(tensor);
      races::record_stream(tensor.storage().data_ptr(), own);
    }
    return {races::record(own), device};
  }

  // Results of different sizes, also empty ones, which gloo refuses: torch_npu 2.7.1 gathers them by HcclAllGatherV, or by
  // a broadcast from each rank (v7.2.0-pytorch2.7.1, ProcessGroupHCCL.cpp:4384).
  WorkPtr allgather_uneven(Tensors& outputs, const Tensor& input, const c10d::AllgatherOptions& options) {
    TORCH_CHECK(outputs.size() == static_cast<size_t>(getSize()) && outputs[getRank()].numel() == input.numel(),
                "all_gather: expected ", getSize(), " tensors, that of this rank with ", input.numel(),
                " elements as its input");
    outputs[getRank()].copy_(input.view(outputs[getRank()].sizes()));
    c10d::BroadcastOptions broadcast;
    broadcast.timeout = options.timeout;
    std::vector<WorkPtr> works;
    for (int rank = 0; rank < getSize(); ++rank) {
      if (outputs[rank].numel() > 0) {
        Tensors one{outputs[rank]};
        broadcast.rootRank = rank;
        works.push_back(gloo_->broadcast(one, broadcast));
      }
    }
    return c10::make_intrusive<CoalescedWork>(std::move(works));
  }

  WorkPtr keep(WorkPtr work, const Issued& issued) {
    if (!issued.done.empty()) {
      work = c10::make_intrusive<OrderedWork>(std::move(work), issued.done, issued.device);
    }
    return keep(std::move(work));
  }
  WorkPtr keep(WorkPtr work) {
    if (coalescing_) {
      coalesced_.push_back(work);
    }
    return work;
  }
  // gloo has no average. torch_npu adds up and divides, too (ProcessGroupHCCL.cpp).
  WorkPtr averaged(WorkPtr work, Tensors results, const c10d::ReduceOp& operation) {
    if (operation != c10d::ReduceOp::AVG) {
      return work;
    }
    auto divide = [results = std::move(results), ranks = getSize()]() mutable {
      for (Tensor& result : results) {
        result.div_(ranks);
      }
    };
    return c10::make_intrusive<FollowedWork>(std::move(work), std::move(divide));
  }

  static int next() {
    static std::atomic<int> made{0};
    return made++;
  }

  c10::intrusive_ptr<c10d::Backend> gloo_;
  int number_ = next();
  bool coalescing_ = false;
  std::vector<WorkPtr> coalesced_;
};

}  // namespace

void bind_hccl(pybind11::module_& module) {
  namespace py = pybind11;
  py::module_::import("torch._C._distributed_c10d");  // registers the base class
  py::class_<ProcessGroupHccl, c10d::Backend, c10::intrusive_ptr<ProcessGroupHccl>>(
      module, "ProcessGroupHCCL", "Collectives on npu tensors, done by a gloo process group on the same memory.")
      .def(py::init([](c10::intrusive_ptr<c10d::Backend> gloo, int rank, int size) {
             return c10::make_intrusive<ProcessGroupHccl>(std::move(gloo), rank, size);
           }),
           py::arg("gloo"), py::arg("rank"), py::arg("size"))
      .def("get_hccl_comm_name", &ProcessGroupHccl::name, py::arg("rank") = 0,
           "A name for the communicator, no other group's of this process; operators find the group by it.");
}

}  // namespace npu
