// Which emulated device is current, and what device.cpp and nccl.cpp share.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdlib>

namespace atlas {

using at::Device;
using at::DeviceIndex;
using at::Tensor;

constexpr int kMostDevices = 64;

inline int count_devices() {
  static const int count = [] {
    const char* text = std::getenv("ATLAS_EMULATED_DEVICES");
    return std::clamp(text ? std::atoi(text) : 16, 1, kMostDevices);
  }();
  return count;
}

inline thread_local DeviceIndex current = 0;

inline void choose(DeviceIndex index) {
  TORCH_CHECK(
      index < count_devices(), "CUDA error: invalid device ordinal (cuda:",
      static_cast<int>(index), " of ", count_devices(), " emulated devices)");
  if (index >= 0) current = index;
}

inline DeviceIndex exchange(DeviceIndex index) {
  const DeviceIndex before = current;
  choose(index);
  return before;
}

// The same bytes as a CPU tensor; a tensor that is not on cuda comes back as is.
at::Tensor as_cpu(const at::Tensor& tensor);

// Waits until the pretend NCCL has done all it was given: torch.cuda.synchronize.
void finish_streams();

}  // namespace atlas
