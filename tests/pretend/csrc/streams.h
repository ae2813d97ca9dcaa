// Streams and events: they run nothing, they keep the order, see [Note: order] in memory.h.
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

namespace pretend {

using StreamKey = std::pair<c10::DeviceIndex, c10::StreamId>;
using Clock = std::map<StreamKey, uint64_t>;

c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex device);
c10::Stream current_stream(c10::DeviceIndex device);
StreamKey key_of(const c10::Stream& stream);

uint64_t tick(const StreamKey& stream);                                    // one more piece of work on a stream
bool ordered_after(const StreamKey& later, const StreamKey& earlier, uint64_t at);
void defer_until_waited(const StreamKey& stream, std::function<void()> work);
void host_waits(c10::DeviceIndex device);                                  // for the current stream
void nap(double seconds);                                                  // on the current stream, see [Note: time]
void join_streams(c10::DeviceIndex one, c10::DeviceIndex other);           // as a copy between devices does

// What a host does to a device, counted per thread's process: a test asks for the difference over a step.
struct Counts {
  uint64_t waits = 0, to_device = 0, to_host = 0, between = 0, launches = 0;
};
Counts& counts();
bool& uncounted();  // of this thread: what the device does within itself

}  // namespace pretend
