// The memory of the emulated devices: labeled cuda:N, counted, on the host.
#pragma once

#include "device.h"

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_set>
#include <utility>

namespace atlas {

using at::Storage;

// Bytes now labeled cuda:N, and the most there ever were.
struct Ledger {
  std::atomic<int64_t> live{0}, peak{0};

  void take(int64_t bytes) {
    const int64_t total = live.fetch_add(bytes) + bytes;
    int64_t seen = peak.load();
    while (seen < total && !peak.compare_exchange_weak(seen, total)) {}
  }
  void give_back(int64_t bytes) { live.fetch_sub(bytes); }
};

inline Ledger& ledger(DeviceIndex index) {
  static std::array<Ledger, kMostDevices> all;
  return all[index];
}

// What a cuda storage owns: memory of its own, or a CPU storage it relabels.
struct Block {
  void* memory;
  Storage relabeled;
  DeviceIndex device;
  int64_t bytes;

  Block(void* memory, Storage relabeled, DeviceIndex device, int64_t bytes)
      : memory(memory), relabeled(std::move(relabeled)), device(device),
        bytes(bytes) {
    ledger(device).take(bytes);
  }
  ~Block() {
    ledger(device).give_back(bytes);
    std::free(memory);
  }
  static void release(void* block) { delete static_cast<Block*>(block); }
};

inline void* aligned(size_t bytes) {
  void* memory = nullptr;
  TORCH_CHECK_WITH(
      OutOfMemoryError, posix_memalign(&memory, 64, bytes ? bytes : 1) == 0,
      "CUDA out of memory. Tried to allocate ", bytes, " bytes (emulated)");
  return memory;
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const Device device(c10::kCUDA, current);
    if (bytes == 0) return {nullptr, device};
    void* memory = aligned(bytes);
    auto* block = new Block(memory, Storage(), current, bytes);
    return {memory, block, &Block::release, device};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

inline DeviceAllocator& device_allocator() {
  static DeviceAllocator it;
  return it;
}

// Pinned memory is host memory whose addresses are remembered.
struct PinnedAllocator final : c10::Allocator {
  std::mutex lock;
  std::unordered_set<const void*> pinned;

  static void release(void* memory);
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = aligned(bytes);
    const std::lock_guard<std::mutex> hold(lock);
    pinned.insert(memory);
    return {memory, memory, &release, Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  bool holds(const void* memory) {
    const std::lock_guard<std::mutex> hold(lock);
    return pinned.count(memory) > 0;
  }
};

inline PinnedAllocator& pinned_allocator() {
  static auto* it = new PinnedAllocator;  // outlives every tensor
  return *it;
}

inline void PinnedAllocator::release(void* memory) {
  auto& self = pinned_allocator();
  const std::lock_guard<std::mutex> hold(self.lock);
  self.pinned.erase(memory);
  std::free(memory);
}

}  // namespace atlas
