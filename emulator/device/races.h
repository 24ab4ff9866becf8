// Order on streams: which work is known to be done before which, and what uses memory without such an order.
#pragma once
#include "device.h"

#include <atomic>
#include <functional>
#include <vector>

namespace npu {

struct Shadow;  // what is known of one block's uses; memory.cpp keeps it beside the block

namespace races {

enum class Mode : int { off = 0, warn = 1, error = 2 };
enum class Access : uint8_t { read, write };

// How far the work of each stream (by its number in races.cpp) is known to be done.
using Clock = std::vector<uint64_t>;

constexpr const char* kHostMemory = "host memory";  // kind of a race over memory of the host, not the device

struct Side {  // one of the two uses
  std::string name;  // of the operator
  StreamKey stream;  // of device -1: the host did it
  Access access;
};
struct Race {
  std::string kind;
  Side first;
  Side second;
  std::vector<int64_t> shape;  // of the tensor in the second use
  std::string dtype;
  size_t bytes;  // of its storage
  int64_t count;
};

inline std::atomic<bool> switched_on{false};
inline bool on() {
  return switched_on.load(std::memory_order_relaxed);
}
// `reporter` is told of each pair of operators once, in mode `warn`.
void set_mode(Mode mode, std::function<void(const std::string&)> reporter);
std::vector<Race> found();
void forget();

// ---- order: called when on ------------------------------------------------------------------------------------
Clock record(StreamKey stream);
void wait(const Clock& clock, StreamKey stream);
// The host knows that this is done: so does all that it issues from now on, to whatever stream.
void host_waits(const Clock& clock);
void host_waits(StreamKey stream);
void host_waits_device(int device);  // -1: all
// Each of the two streams waits for the other.
void meet(StreamKey a, StreamKey b);

// ---- uses: called when on -------------------------------------------------------------------------------------
// One operator on one stream. In mode `error` a use without order raises.
class Operator {
 public:
  Operator(const char* name, StreamKey stream) : name_(name), stream_(stream) {}  // `name` lives as long as the process
  void reads(const at::Tensor& tensor) const { use(tensor, Access::read); }
  void writes(const at::Tensor& tensor) const { use(tensor, Access::write); }
  // A result: written by this operator unless it lies in memory that was used before.
  void makes(const at::Tensor& tensor) const;

 private:
  void use(const at::Tensor& tensor, Access access) const;
  const char* name_;
  StreamKey stream_;
};
// A race that is known otherwise (copies.cpp).
void report(Race race);
std::string dtype_name(const at::Tensor& tensor);
// A copy of the name that lives as long as the process.
const char* kept(const std::string& name);
// Uses of this thread go by this name instead of their operator's; under an empty one they are none. Null ends it.
// Returns the one before.
const char* rename_uses(const char* name);

// ---- memory ---------------------------------------------------------------------------------------------------
Shadow* allocated(size_t bytes, StreamKey stream);
void freed(Shadow* shadow, size_t bytes);
// The memory is not used again before what `stream` has been given until it is freed is done.
void record_stream(const c10::DataPtr& data, StreamKey stream);

}  // namespace races

// Where the block of this memory keeps its shadow; null for memory that is not a block of the device (memory.cpp).
Shadow** shadow_of(const c10::DataPtr& data);

}  // namespace npu
