// Races: uses of one piece of device memory on two streams that nothing orders, though here they give the right result.
//
// Each stream has a vector clock. Its own entry moves on whenever somebody learns how far the stream is (an event, a
// synchronisation), so that all uses between two such points share a number. Each block lists the uses that a later one
// can still race with: one is dropped when a later use of all its memory is ordered after it.
#include "races.h"

#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <tuple>
#include <unordered_set>

namespace npu {
namespace races {
namespace {

// ---- regions of a storage, in bytes ---------------------------------------------------------------------------
struct Region {
  int64_t begin, end;
  int64_t pitch, width;  // rows of `width` bytes every `pitch` bytes; 0: no such pattern
  bool dense;
};

// A tensor with gaps: if its dimensions form rows at one distance (a slice of columns), two may lie side by side.
void find_rows(const at::Tensor& tensor, Region& region) {
  c10::SmallVector<std::pair<int64_t, int64_t>, 5> dimensions;  // stride, size
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > 1 && tensor.stride(d) > 0) {
      dimensions.emplace_back(tensor.stride(d), tensor.size(d));
    }
  }
  std::sort(dimensions.begin(), dimensions.end());
  int64_t run = 1;
  int64_t pitch = 0;
  for (const auto& [stride, size] : dimensions) {
    if (pitch == 0 && stride == run) {
      run *= size;
    } else if (pitch == 0 && stride > run) {
      pitch = stride;
    } else if (pitch == 0 || stride % pitch != 0) {
      return;
    }
  }
  region.pitch = pitch * static_cast<int64_t>(tensor.itemsize());
  region.width = run * static_cast<int64_t>(tensor.itemsize());
}

Region region_of(const at::Tensor& tensor) {
  const auto item = static_cast<int64_t>(tensor.itemsize());
  const int64_t begin = tensor.storage_offset() * item;
  if (tensor.is_contiguous()) {
    return {begin, begin + tensor.numel() * item, 0, 0, true};
  }
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    last += (tensor.size(d) - 1) * tensor.stride(d);
  }
  Region region{begin, begin + (last + 1) * item, 0, 0, tensor.is_non_overlapping_and_dense()};
  if (!region.dense) {
    find_rows(tensor, region);
  }
  return region;
}

bool overlap(const Region& a, const Region& b) {
  if (a.end <= b.begin || b.end <= a.begin) {
    return false;
  }
  if (a.pitch == 0 || a.pitch != b.pitch) {
    return true;
  }
  const int64_t in_a = a.begin % a.pitch;
  const int64_t in_b = b.begin % b.pitch;
  const bool wraps = in_a + a.width > a.pitch || in_b + b.width > b.pitch;
  return wraps || (in_a < in_b + b.width && in_b < in_a + a.width);
}

bool covers(const Region& a, const Region& b) {
  if (a.dense) {
    return a.begin <= b.begin && b.end <= a.end;
  }
  return a.pitch > 0 && std::tie(a.begin, a.end, a.pitch, a.width) == std::tie(b.begin, b.end, b.pitch, b.width);
}

// ---- uses -----------------------------------------------------------------------------------------------------
struct Use {
  Region region;
  const char* name;
  uint64_t time;  // of its stream's clock
  int lane;
  Access access;
  bool of_freed;  // of the tensor that had this memory before
};
constexpr size_t kUsesKept = 64;     // of a block; beyond it the oldest is forgotten
constexpr size_t kFreedKept = 256;   // blocks a stream
constexpr size_t kLanes = 512;       // a device; beyond it streams share one and count as one stream
constexpr int kUnknown = -1;

struct Freed {
  size_t bytes;
  std::vector<Use> uses;  // that the stream of the allocation does not know to be done
};
struct Lane {  // a stream
  StreamKey key;
  Clock clock;
  uint64_t host_seen = 0;
  std::deque<Freed> freed;
};

std::mutex mutex;
std::deque<Lane>& lanes() {
  static auto* instance = new std::deque<Lane>;
  return *instance;
}
std::map<StreamKey, int>& numbers() {
  static auto* instance = new std::map<StreamKey, int>;
  return *instance;
}
std::vector<int>& lanes_of(int device) {
  static auto* instance = new std::array<std::vector<int>, kMaxDevices>;
  return (*instance)[device];
}
Clock& host_clock() {
  static auto* instance = new Clock;
  return *instance;
}
uint64_t host_version = 0;
size_t lanes_shared = 0;

int new_lane(StreamKey key) {
  std::vector<int>& own = lanes_of(key.first);
  if (own.size() >= kLanes) {
    return own[lanes_shared++ % kLanes];
  }
  lanes().push_back({key, {}, 0, {}});
  own.push_back(static_cast<int>(lanes().size()) - 1);
  return own.back();
}

int lane_of(StreamKey key) {
  thread_local StreamKey last_key{-1, 0};
  thread_local int last_lane = 0;
  if (key == last_key) {
    return last_lane;
  }
  auto [place, is_new] = numbers().try_emplace(key, 0);
  if (is_new) {
    place->second = new_lane(key);
  }
  last_key = key;
  return last_lane = place->second;
}

void join(Clock& into, const Clock& from) {
  if (into.size() < from.size()) {
    into.resize(from.size());
  }
  for (size_t i = 0; i < from.size(); ++i) {
    into[i] = std::max(into[i], from[i]);
  }
}

// The stream as it stands for work that the host gives it now.
Lane& present(int number) {
  Lane& lane = lanes()[number];
  if (lane.clock.size() <= static_cast<size_t>(number)) {
    lane.clock.resize(number + 1);
    lane.clock[number] = 1;
  }
  if (lane.host_seen != host_version) {
    join(lane.clock, host_clock());
    lane.host_seen = host_version;
  }
  return lane;
}

// What is known once the stream has done everything until now.
Clock reached(int number) {
  Lane& lane = present(number);
  Clock clock = lane.clock;
  ++lane.clock[number];
  return clock;
}

void host_learns(const Clock& clock) {
  join(host_clock(), clock);
  ++host_version;
}

bool is_before(const Use& use, const Clock& clock) {
  return static_cast<size_t>(use.lane) < clock.size() && use.time <= clock[use.lane];
}

// ---- reports --------------------------------------------------------------------------------------------------
std::atomic<int> mode{static_cast<int>(Mode::off)};
std::function<void(const std::string&)>& reporter() {
  static auto* instance = new std::function<void(const std::string&)>;
  return *instance;
}
using Key = std::tuple<std::string, std::string, std::string>;
std::map<Key, Race>& found_races() {
  static auto* instance = new std::map<Key, Race>;
  return *instance;
}
thread_local const char* name_of_uses = nullptr;

std::string text_of(const Side& side) {
  const auto& [device, stream] = side.stream;
  if (device < 0) {
    return side.name;
  }
  const std::string kind = stream < 0 ? " on communication stream " : " on stream ";
  return side.name + kind + std::to_string(std::abs(stream)) + " of npu:" + std::to_string(device);
}

constexpr const char* kReuse = "reuse";

std::string text_of(const Race& race) {
  std::ostringstream text;
  const char* does = race.second.access == Access::write ? " writes " : " reads ";
  const char* did = race.first.access == Access::write ? " writes" : " reads";
  const bool on_host = race.kind == kHostMemory;
  text << "race between streams (" << race.kind << "): " << text_of(race.second) << does << (on_host ? "host" : "npu")
       << " memory (shape " << c10::IntArrayRef(race.shape) << ", " << race.dtype << ", in a storage of " << race.bytes
       << " bytes) that " << text_of(race.first) << did;
  if (on_host) {
    text << ": nothing orders the two. Synchronise with the stream of the copy, or wait for an event recorded after it, "
         << "before the memory is used again.";
  } else if (race.kind == kReuse) {
    text << " for a tensor that was freed meanwhile: nothing orders the two. Call record_stream on that tensor with "
         << "the stream that uses it, or free it after the stream of its allocation has waited for that stream.";
  } else {
    text << ": nothing orders the two. Let the second stream wait for the first (wait_stream, or an event recorded "
         << "after the first operator), or synchronise.";
  }
  return text.str();
}

Side side_of(const Use& use) {
  return {use.name, lanes()[use.lane].key, use.access};
}

Race race_of(const at::Tensor& tensor, const Use& first, const Use& second) {
  const bool wrote = first.access == Access::write;
  const char* kind = first.of_freed                  ? kReuse
      : second.access == Access::read                ? "read after write"
      : wrote                                        ? "write after write"
                                                     : "write after read";
  return {kind, side_of(first), side_of(second), tensor.sizes().vec(), dtype_name(tensor), tensor.storage().nbytes(), 1};
}

size_t rounded(size_t bytes) {  // as torch_npu's allocator: 512 bytes
  return (bytes + 511) / 512 * 512;
}
bool is_small(size_t bytes) {  // blocks up to 1 MiB come from a pool of their own
  return bytes <= (size_t{1} << 20);
}

// The new block may be this freed one, or a part of it.
void inherit(Shadow& shadow, size_t bytes, Lane& lane);

}  // namespace

std::string dtype_name(const at::Tensor& tensor) {
  return std::string(c10::getDtypeNames(tensor.scalar_type()).first);
}

}  // namespace races

struct Shadow {
  int lane;  // of the stream that allocated the block
  c10::SmallVector<races::Use, 2> uses;
  c10::SmallVector<int, 1> recorded;  // lanes of record_stream
};

namespace races {
namespace {

void inherit(Shadow& shadow, size_t bytes, Lane& lane) {
  auto& freed = lane.freed;
  for (Freed& block : freed) {
    std::erase_if(block.uses, [&](const Use& use) { return is_before(use, lane.clock); });
  }
  std::erase_if(freed, [](const Freed& block) { return block.uses.empty(); });
  auto best = freed.end();
  for (auto block = freed.begin(); block != freed.end(); ++block) {
    if (block->bytes >= bytes && is_small(block->bytes) == is_small(bytes) &&
        (best == freed.end() || block->bytes < best->bytes)) {
      best = block;
    }
  }
  if (best == freed.end()) {
    return;
  }
  shadow.uses.append(best->uses.begin(), best->uses.end());
  best->bytes -= bytes;  // what is left can be given away as well
  if (best->bytes == 0) {
    freed.erase(best);
  }
}

// Lists the use; returns what it races with.
std::vector<Race> note(Shadow& shadow, const at::Tensor& tensor, Use use, const Clock& clock) {
  std::vector<Race> races;
  auto kept_uses = shadow.uses.begin();
  for (Use& earlier : shadow.uses) {
    const bool conflicts = use.access == Access::write || earlier.access == Access::write;
    const bool ordered = is_before(earlier, clock);
    bool drop = false;
    if (ordered) {
      drop = covers(use.region, earlier.region) && (use.access == Access::write || earlier.access == Access::read);
    } else if (conflicts && overlap(use.region, earlier.region)) {
      races.push_back(race_of(tensor, earlier, use));
      drop = earlier.of_freed || use.access == Access::write;
    }
    if (!drop) {
      if (kept_uses != &earlier) {
        *kept_uses = earlier;
      }
      ++kept_uses;
    }
  }
  shadow.uses.erase(kept_uses, shadow.uses.end());
  if (shadow.uses.size() >= kUsesKept) {
    shadow.uses.erase(shadow.uses.begin());
  }
  shadow.uses.push_back(use);
  return races;
}

}  // namespace

void set_mode(Mode new_mode, std::function<void(const std::string&)> new_reporter) {
  std::lock_guard<std::mutex> lock(mutex);
  reporter() = std::move(new_reporter);
  mode = static_cast<int>(new_mode);
  switched_on = new_mode != Mode::off;
}
std::vector<Race> found() {
  std::lock_guard<std::mutex> lock(mutex);
  std::vector<Race> races;
  for (const auto& [key, race] : found_races()) {
    races.push_back(race);
  }
  return races;
}
void forget() {
  std::lock_guard<std::mutex> lock(mutex);
  found_races().clear();
}

void report(Race race) {
  const std::string text = text_of(race);
  std::function<void(const std::string&)> tell;
  {
    std::lock_guard<std::mutex> lock(mutex);
    auto [place, is_new] = found_races().try_emplace({race.kind, race.first.name, race.second.name}, race);
    if (!is_new) {
      ++place->second.count;
    } else {
      tell = reporter();
    }
  }
  TORCH_CHECK(mode != static_cast<int>(Mode::error), text);
  if (tell) {  // without the lock: it takes the interpreter's
    tell(text);
  }
}

// ---- order ----------------------------------------------------------------------------------------------------
Clock record(StreamKey stream) {
  std::lock_guard<std::mutex> lock(mutex);
  return reached(lane_of(stream));
}
void wait(const Clock& clock, StreamKey stream) {
  std::lock_guard<std::mutex> lock(mutex);
  join(present(lane_of(stream)).clock, clock);
}
void host_waits(const Clock& clock) {
  std::lock_guard<std::mutex> lock(mutex);
  host_learns(clock);
}
void host_waits(StreamKey stream) {
  std::lock_guard<std::mutex> lock(mutex);
  host_learns(reached(lane_of(stream)));
}
void host_waits_device(int device) {
  std::lock_guard<std::mutex> lock(mutex);
  for (size_t number = 0; number < lanes().size(); ++number) {
    if (device < 0 || lanes()[number].key.first == device) {
      host_learns(reached(static_cast<int>(number)));
    }
  }
}
void meet(StreamKey a, StreamKey b) {
  wait(record(a), b);
  wait(record(b), a);
}

// ---- uses -----------------------------------------------------------------------------------------------------
void Operator::use(const at::Tensor& tensor, Access access) const {
  if (!tensor.defined() || tensor.device().type() != kNpu || !tensor.has_storage() || tensor.numel() == 0) {
    return;
  }
  Shadow** place = shadow_of(tensor.storage().data_ptr());
  if (place == nullptr) {
    return;
  }
  const Region region = region_of(tensor);
  const char* name = name_of_uses ? name_of_uses : name_;
  if (*name == '\0') {
    return;
  }
  std::vector<Race> races;
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (*place == nullptr) {
      *place = new Shadow{kUnknown, {}, {}};
    }
    const int number = lane_of(stream_);
    const Clock& clock = present(number).clock;
    races = note(**place, tensor, {region, name, clock[number], number, access, false}, clock);
  }
  for (Race& race : races) {
    report(std::move(race));
  }
}

void Operator::makes(const at::Tensor& tensor) const {
  if (!tensor.defined() || tensor.device().type() != kNpu || !tensor.has_storage()) {
    return;
  }
  Shadow** place = shadow_of(tensor.storage().data_ptr());
  if (place == nullptr) {
    return;
  }
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (*place != nullptr && std::any_of((*place)->uses.begin(), (*place)->uses.end(),
                                         [](const Use& use) { return !use.of_freed; })) {
      return;
    }
  }
  use(tensor, Access::write);
}

const char* kept(const std::string& name) {
  static auto* names = new std::unordered_set<std::string>;
  std::lock_guard<std::mutex> lock(mutex);
  return names->insert(name).first->c_str();
}
const char* rename_uses(const char* name) {
  return std::exchange(name_of_uses, name);
}

// ---- memory ---------------------------------------------------------------------------------------------------
Shadow* allocated(size_t bytes, StreamKey stream) {
  std::lock_guard<std::mutex> lock(mutex);
  const int number = lane_of(stream);
  auto* shadow = new Shadow{number, {}, {}};
  if (!lanes()[number].freed.empty()) {
    inherit(*shadow, rounded(bytes), present(number));
  }
  return shadow;
}

void freed(Shadow* gone, size_t bytes) {
  const std::unique_ptr<Shadow> shadow(gone);
  const auto is_own = [&](const Use& use) { return use.lane == shadow->lane; };
  if (shadow->lane == kUnknown || std::all_of(shadow->uses.begin(), shadow->uses.end(), is_own)) {
    return;
  }
  std::lock_guard<std::mutex> lock(mutex);
  Lane& lane = present(shadow->lane);
  Freed block{rounded(bytes), {}};
  for (Use use : shadow->uses) {
    const auto& recorded = shadow->recorded;
    if (is_before(use, lane.clock) || std::find(recorded.begin(), recorded.end(), use.lane) != recorded.end()) {
      continue;
    }
    use.of_freed = true;
    use.region = {0, static_cast<int64_t>(block.bytes), 0, 0, true};
    block.uses.push_back(use);
  }
  if (block.uses.empty()) {
    return;
  }
  if (lane.freed.size() >= kFreedKept) {
    lane.freed.pop_front();
  }
  lane.freed.push_back(std::move(block));
}

void record_stream(const c10::DataPtr& data, StreamKey stream) {
  Shadow** place = shadow_of(data);
  if (place == nullptr || *place == nullptr) {
    return;
  }
  std::lock_guard<std::mutex> lock(mutex);
  auto& recorded = (*place)->recorded;
  const int number = lane_of(stream);
  if (std::find(recorded.begin(), recorded.end(), number) == recorded.end()) {
    recorded.push_back(number);
  }
}

}  // namespace races
}  // namespace npu
