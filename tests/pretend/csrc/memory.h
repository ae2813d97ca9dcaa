// Memory of the pretend devices, and the order in which streams use it.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <functional>

namespace pretend {

// [Note: two views] Every byte of device memory has two addresses. Tensors hold the first, where nothing can be read or
// written: a CPU kernel that gets such a pointer dies at once. Only the device's own code asks for the second.
void* host_view(const void* device_pointer);
bool is_device_pointer(const void* pointer);

int device_count();
c10::Allocator* pinned_allocator();
bool is_pinned(const void* pointer);
void clear_unused(c10::DeviceIndex device);
void record_stream(const void* pointer, c10::Stream stream);
void note_use();  // the first use of a device; a forked child may not make a second one
bool in_bad_fork();

// The device fails from now on, as one that fell off the bus does.
void lose(c10::DeviceIndex device);
void check_not_lost(c10::DeviceIndex device);

// [Note: order] Work runs at once, so what is wrong about streams would not show. So the order that streams, events and
// the host's waits establish is kept as vector clocks, and a use of memory that is not ordered after another stream's
// use is an error. What the host reads from a device without waiting holds nonsense until it has waited.
void note_read(const void* pointer);
void note_write(const void* pointer);
void defer(c10::DeviceIndex device, std::function<void()> work);

}  // namespace pretend
