// The device guard: current device and stream of each thread, events, and the order that they establish.
#include "streams.h"
#include "memory.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <vector>

namespace pretend {
namespace {

const StreamKey kHost{-1, -1};  // the host takes part in the order too: what it waited for is before what it starts

std::mutex& lock() {
  static auto* one = new std::mutex;
  return *one;
}
std::map<StreamKey, Clock>& clocks() {
  static auto* all = new std::map<StreamKey, Clock>;
  return *all;
}
struct Deferred {
  StreamKey stream;
  uint64_t at;
  std::function<void()> work;
};
std::vector<Deferred>& deferred() {
  static auto* all = new std::vector<Deferred>;
  return *all;
}

void join(Clock& mine, const Clock& other) {
  for (auto& [stream, at] : other) mine[stream] = std::max(mine[stream], at);
}

// [Note: time] Work runs at once, and a nap takes no time: it makes its stream busy until later. The host comes to that
// time when it waits. So the host can run ahead of a device, as far as a test likes, and nobody sleeps.
using Time = std::chrono::steady_clock::time_point;
thread_local std::chrono::nanoseconds waited{0};  // by this thread of the host, for naps

Time now() { return std::chrono::steady_clock::now() + waited; }

std::map<StreamKey, Time>& busy_until() {
  static auto* all = new std::map<StreamKey, Time>;
  return *all;
}
Time& busy(const StreamKey& stream) {
  auto& until = busy_until()[stream];
  until = std::max(until, now());
  return until;
}

// Whether the host has waited for all this: a device is as late as it may be.
bool passed(const Clock& until) {
  auto& host = clocks()[kHost];
  return std::all_of(until.begin(), until.end(), [&](auto& one) { return host[one.first] >= one.second; });
}

void host_waited(const Clock& until, Time when) {
  std::vector<std::function<void()>> due;
  {
    std::lock_guard<std::mutex> held(lock());
    waited += std::max(Time::duration::zero(), when - now());
    auto& host = clocks()[kHost];
    join(host, until);
    auto& all = deferred();
    auto keep = std::stable_partition(all.begin(), all.end(), [&](auto& one) { return host[one.stream] < one.at; });
    for (auto one = keep; one != all.end(); ++one) due.push_back(std::move(one->work));
    all.erase(keep, all.end());
  }
  for (auto& work : due) work();
  if (!uncounted()) counts().waits++;
}

struct Event {
  Clock until;
  Time when;
};

Event end_of(const StreamKey& stream) {
  std::lock_guard<std::mutex> held(lock());
  return {clocks()[stream], busy(stream)};
}

void host_waits_for(const StreamKey& stream) {
  Event end = end_of(stream);
  host_waited(end.until, end.when);
}

thread_local c10::DeviceIndex device_here = 0;
thread_local std::map<c10::DeviceIndex, c10::StreamId> streams_here;
c10::StreamId streams_made = 0;

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

struct Guard final : public c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::PrivateUse1; }
  Device getDevice() const override { return {type(), current_device()}; }
  Device exchangeDevice(Device device) const override {
    Device before = getDevice();
    set_current_device(device.index());
    return before;
  }
  void setDevice(Device device) const override { set_current_device(device.index()); }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.index() >= 0) device_here = device.index();
  }
  Stream getStream(Device device) const override { return current_stream(index(device)); }
  Stream getDefaultStream(Device device) const override { return Stream(Stream::DEFAULT, {type(), index(device)}); }
  Stream getStreamFromGlobalPool(Device device, bool = false) const override { return getNewStream(device); }
  Stream getNewStream(Device device, int = 0) const override {
    std::lock_guard<std::mutex> held(lock());
    return Stream(Stream::UNSAFE, {type(), index(device)}, ++streams_made);
  }
  Stream exchangeStream(Stream stream) const override {
    Stream before = current_stream(stream.device_index());
    streams_here[stream.device_index()] = stream.id();
    return before;
  }
  DeviceIndex deviceCount() const noexcept override { return static_cast<DeviceIndex>(device_count()); }

  void record(void** event, const Stream& stream, const DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event;
    tick(key_of(stream));
    *static_cast<Event*>(*event) = end_of(key_of(stream));
  }
  void block(void* event, const Stream& stream) const override {
    if (event == nullptr) return;
    std::lock_guard<std::mutex> held(lock());
    auto& one = *static_cast<Event*>(event);
    join(clocks()[key_of(stream)], one.until);
    busy(key_of(stream)) = std::max(busy(key_of(stream)), one.when);
  }
  bool queryEvent(void* event) const override {
    std::lock_guard<std::mutex> held(lock());
    return event == nullptr || passed(static_cast<Event*>(event)->until);
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) host_waited(static_cast<Event*>(event)->until, static_cast<Event*>(event)->when);
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  double elapsedTime(void* first, void* second, const DeviceIndex) const override {
    auto between = static_cast<Event*>(second)->when - static_cast<Event*>(first)->when;
    return std::chrono::duration<double, std::milli>(between).count();
  }
  bool queryStream(const Stream& stream) const override {
    std::lock_guard<std::mutex> held(lock());
    return passed(clocks()[key_of(stream)]);
  }
  void synchronizeStream(const Stream& stream) const override { host_waits_for(key_of(stream)); }
  void synchronizeDevice(const DeviceIndex device) const override {
    Clock every;
    Time last{};
    {
      std::lock_guard<std::mutex> held(lock());
      for (auto& [stream, clock] : clocks())
        if (stream.first == device) {
          join(every, clock);
          last = std::max(last, busy(stream));
        }
    }
    host_waited(every, last);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const Stream& stream) const override {
    record_stream(data.get(), stream);
  }
#if TORCH_VERSION_MINOR >= 11 || TORCH_VERSION_MAJOR > 2
  void* getStreamNativeHandle(const Stream stream) const override { return reinterpret_cast<void*>(stream.id()); }
#endif

 private:
  static DeviceIndex index(Device device) { return device.index() < 0 ? current_device() : device.index(); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace

c10::DeviceIndex current_device() { return device_here; }

void set_current_device(c10::DeviceIndex device) {
  if (device < 0) return;
  TORCH_CHECK(device < device_count(), "pretend error: invalid device ordinal ", int(device));
  device_here = device;
}

c10::Stream current_stream(c10::DeviceIndex device) {
  auto found = streams_here.find(device);
  return c10::Stream(c10::Stream::UNSAFE, {c10::DeviceType::PrivateUse1, device},
                     found == streams_here.end() ? 0 : found->second);
}

StreamKey key_of(const c10::Stream& stream) { return {stream.device_index(), stream.id()}; }

uint64_t tick(const StreamKey& stream) {
  std::lock_guard<std::mutex> held(lock());
  auto& clock = clocks()[stream];
  join(clock, clocks()[kHost]);
  busy(stream);
  return ++clock[stream];
}

bool ordered_after(const StreamKey& later, const StreamKey& earlier, uint64_t at) {
  if (later == earlier) return true;
  std::lock_guard<std::mutex> held(lock());
  return clocks()[later][earlier] >= at;
}

void defer_until_waited(const StreamKey& stream, std::function<void()> work) {
  uint64_t at = tick(stream);
  std::lock_guard<std::mutex> held(lock());
  deferred().push_back({stream, at, std::move(work)});
}

void host_waits(c10::DeviceIndex device) { host_waits_for(key_of(current_stream(device))); }

void nap(double seconds) {
  StreamKey mine = key_of(current_stream(current_device()));
  tick(mine);
  std::lock_guard<std::mutex> held(lock());
  busy(mine) += std::chrono::duration_cast<Time::duration>(std::chrono::duration<double>(seconds));
}

void join_streams(c10::DeviceIndex one, c10::DeviceIndex other) {
  std::lock_guard<std::mutex> held(lock());
  StreamKey here = key_of(current_stream(one)), there = key_of(current_stream(other));
  auto &first = clocks()[here], &second = clocks()[there];
  join(first, second);
  join(second, first);
  busy(here) = busy(there) = std::max(busy(here), busy(there));
}

Counts& counts() {
  static Counts all;
  return all;
}
bool& uncounted() {
  thread_local bool here = false;
  return here;
}

}  // namespace pretend
