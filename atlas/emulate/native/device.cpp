// A pretend CUDA device: tensors labeled cuda:N, host memory, CPU kernels.
//
// Loaded before torch is imported, this library gives a CPU build of torch
//   1. a device guard (which cuda:N is current) and the CUDA hooks,
//   2. an allocator whose memory is labeled cuda:N and counted,
//   3. a fallback for the CUDA dispatch key: it hands every operator CPU aliases
//      of its arguments (same bytes, other label), runs the CPU kernel, and puts
//      the label back on the results,
//   4. the operators that must not go that way, because they make or move storage.
// Values are therefore real, and mixing devices is an error, as on a GPU. Streams
// and events are inert, for a kernel has finished when its call returns; only the
// pretend NCCL (nccl.cpp) works on after that.

#include "device.h"

#include "alias.h"
#include "fallback.h"
#include "generator.h"
#include "memory.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/Resize.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/library.h>

#include <chrono>
#include <utility>

namespace atlas {
namespace {

using at::IntArrayRef;
using at::MemoryFormat;
using at::ScalarType;

// ------------------------------------------------------------- guard and hooks

double now_in_ms() {
  using namespace std::chrono;
  return duration<double, std::milli>(steady_clock::now().time_since_epoch())
      .count();
}

// An event is the moment at which it was recorded.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  Device exchangeDevice(Device to) const override {
    return Device(c10::kCUDA, exchange(to.index()));
  }
  Device getDevice() const override { return Device(c10::kCUDA, current); }
  void setDevice(Device to) const override { choose(to.index()); }
  void uncheckedSetDevice(Device to) const noexcept override {
    if (to.index() >= 0) current = to.index();
  }
  DeviceIndex deviceCount() const noexcept override {
    return static_cast<DeviceIndex>(count_devices());
  }

  static c10::Stream stream_of(Device device) {
    const auto index = device.has_index() ? device.index() : current;
    return c10::Stream(c10::Stream::DEFAULT, Device(c10::kCUDA, index));
  }
  c10::Stream getStream(Device d) const override { return stream_of(d); }
  c10::Stream getDefaultStream(Device d) const override { return stream_of(d); }
  c10::Stream getNewStream(Device d, int) const override { return stream_of(d); }
  c10::Stream getStreamFromGlobalPool(Device d, bool) const override {
    return stream_of(d);
  }
  c10::Stream exchangeStream(c10::Stream s) const override {
    return stream_of(s.device());
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(const DeviceIndex) const override { finish_streams(); }

  void record(void** event, const c10::Stream&, const DeviceIndex,
              const c10::EventFlag) const override {
    if (*event == nullptr) *event = new double;
    *static_cast<double*>(*event) = now_in_ms();
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    delete static_cast<double*>(event);
  }
  double elapsedTime(void* from, void* to, const DeviceIndex) const override {
    return *static_cast<double*>(to) - *static_cast<double*>(from);
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void recordDataPtrOnStream(
      const c10::DataPtr&, const c10::Stream&) const override {}
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

const bool registered_allocator = [] {
  c10::SetAllocator(c10::kCUDA, &device_allocator(), 100);
  return true;
}();

struct Hooks : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return count_devices(); }
  DeviceIndex deviceCount() const override {
    return static_cast<DeviceIndex>(count_devices());
  }
  DeviceIndex current_device() const override { return current; }
  DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(DeviceIndex to) const override { choose(to); }
  DeviceIndex exchangeDevice(DeviceIndex to) const override {
    return exchange(to);
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex to) const override {
    return exchange(to);
  }
  void deviceSynchronize(DeviceIndex) const override { finish_streams(); }
  c10::Allocator* getCUDADeviceAllocator() const override {
    return &device_allocator();
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return &pinned_allocator();
  }
  bool isPinnedPtr(const void* memory) const override {
    return pinned_allocator().holds(memory);
  }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(DeviceIndex index) const override {
    return at::make_generator<Generator>(
        index < 0 ? current : index, at::detail::createCPUGenerator());
  }
};

}  // namespace

Tensor as_cpu(const Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  return same_view(tensor, cpu_storage(tensor.storage()), DispatchKey::CPU);
}

namespace {

TORCH_LIBRARY_IMPL(_, CUDA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

// ------------------------------------------- operators that make or move storage

Tensor empty(
    IntArrayRef size, std::optional<ScalarType> dtype, std::optional<at::Layout>,
    std::optional<Device> device, std::optional<bool>,
    std::optional<MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(
      size, &device_allocator(), DispatchKeySet(DispatchKey::CUDA),
      c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(
    IntArrayRef size, IntArrayRef stride, std::optional<ScalarType> dtype,
    std::optional<at::Layout>, std::optional<Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(
      size, stride, &device_allocator(), DispatchKeySet(DispatchKey::CUDA),
      c10::dtype_or_default(dtype));
}

Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  as_cpu(self).copy_(as_cpu(source), non_blocking);
  return self;
}

// Grows with the allocator of its own storage, which labels with the current
// device: hence the guard.
const Tensor& resize_(
    const Tensor& self, IntArrayRef size, std::optional<MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(self.device());
  return at::native::resize_(self, size, format);
}

void resize_storage(const Tensor& tensor, int64_t bytes) {
  const c10::OptionalDeviceGuard guard(tensor.device());
  at::native::resize_bytes_cpu(tensor.storage().unsafeGetStorageImpl(), bytes);
}

Tensor& set_storage(
    Tensor& self, Storage source, int64_t offset, IntArrayRef size,
    IntArrayRef stride) {
  TORCH_CHECK(
      source.device().is_cuda(), "Attempted to set the storage of a tensor on "
      "device \"", self.device(), "\" to a storage on different device \"",
      source.device(), "\"");
  const c10::OptionalDeviceGuard guard(self.device());
  return at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);
}

Tensor& set_whole_storage(Tensor& self, Storage source) {
  const auto count = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage(self, std::move(source), 0, count, {});
}

Tensor& set_nothing(Tensor& self) {
  const c10::OptionalDeviceGuard guard(self.device());
  Storage nothing(
      Storage::use_byte_size_t(), 0, device_allocator().allocate(0),
      &device_allocator(), true);
  return set_storage(self, std::move(nothing), 0, 0, {});
}

void record_stream(Tensor&, c10::Stream) {}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("copy_", copy_);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("resize_", resize_);
  m.impl("set_", set_nothing);
  m.impl("set_.source_Storage", set_whole_storage);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Tensor", at::native::set_tensor_);
  m.impl("record_stream", record_stream);
  // These would choose a CUDA kernel by the label: the CPU is to choose.
  for (const char* name : {"convolution", "convolution_backward"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  }
}

// ------------------------------------------------------------- for atlas.emulate

int64_t memory_live(int64_t device) { return ledger(device).live; }
int64_t memory_peak(int64_t device) { return ledger(device).peak; }
at::Generator generator_of(int64_t device) { return default_generator(device); }
void reset_peak(int64_t device) { ledger(device).peak = ledger(device).live.load(); }

TORCH_LIBRARY(atlas_emulate, m) {
  m.def("as_cpu(Tensor(a) tensor) -> Tensor(a)");
  m.def("resize_storage(Tensor tensor, int bytes) -> ()");
  m.def("memory_live(int device) -> int", memory_live);
  m.def("memory_peak(int device) -> int", memory_peak);
  m.def("reset_peak(int device) -> ()", reset_peak);
  m.def("synchronize() -> ()", finish_streams);
  m.def("default_generator(int device) -> Generator?", generator_of);
}

TORCH_LIBRARY_IMPL(atlas_emulate, CUDA, m) {
  m.impl("as_cpu", as_cpu);
  m.impl("resize_storage", resize_storage);
}

}  // namespace
}  // namespace atlas

namespace at {
using atlas::Hooks;
C10_REGISTER_TYPED_CLASS(CUDAHooksRegistry, "CUDAHooks", Hooks)
}  // namespace at

// ------------------------------------------- DDP's reducer asks for a timer

namespace c10d {
namespace {

struct HostTimer : Timer {
  explicit HostTimer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const auto from = getTimeRef(start), to = getTimeRef(end);
    if (from < 0 || to < 0) return std::nullopt;
    return to - from;
  }
};

}  // namespace

C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kCUDA, HostTimer)

}  // namespace c10d
