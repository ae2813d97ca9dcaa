// What torch asks of an accelerator, and what the Python module asks of the devices.
#include "memory.h"
#include "random.h"
#include "streams.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/GeneratorForPrivateuseone.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/utils/pybind.h>

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

namespace pretend {
namespace {

struct Generator final : public c10::GeneratorImpl {
  explicit Generator(c10::DeviceIndex device)
      : c10::GeneratorImpl({c10::DeviceType::PrivateUse1, device}, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        cpu(at::make_generator<at::CPUGeneratorImpl>()) {}
  void set_current_seed(uint64_t seed) override { cpu.set_current_seed(seed); }
  void set_offset(uint64_t) override { TORCH_CHECK(false, "pretend: a generator has no offset"); }
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return cpu.current_seed(); }
  uint64_t seed() override { return cpu.unsafeGetGeneratorImpl()->seed(); }
  void set_state(const c10::TensorImpl& state) override { cpu.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return cpu.unsafeGetGeneratorImpl()->get_state(); }
  Generator* clone_impl() const override {
    auto* copy = new Generator(device_.index());
    copy->cpu = cpu.clone();
    return copy;
  }
  mutable at::Generator cpu;
};

struct Hooks final : public at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  void init() const override {}
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(device_count()); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    auto before = current_device();
    set_current_device(device);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  bool isPinnedPtr(const void* pointer) const override { return is_pinned(pointer); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  c10::Device getDeviceFromPtr(void*) const override { return {c10::DeviceType::PrivateUse1, current_device()}; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto* impl = storage.unsafeGetStorageImpl();
    c10::DeviceGuard guard(storage.device());
    auto memory = c10::GetAllocator(c10::DeviceType::PrivateUse1)->allocate(bytes);
    size_t kept = std::min(bytes, impl->nbytes());
    if (kept) {
      note_read(impl->data());
      note_write(memory.get());
      std::memcpy(host_view(memory.get()), host_view(impl->data()), kept);
    }
    impl->set_data_ptr_noswap(std::move(memory));
    impl->set_nbytes(bytes);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device < 0 ? current_device() : device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<Generator>(device < 0 ? current_device() : device);
  }
};

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace

const at::Generator& default_generator(c10::DeviceIndex device) {
  static auto* lock = new std::mutex;
  static auto* all = new std::map<c10::DeviceIndex, at::Generator>;
  std::lock_guard<std::mutex> held(*lock);
  auto found = all->find(device);
  if (found == all->end()) found = all->emplace(device, at::make_generator<Generator>(device)).first;
  return found->second;
}

at::Generator cpu_generator(const at::Generator& generator) {
  if (generator.device().type() != c10::DeviceType::PrivateUse1) return generator;
  return static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->cpu;
}

}  // namespace pretend

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("device_count", &pretend::device_count);
  m.def("current_device", [] { return int(pretend::current_device()); });
  m.def("set_device", [](int device) { pretend::set_current_device(static_cast<c10::DeviceIndex>(device)); });
  m.def("default_generator", [](int device) {
    return py::reinterpret_steal<py::object>(
        THPGenerator_initDefaultGenerator(pretend::default_generator(static_cast<c10::DeviceIndex>(device))));
  });
  m.def("in_bad_fork", &pretend::in_bad_fork);
  m.def("lose", [](int device) { pretend::lose(static_cast<c10::DeviceIndex>(device)); });
  m.def("nap", &pretend::nap);
  m.def("counts", [] {
    auto& all = pretend::counts();
    return std::map<std::string, uint64_t>{{"waits", all.waits}, {"to_device", all.to_device}, {"to_host", all.to_host},
                                           {"between", all.between}, {"launches", all.launches}};
  });
  m.def("set_uncounted", [](bool on) {
    bool before = pretend::uncounted();
    pretend::uncounted() = on;
    return before;
  });
}
