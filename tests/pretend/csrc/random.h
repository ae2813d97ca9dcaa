// Random numbers of the devices: each has a generator of its own, which draws as the CPU's does.
#pragma once

#include <ATen/core/Generator.h>

namespace pretend {

const at::Generator& default_generator(c10::DeviceIndex device);
at::Generator cpu_generator(const at::Generator& generator);  // the CPU's generator that stands behind one of ours

}  // namespace pretend
