// Streams and events. Operators are done when they return; what streams order is when copies to the host land.
#include "streams.h"

#include <atomic>
#include <chrono>
#include <mutex>

namespace npu {
namespace {

thread_local int64_t current_stream_of[kMaxDevices] = {};
std::atomic<int64_t> next_stream{1};

std::mutex order_mutex;
std::map<StreamKey, Reached>& order() {
  static auto* instance = new std::map<StreamKey, Reached>;
  return *instance;
}
uint64_t last_work = 0;

void merge(Reached& into, const Reached& from) {
  for (const auto& [stream, work] : from) {
    uint64_t& known = into[stream];
    known = std::max(known, work);
  }
}

double milliseconds_now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(now).count();
}

}  // namespace

StreamKey current_stream(int device) {
  return {device, current_stream_of[device]};
}
StreamKey current_stream() {
  return current_stream(current_device());
}
int64_t exchange_stream(int device, int64_t id) {
  return std::exchange(current_stream_of[device], id);
}
int64_t new_stream_id() {
  return next_stream++;
}

uint64_t note_work(StreamKey stream) {
  std::lock_guard<std::mutex> lock(order_mutex);
  order()[stream][stream] = ++last_work;
  return last_work;
}
Reached reached_by(StreamKey stream) {
  std::lock_guard<std::mutex> lock(order_mutex);
  auto found = order().find(stream);
  return found == order().end() ? Reached{} : found->second;
}

void record_event(Event& event, StreamKey stream) {
  event.reached = reached_by(stream);
  event.milliseconds = milliseconds_now();
  event.clock = races::on() ? races::record(stream) : races::Clock{};
}
void wait_event(const Event& event, StreamKey stream) {
  if (races::on()) {
    races::wait(event.clock, stream);
  }
  std::lock_guard<std::mutex> lock(order_mutex);
  merge(order()[stream], event.reached);
}

}  // namespace npu
