// What runtime.cpp needs of the streams to serve torch's device guard.
#pragma once
#include "device.h"
#include "races.h"

namespace npu {

struct Event {
  Reached reached;          // what is done once the event is
  races::Clock clock;       // the same for races.cpp
  double milliseconds = 0;  // of the steady clock when it was recorded
};

int64_t exchange_stream(int device, int64_t id);  // returns the one before
int64_t new_stream_id();
void record_event(Event& event, StreamKey stream);
void wait_event(const Event& event, StreamKey stream);

}  // namespace npu
