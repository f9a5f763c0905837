// One tensor under two labels: the same bytes as a cpu and as a cuda tensor.
#pragma once

#include "memory.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>

#include <utility>

namespace atlas {

using at::DispatchKey;
using at::DispatchKeySet;

// A tensor of the same shape, strides and flags over another storage.
inline Tensor same_view(const Tensor& like, Storage storage, DispatchKey key) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), DispatchKeySet(key), like.dtype());
  auto* impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.is_conj()) made._set_conj(true);
  if (like.is_neg()) made._set_neg(true);
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return made;
}

inline void release_storage(void* held) { delete static_cast<Storage*>(held); }

// The same bytes labeled cpu; keeps the cuda storage alive.
inline Storage cpu_storage(const Storage& of) {
  c10::DataPtr data(
      of.mutable_data(), new Storage(of), &release_storage, Device(c10::kCPU));
  return Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), of.nbytes(), std::move(data),
      c10::GetCPUAllocator(), /*resizable=*/true));
}

// The same bytes labeled cuda:N, counted there; keeps the cpu storage alive.
inline Storage cuda_storage(const Storage& of, Device device) {
  auto* block = new Block(nullptr, of, device.index(), of.nbytes());
  c10::DataPtr data(of.mutable_data(), block, &Block::release, device);
  return Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), of.nbytes(), std::move(data),
      &device_allocator(), /*resizable=*/true));
}

}  // namespace atlas
