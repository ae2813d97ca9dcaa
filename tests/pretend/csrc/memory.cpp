// An allocator with statistics, over memory that the CPU cannot touch, see [Note: two views].
#include "memory.h"
#include "streams.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace pretend {
namespace {

constexpr size_t kRoom = size_t(1) << 35;  // addresses of one device
constexpr size_t kUnit = 512;
constexpr size_t kSegment = size_t(1) << 21;  // reserved at a time, and cut into blocks
constexpr int kMost = 16;

size_t from_environment(const char* name, size_t otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::strtoull(text, nullptr, 10) : otherwise;
}

struct Use {
  StreamKey stream;
  uint64_t at;
};

struct Block {
  size_t bytes = 0, asked = 0;
  StreamKey home;  // the stream that it was allocated on
  std::set<StreamKey> recorded;  // these may still use it when it is given back
  bool written = false;
  Use last_write{};
  std::vector<Use> reads;
};

struct Segment {
  size_t bytes = 0, cut = 0;  // cut: of its bytes, those that are blocks, in use or not
};

struct Pool {
  size_t used = 0;  // of its addresses
  std::map<uintptr_t, Segment> segments;
  uintptr_t next = 0, end = 0;  // what is left of the segment that is being cut
  std::map<uintptr_t, Block> live;
  std::map<std::pair<StreamKey, size_t>, std::vector<std::pair<uintptr_t, Block>>> unused;
  c10::CachingDeviceAllocator::DeviceStats stats;
  bool lost = false;
};

char* reserve(int protection) {
  void* room = mmap(nullptr, kRoom * kMost, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) throw std::runtime_error("pretend: no address space");
  return static_cast<char*>(room);
}

char* guarded() {
  static char* room = reserve(PROT_NONE);
  return room;
}
char* open() {
  static char* room = reserve(PROT_READ | PROT_WRITE);
  return room;
}

std::recursive_mutex& lock() {
  static auto* one = new std::recursive_mutex;
  return *one;
}
Pool& pool(c10::DeviceIndex device) {
  static auto* pools = new std::vector<Pool>(kMost);
  return pools->at(device);
}

bool used = false, forked_after_use = false;

void add(c10::CachingAllocator::StatArray& stat, int64_t amount) {
  auto& one = stat[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  if (amount >= 0) one.increase(amount);
  else one.decrease(-amount);
}
int64_t now(c10::CachingAllocator::StatArray& stat) {
  return stat[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)].current;
}

void say_who_touched(int, siginfo_t* info, void*) {
  if (is_device_pointer(info->si_addr)) {
    const char text[] = "pretend: the CPU touched device memory\n";
    (void)!write(2, text, sizeof(text) - 1);
  }
  signal(SIGSEGV, SIG_DFL);
  raise(SIGSEGV);
}

Block* block_of(const void* pointer) {
  if (!is_device_pointer(pointer)) return nullptr;
  auto address = reinterpret_cast<uintptr_t>(pointer);
  auto device = (address - reinterpret_cast<uintptr_t>(guarded())) / kRoom;
  auto& live = pool(static_cast<c10::DeviceIndex>(device)).live;
  auto next = live.upper_bound(address);
  if (next == live.begin()) return nullptr;
  return &std::prev(next)->second;
}

std::map<uintptr_t, Segment>::iterator segment_of(Pool& here, uintptr_t address) {
  return std::prev(here.segments.upper_bound(address));
}

c10::DeviceIndex device_of(const void* pointer) {
  return static_cast<c10::DeviceIndex>(
      (reinterpret_cast<uintptr_t>(pointer) - reinterpret_cast<uintptr_t>(guarded())) / kRoom);
}

[[noreturn]] void race(const StreamKey& later, const char* does, const Use& earlier, const char* did) {
  TORCH_CHECK(false, "pretend: stream ", later.second, " ", does, " memory that stream ", earlier.stream.second, " ", did,
              " and nothing orders the two: wait for an event, or record_stream");
}

void give_back(void* pointer);

class DeviceAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t asked) override {
    note_use();
    std::lock_guard<std::recursive_mutex> held(lock());
    auto device = current_device();
    check_not_lost(device);
    auto& here = pool(device);
    c10::Device where(c10::DeviceType::PrivateUse1, device);
    if (asked == 0) return {nullptr, nullptr, &give_back, where};
    size_t bytes = (asked + kUnit - 1) / kUnit * kUnit;
    size_t limit = total();
    if (now(here.stats.allocated_bytes) + bytes > limit) {
      here.stats.num_ooms++;
      TORCH_CHECK_WITH(
          OutOfMemoryError, false, "pretend out of memory. Tried to allocate ", asked, " bytes. GPU ", int(device),
          " has a total capacity of ", limit, " bytes of which ", limit - now(here.stats.allocated_bytes), " bytes are free.");
    }
    StreamKey home = key_of(current_stream(device));
    Block block;
    uintptr_t address = 0;
    auto& fitting = here.unused[{home, bytes}];
    if (!fitting.empty()) {
      std::tie(address, block) = fitting.back();
      fitting.pop_back();
    } else {
      address = cut(here, device, bytes);
    }
    block.bytes = bytes;
    block.asked = asked;
    block.home = home;
    here.live[address] = block;
    add(here.stats.allocation, 1);
    add(here.stats.allocated_bytes, bytes);
    add(here.stats.active, 1);
    add(here.stats.active_bytes, bytes);
    add(here.stats.requested_bytes, asked);
    auto* pointer = reinterpret_cast<void*>(address);
    std::memset(host_view(pointer), 0xA5, bytes);  // what was not written is nonsense
    return {pointer, pointer, &give_back, where};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t count) const override {
    std::memcpy(host_view(to), host_view(from), count);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t = {0, 0}) override {
    for (int device = 0; device < device_count(); device++) clear_unused(static_cast<c10::DeviceIndex>(device));
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override { record_stream(data.get(), stream); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    std::lock_guard<std::recursive_mutex> held(lock());
    return pool(device).stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    each(device, [](auto& one) { one.reset_accumulated(); });
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    each(device, [](auto& one) { one.reset_peak(); });
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    std::lock_guard<std::recursive_mutex> held(lock());
    size_t all = total();
    return {all - now(pool(device).stats.allocated_bytes), all};
  }

 private:
  // Returns the address of a new block: of the segment that is being cut, or of a new one, which is reserved.
  static uintptr_t cut(Pool& here, c10::DeviceIndex device, size_t bytes) {
    if (here.next + bytes > here.end) {
      Segment fresh;
      fresh.bytes = (bytes + kSegment - 1) / kSegment * kSegment;
      TORCH_CHECK(here.used + fresh.bytes <= kRoom, "pretend: out of addresses");
      here.next = reinterpret_cast<uintptr_t>(guarded()) + kRoom * device + here.used;
      here.end = here.next + fresh.bytes;
      here.used += fresh.bytes;
      here.segments[here.next] = fresh;
      add(here.stats.reserved_bytes, fresh.bytes);
      add(here.stats.segment, 1);
    }
    uintptr_t address = here.next;
    here.next += bytes;
    segment_of(here, address)->second.cut += bytes;
    return address;
  }
  static size_t total() { return from_environment("PRETEND_MEMORY", size_t(1) << 30); }
  template <typename Do>
  void each(c10::DeviceIndex device, Do change) {
    std::lock_guard<std::recursive_mutex> held(lock());
    auto& stats = pool(device).stats;
    for (auto* stat : {&stats.allocation, &stats.segment, &stats.active, &stats.allocated_bytes, &stats.reserved_bytes,
                       &stats.active_bytes, &stats.requested_bytes})
      for (auto& one : *stat) change(one);
  }
};

void give_back(void* pointer) {
  if (pointer == nullptr) return;
  std::lock_guard<std::recursive_mutex> held(lock());
  auto& here = pool(device_of(pointer));
  auto found = here.live.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == here.live.end()) return;
  Block block = found->second;
  here.live.erase(found);
  add(here.stats.allocation, -1);
  add(here.stats.allocated_bytes, -int64_t(block.bytes));
  add(here.stats.active, -1);
  add(here.stats.active_bytes, -int64_t(block.bytes));
  add(here.stats.requested_bytes, -int64_t(block.asked));
  // A real allocator waits for the recorded streams before it gives the block away again.
  auto waited_for = [&](const Use& use) { return block.recorded.count(use.stream) > 0; };
  block.reads.erase(std::remove_if(block.reads.begin(), block.reads.end(), waited_for), block.reads.end());
  block.written = block.written && !waited_for(block.last_write);
  block.recorded.clear();
  here.unused[{block.home, block.bytes}].emplace_back(reinterpret_cast<uintptr_t>(pointer), block);
}

std::set<std::pair<uintptr_t, size_t>>& pinned() {
  static auto* all = new std::set<std::pair<uintptr_t, size_t>>;
  return *all;
}
void free_pinned(void* pointer) {
  std::lock_guard<std::recursive_mutex> held(lock());
  auto found = pinned().lower_bound({reinterpret_cast<uintptr_t>(pointer), 0});
  if (found != pinned().end() && found->first == reinterpret_cast<uintptr_t>(pointer)) pinned().erase(found);
  c10::free_cpu(pointer);
}

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    std::lock_guard<std::recursive_mutex> held(lock());
    void* pointer = c10::alloc_cpu(bytes ? bytes : 1);
    pinned().insert({reinterpret_cast<uintptr_t>(pointer), bytes ? bytes : 1});
    return {pointer, pointer, &free_pinned, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* to, const void* from, size_t count) const override { std::memcpy(to, from, count); }
};

DeviceAllocator device_allocator;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &device_allocator);

const bool watching = [] {
  struct sigaction action {};
  action.sa_sigaction = say_who_touched;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
  pthread_atfork(nullptr, nullptr, [] { forked_after_use = forked_after_use || used; });
  return true;
}();

}  // namespace

bool is_device_pointer(const void* pointer) {
  auto* byte = static_cast<const char*>(pointer);
  return byte >= guarded() && byte < guarded() + kRoom * kMost;
}

void* host_view(const void* pointer) {
  if (pointer == nullptr) return nullptr;
  TORCH_CHECK(is_device_pointer(pointer), "pretend: not a device pointer");
  return open() + (static_cast<const char*>(pointer) - guarded());
}

int device_count() {
  static int count = std::min<size_t>(kMost, from_environment("PRETEND_DEVICES", 4));
  return count;
}

void note_use() {
  TORCH_CHECK(!forked_after_use,
              "Cannot re-initialize pretend in forked subprocess. To use pretend with multiprocessing, you must use the 'spawn' start method");
  used = true;
}
bool in_bad_fork() { return forked_after_use; }

void lose(c10::DeviceIndex device) { pool(device).lost = true; }
void check_not_lost(c10::DeviceIndex device) {
  if (pool(device).lost)
    throw c10::AcceleratorError({__func__, __FILE__, uint32_t(__LINE__)}, 46,
                                "pretend error: device " + std::to_string(device) + " is lost");
}

c10::Allocator* pinned_allocator() {
  static PinnedAllocator one;
  return &one;
}

bool is_pinned(const void* pointer) {
  std::lock_guard<std::recursive_mutex> held(lock());
  auto address = reinterpret_cast<uintptr_t>(pointer);
  auto next = pinned().upper_bound({address, SIZE_MAX});
  if (next == pinned().begin()) return false;
  auto& [start, bytes] = *std::prev(next);
  return address < start + bytes;
}

void clear_unused(c10::DeviceIndex device) {
  std::lock_guard<std::recursive_mutex> held(lock());
  auto& here = pool(device);
  for (auto& [_, blocks] : here.unused)
    for (auto& [address, block] : blocks) {
      auto segment = segment_of(here, address);
      segment->second.cut -= block.bytes;
      if (segment->second.cut > 0 || segment->first + segment->second.bytes == here.end) continue;
      madvise(host_view(reinterpret_cast<void*>(segment->first)), segment->second.bytes, MADV_DONTNEED);
      add(here.stats.reserved_bytes, -int64_t(segment->second.bytes));
      add(here.stats.segment, -1);
      here.segments.erase(segment);
    }
  here.unused.clear();
}

void record_stream(const void* pointer, c10::Stream stream) {
  std::lock_guard<std::recursive_mutex> held(lock());
  if (auto* block = block_of(pointer)) block->recorded.insert(key_of(stream));
}

void note_read(const void* pointer) {
  std::lock_guard<std::recursive_mutex> held(lock());
  auto* block = block_of(pointer);
  if (block == nullptr) return;
  check_not_lost(device_of(pointer));
  StreamKey mine = key_of(current_stream(device_of(pointer)));
  uint64_t at = tick(mine);
  if (block->written && !ordered_after(mine, block->last_write.stream, block->last_write.at))
    race(mine, "reads", block->last_write, "writes");
  for (auto& use : block->reads)
    if (use.stream == mine) {
      use.at = at;
      return;
    }
  block->reads.push_back({mine, at});
}

void note_write(const void* pointer) {
  std::lock_guard<std::recursive_mutex> held(lock());
  auto* block = block_of(pointer);
  if (block == nullptr) return;
  check_not_lost(device_of(pointer));
  StreamKey mine = key_of(current_stream(device_of(pointer)));
  uint64_t at = tick(mine);
  if (block->written && !ordered_after(mine, block->last_write.stream, block->last_write.at))
    race(mine, "writes", block->last_write, "writes");
  for (auto& use : block->reads)
    if (!ordered_after(mine, use.stream, use.at)) race(mine, "writes", use, "reads");
  block->reads.clear();
  block->written = true;
  block->last_write = {mine, at};
}

void defer(c10::DeviceIndex device, std::function<void()> work) {
  defer_until_waited(key_of(current_stream(device)), std::move(work));
}

}  // namespace pretend
