// What the pretend device lends to the pretend NCCL.
#pragma once

#include <ATen/core/Tensor.h>

namespace atlas {

// The same bytes as a CPU tensor; a tensor that is not on cuda comes back as is.
at::Tensor as_cpu(const at::Tensor& tensor);

// The device that this thread last chose with torch.cuda.set_device.
c10::DeviceIndex current_device();

// Waits until the pretend NCCL has done all it was given: torch.cuda.synchronize.
void finish_streams();

}  // namespace atlas
