// Copies. One that does not block, from the device to the host, is not there until something synchronises: until then
// the host reads poison. Source values are those at the time of the call, as the order of a stream guarantees.
#include "device.h"
#include "races.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_local_scalar_dense_ops.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/resize_ops.h>
#include <torch/library.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

namespace npu {
namespace {

using at::Tensor;

constexpr c10::DispatchKeySet kCpuKey(c10::DispatchKey::CPU);

constexpr const char* kCopy = "aten::copy_";

struct Download {  // device to host
  StreamKey stream;
  uint64_t work;
  Tensor target;
  Tensor values;
};
struct Upload {  // host to device, from pinned memory that must not change before the device has read it
  StreamKey stream;
  uint64_t work;
  Tensor source;
  uint64_t checksum;
};
// Programs that never synchronise must not keep every source alive.
constexpr size_t kUploadsWatched = 4096;

std::atomic<bool> deferred_mode{true};
std::atomic<int64_t> overwritten{0};
std::atomic<size_t> waiting{0};  // entries of both queues: a synchronisation without any takes no lock
std::mutex mutex;
std::deque<Download>& downloads() {
  static auto* instance = new std::deque<Download>;
  return *instance;
}
std::deque<Upload>& uploads() {
  static auto* instance = new std::deque<Upload>;
  return *instance;
}

// Not through the dispatcher from the top: a synchronisation may run inside a dispatch mode, which must not see this.
void cpu_copy(Tensor& target, const Tensor& source) {
  at::_ops::copy_::redispatch(kCpuKey, target, source, false);
}

uint64_t checksum_of(const Tensor& tensor) {
  const auto* bytes = static_cast<const uint8_t*>(tensor.data_ptr());
  const size_t count = tensor.nbytes();
  uint64_t sum = 1469598103934665603ull;
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes + i, 8);
    sum = (sum ^ word) * 0x9E3779B97F4A7C15ull;
    sum ^= sum >> 29;
  }
  for (; i < count; ++i) {
    sum = (sum ^ bytes[i]) * 1099511628211ull;
  }
  return sum;
}

void poison(Tensor& target) {
  if (target.numel() == 0) {
    return;
  }
  if (target.is_non_overlapping_and_dense()) {
    fill_poison(target.data_ptr(), target.nbytes());
    return;
  }
  Tensor values = at::empty_like(target, at::MemoryFormat::Contiguous);
  fill_poison(values.data_ptr(), values.nbytes());
  cpu_copy(target, values);
}

// Takes the entries out that `done` names, in the order in which they were queued.
template <class Entry, class Done>
std::vector<Entry> take(std::deque<Entry>& queue, const Done& done) {
  std::vector<Entry> taken;
  std::deque<Entry> left;
  for (Entry& entry : queue) {
    if (done(entry)) {
      taken.push_back(std::move(entry));
    } else {
      left.push_back(std::move(entry));
    }
  }
  queue = std::move(left);
  waiting = downloads().size() + uploads().size();
  return taken;
}

// Works outside the lock: dropping the last reference to a tensor may need the interpreter's lock.
void land(std::vector<Download> landed) {
  for (Download& download : landed) {
    cpu_copy(download.target, download.values);
  }
}
void report_host_race(const Tensor& memory, races::Side first, races::Side second) {
  races::report({races::kHostMemory, std::move(first), std::move(second), memory.sizes().vec(),
                 races::dtype_name(memory), memory.storage().nbytes(), 1});
}
void check_unchanged(const std::vector<Upload>& done) {
  for (const Upload& upload : done) {
    if (checksum_of(upload.source) == upload.checksum) {
      continue;
    }
    ++overwritten;
    TORCH_WARN_ONCE(
        "pinned host memory (shape ", upload.source.sizes(), ", ", upload.source.dtype(), ") was overwritten before a ",
        "non-blocking copy from it to the NPU was known to be done: a device may read the new values. ",
        "Synchronise the stream, or wait for an event recorded after the copy, before writing to it.");
    if (races::on()) {
      report_host_race(upload.source, {kCopy, upload.stream, races::Access::read},
                       {"the host", {-1, 0}, races::Access::write});
    }
  }
}

template <class Done>
void land_if(const Done& done) {
  if (waiting == 0) {
    return;
  }
  std::vector<Download> landed;
  std::vector<Upload> finished;
  {
    std::lock_guard<std::mutex> lock(mutex);
    landed = take(downloads(), done);
    finished = take(uploads(), done);
  }
  land(std::move(landed));
  check_unchanged(finished);
}

bool is_done(const Reached& reached, StreamKey stream, uint64_t work) {
  auto found = reached.find(stream);
  return found != reached.end() && found->second >= work;
}

// What the device is to read must not be the target of a copy that is under way on a stream without order.
void check_landed(const Tensor& source, StreamKey reader) {
  std::optional<StreamKey> writer;
  {
    std::lock_guard<std::mutex> lock(mutex);
    for (const Download& download : downloads()) {
      if (download.target.storage().unsafeGetStorageImpl() == source.storage().unsafeGetStorageImpl()) {
        writer = download.stream;
      }
    }
  }
  if (writer) {
    report_host_race(source, {kCopy, *writer, races::Access::write}, {kCopy, reader, races::Access::read});
  }
}

// A device reads host memory that an earlier copy of the same stream fills: the order of the stream makes that right.
void land_copies_into(const Tensor& source, StreamKey reader) {
  if (waiting == 0) {
    return;
  }
  const Reached reached = reached_by(reader);
  const auto* storage = source.storage().unsafeGetStorageImpl();
  std::vector<Download> landed;
  {
    std::lock_guard<std::mutex> lock(mutex);
    landed = take(downloads(), [&](const Download& download) {
      return download.target.storage().unsafeGetStorageImpl() == storage &&
          is_done(reached, download.stream, download.work);
    });
  }
  land(std::move(landed));
  if (races::on()) {
    check_landed(source, reader);
  }
}

void defer_download(Tensor& target, const Tensor& source) {
  // Below the clone is a plain host tensor: it is the emulator's, not the program's, and counts nowhere.
  Tensor values = at::clone(host_alias(source), at::MemoryFormat::Contiguous);
  poison(target);
  const StreamKey stream = current_stream(source.device().index());
  const uint64_t work = note_work(stream);
  std::lock_guard<std::mutex> lock(mutex);
  downloads().push_back({stream, work, target, std::move(values)});
  waiting = downloads().size() + uploads().size();
}

void watch_upload(const Tensor& source, int device) {
  const StreamKey stream = current_stream(device);
  const uint64_t work = note_work(stream);
  const uint64_t checksum = checksum_of(source);
  Upload dropped;  // outlives the lock: dropping the last reference to a tensor may need the interpreter's lock
  std::lock_guard<std::mutex> lock(mutex);
  if (uploads().size() >= kUploadsWatched) {
    dropped = std::move(uploads().front());
    uploads().pop_front();
  }
  uploads().push_back({stream, work, source, checksum});
  waiting = downloads().size() + uploads().size();
}

void download(Tensor& target, const Tensor& source, bool non_blocking) {
  const StreamKey stream = current_stream(source.device().index());
  if (races::on()) {
    races::Operator(kCopy, stream).reads(source);
  }
  if (non_blocking && deferred_mode && target.device().is_cpu()) {
    defer_download(target, source);
    return;
  }
  synchronize_stream(stream);
  target.copy_(host_alias(source));
}

void upload(Tensor& target, const Tensor& source, bool non_blocking) {
  const int device = target.device().index();
  const StreamKey stream = current_stream(device);
  if (races::on()) {
    races::Operator(kCopy, stream).writes(target);
  }
  if (!non_blocking) {
    synchronize_stream(stream);
  }
  land_copies_into(source, stream);
  if (non_blocking && deferred_mode && source.is_contiguous() && source.numel() > 0 && is_pinned(source.data_ptr())) {
    watch_upload(source, device);
  }
  KernelScope device_memory(device);
  Tensor memory = host_alias(target);
  memory.copy_(source);
}

// Between two devices each one's current stream waits for the other's, before and after.
void note_copy(const Tensor& target, const Tensor& source) {
  const StreamKey stream = current_stream(target.device().index());
  const StreamKey other = current_stream(source.device().index());
  if (stream != other) {
    races::meet(stream, other);
  }
  const races::Operator copy(kCopy, stream);
  copy.reads(source);
  copy.writes(target);
  if (stream != other) {
    races::meet(stream, other);
  }
}

Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const bool to_npu = self.device().type() == kNpu;
  const bool from_npu = source.device().type() == kNpu;
  if (from_npu && !to_npu) {
    download(self, source, non_blocking);
  } else if (to_npu && !from_npu) {
    upload(self, source, non_blocking);
  } else {
    if (C10_UNLIKELY(races::on())) {
      note_copy(self, source);
    }
    KernelScope device_memory(self.device().index());
    Tensor memory = host_alias(self);
    memory.copy_(self.is_same(source) ? memory : host_alias(source));
  }
  return self;
}

Tensor copy_from(const Tensor& source, const Tensor& target, bool non_blocking) {
  Tensor written = target;
  return copy_(written, source, non_blocking);
}
Tensor copy_from_and_resize(const Tensor& source, const Tensor& target) {
  Tensor written = target;
  written.resize_(source.sizes());
  return copy_(written, source, false);
}

c10::Scalar local_scalar_dense(const Tensor& self) {
  const StreamKey stream = current_stream(self.device().index());
  if (races::on()) {
    races::Operator("aten::_local_scalar_dense", stream).reads(self);
  }
  synchronize_stream(stream);
  return at::_ops::_local_scalar_dense::redispatch(kCpuKey, host_alias(self));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("copy_", copy_);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("_local_scalar_dense", local_scalar_dense);
}

}  // namespace

void set_deferred(bool deferred) {
  land_all_copies();
  deferred_mode = deferred;
}
void forget_uploads() {
  std::deque<Upload> forgotten;  // outlives the lock: dropping a tensor may need the interpreter's lock
  std::lock_guard<std::mutex> lock(mutex);
  forgotten.swap(uploads());
  waiting = downloads().size();
}
size_t pending_copies() {
  std::lock_guard<std::mutex> lock(mutex);
  return downloads().size();
}
int64_t overwritten_uploads() {
  return overwritten;
}
void land_all_copies() {
  if (races::on()) {
    races::host_waits_device(-1);
  }
  land_if([](const auto&) { return true; });
}
void land_device_copies(int device) {
  if (races::on()) {
    races::host_waits_device(device);
  }
  land_if([device](const auto& entry) { return entry.stream.first == device; });
}
void synchronize_stream(StreamKey stream) {
  if (C10_UNLIKELY(races::on())) {
    races::host_waits(stream);
  }
  if (waiting > 0) {
    land_copies(reached_by(stream));
  }
}
void land_copies(const Reached& reached) {
  land_if([&reached](const auto& entry) { return is_done(reached, entry.stream, entry.work); });
}

}  // namespace npu
