// A pretend CUDA device: tensors labelled cuda:N, host memory, CPU kernels.
//
// Loaded before torch is imported, this library gives a CPU build of torch
//   1. a device guard (which cuda:N is current) and the CUDA hooks,
//   2. an allocator whose memory is labelled cuda:N and counted,
//   3. a fallback for the CUDA dispatch key: it hands every operator CPU aliases
//      of its arguments (same bytes, other label), runs the CPU kernel, and puts
//      the label back on the results,
//   4. the operators that must not go that way, because they make or move storage.
// Values are therefore real, and mixing devices is an error, as on a GPU. Streams
// and events are inert, for a kernel has finished when its call returns; only the
// pretend NCCL (nccl.cpp) works on after that.

#include "device.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/Resize.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace atlas {
namespace {

using at::Device;
using at::DeviceIndex;
using at::DispatchKey;
using at::DispatchKeySet;
using at::IntArrayRef;
using at::MemoryFormat;
using at::ScalarType;
using at::Storage;
using at::Tensor;
using c10::IValue;

// ---------------------------------------------------------------- which device

constexpr int kMostDevices = 64;

int count_devices() {
  static const int count = [] {
    const char* text = std::getenv("ATLAS_EMULATED_DEVICES");
    return std::clamp(text ? std::atoi(text) : 16, 1, kMostDevices);
  }();
  return count;
}

thread_local DeviceIndex current = 0;

void choose(DeviceIndex index) {
  TORCH_CHECK(
      index < count_devices(), "CUDA error: invalid device ordinal (cuda:",
      static_cast<int>(index), " of ", count_devices(), " emulated devices)");
  if (index >= 0) current = index;
}

DeviceIndex exchange(DeviceIndex index) {
  const DeviceIndex before = current;
  choose(index);
  return before;
}

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

// ---------------------------------------------------------------------- memory

// Bytes now labelled cuda:N, and the most there ever were.
struct Ledger {
  std::atomic<int64_t> live{0}, peak{0};

  void take(int64_t bytes) {
    const int64_t total = live.fetch_add(bytes) + bytes;
    int64_t seen = peak.load();
    while (seen < total && !peak.compare_exchange_weak(seen, total)) {}
  }
  void give_back(int64_t bytes) { live.fetch_sub(bytes); }
};

Ledger& ledger(DeviceIndex index) {
  static std::array<Ledger, kMostDevices> all;
  return all[index];
}

// What a cuda storage owns: memory of its own, or a CPU storage it relabels.
struct Block {
  void* memory;
  Storage relabelled;
  DeviceIndex device;
  int64_t bytes;

  Block(void* memory, Storage relabelled, DeviceIndex device, int64_t bytes)
      : memory(memory), relabelled(std::move(relabelled)), device(device),
        bytes(bytes) {
    ledger(device).take(bytes);
  }
  ~Block() {
    ledger(device).give_back(bytes);
    std::free(memory);
  }
  static void release(void* block) { delete static_cast<Block*>(block); }
};

void* aligned(size_t bytes) {
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

DeviceAllocator& device_allocator() {
  static DeviceAllocator it;
  return it;
}

const bool registered_allocator = [] {
  c10::SetAllocator(c10::kCUDA, &device_allocator(), 100);
  return true;
}();

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

PinnedAllocator& pinned_allocator() {
  static auto* it = new PinnedAllocator;  // outlives every tensor
  return *it;
}

void PinnedAllocator::release(void* memory) {
  auto& self = pinned_allocator();
  const std::lock_guard<std::mutex> hold(self.lock);
  self.pinned.erase(memory);
  std::free(memory);
}

// ------------------------------------------------------------------ generators

// torch.Generator(device="cuda"): a CPU generator behind a cuda label.
struct Generator final : c10::GeneratorImpl {
  at::Generator inner;

  Generator(DeviceIndex index, at::Generator inner)
      : GeneratorImpl(Device(c10::kCUDA, index), DispatchKeySet(DispatchKey::CUDA)),
        inner(std::move(inner)) {}
  void set_current_seed(uint64_t seed) override { inner.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { inner.set_offset(offset); }
  uint64_t get_offset() const override { return inner.get_offset(); }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override { return inner.seed(); }
  void set_state(const c10::TensorImpl& state) override {
    inner.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return inner.unsafeGetGeneratorImpl()->get_state();
  }
  Generator* clone_impl() const override {
    return new Generator(device().index(), inner.clone());
  }
};

// Each device has a default generator of its own, beside the CPU's.
const at::Generator& default_generator(DeviceIndex index) {
  static auto* all = [] {
    auto* made = new std::vector<at::Generator>;
    for (int i = 0; i < count_devices(); ++i) {
      made->push_back(at::make_generator<Generator>(
          static_cast<DeviceIndex>(i),
          at::detail::createCPUGenerator(c10::default_rng_seed_val)));
    }
    return made;
  }();
  return all->at(index < 0 ? current : index);
}

at::Generator cpu_generator(const at::Generator& given) {
  if (!given.defined()) return given;
  TORCH_CHECK(
      given.device().is_cuda(),
      "Expected a 'cuda' device type for generator but found '",
      given.device().type(), "'");
  return static_cast<Generator*>(given.unsafeGetGeneratorImpl())->inner;
}

// ----------------------------------------------------------------------- hooks

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
}  // namespace atlas

namespace at {
using atlas::Hooks;
C10_REGISTER_TYPED_CLASS(CUDAHooksRegistry, "CUDAHooks", Hooks)
}  // namespace at

// --------------------------------------------------------------------- aliases

namespace atlas {
namespace {

// A tensor of the same shape, strides and flags over another storage.
Tensor same_view(const Tensor& like, Storage storage, DispatchKey key) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), DispatchKeySet(key), like.dtype());
  auto* impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.is_conj()) made._set_conj(true);
  if (like.is_neg()) made._set_neg(true);
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return made;
}

void release_storage(void* held) { delete static_cast<Storage*>(held); }

// The same bytes labelled cpu; keeps the cuda storage alive.
Storage cpu_storage(const Storage& of) {
  c10::DataPtr data(
      of.mutable_data(), new Storage(of), &release_storage, Device(c10::kCPU));
  return Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), of.nbytes(), std::move(data),
      c10::GetCPUAllocator(), /*resizable=*/true));
}

// The same bytes labelled cuda:N, counted there; keeps the cpu storage alive.
Storage cuda_storage(const Storage& of, Device device) {
  auto* block = new Block(nullptr, of, device.index(), of.nbytes());
  c10::DataPtr data(of.mutable_data(), block, &Block::release, device);
  return Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), of.nbytes(), std::move(data),
      &device_allocator(), /*resizable=*/true));
}

}  // namespace

Tensor as_cpu(const Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  return same_view(tensor, cpu_storage(tensor.storage()), DispatchKey::CPU);
}

DeviceIndex current_device() { return current; }

namespace {

// -------------------------------------------------------------------- fallback

// Operators that take tensors of both kinds on a real GPU too. Elsewhere a CPU
// tensor may only stand beside cuda ones as a number, without dimensions.
const std::unordered_set<std::string>& takes_both() {
  static const std::unordered_set<std::string> names = {
      "aten::index", "aten::index_put", "aten::index_put_",
      "aten::_index_put_impl_", "aten::_unsafe_index", "aten::_copy_from"};
  return names;
}

// One operator's call, carried over to the CPU and back.
class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack* stack)
      : op_(op), stack_(*stack) {}

  void run() {
    TORCH_CHECK_NOT_IMPLEMENTED(
        op_.hasComputedKernelForDispatchKey(DispatchKey::CPU),
        "the emulated GPU runs CPU kernels, and there is none for ",
        op_.operator_name());
    for (auto& value : arguments()) carry_over(value);
    TORCH_CHECK(
        !device_ || !cpu_seen_ || takes_both().count(op_.schema().name()),
        "Expected all tensors to be on the same device, but found at least two "
        "devices, ", *device_, " and cpu! (", op_.operator_name(), ")");
    supply_generator();
    op_.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), &stack_);
    for (const auto& pair : pairs_) adopt_resize(pair);
    for (auto& value : results()) carry_back(value);
  }

 private:
  struct Pair {
    Tensor cuda, cpu;
  };

  std::vector<std::reference_wrapper<IValue>> last(size_t count) {
    return {stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end()};
  }
  std::vector<std::reference_wrapper<IValue>> arguments() {
    return last(op_.schema().arguments().size());
  }
  std::vector<std::reference_wrapper<IValue>> results() {
    return last(op_.schema().returns().size());
  }

  void carry_over(IValue& value) {
    if (value.isTensor()) {
      value = lend(value.toTensor());
    } else if (value.isTensorList()) {
      auto tensors = value.toTensorVector();
      for (auto& tensor : tensors) tensor = lend(tensor);
      value = std::move(tensors);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> tensors;
      for (std::optional<Tensor> tensor : value.toOptionalTensorList()) {
        tensors.push_back(tensor ? std::make_optional(lend(*tensor)) : tensor);
      }
      value = std::move(tensors);
    } else if (value.isDevice()) {
      asked_ = value.toDevice();
      if (asked_->is_cuda()) value = Device(c10::kCPU);
    } else if (value.isGenerator()) {
      value = cpu_generator(value.toGenerator());
    }
  }

  Tensor lend(const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (!tensor.is_cuda()) {
      cpu_seen_ |= tensor.is_cpu() && tensor.dim() > 0;
      return tensor;
    }
    TORCH_CHECK(
        !device_ || *device_ == tensor.device(),
        "Expected all tensors to be on the same device, but found at least two "
        "devices, ", *device_, " and ", tensor.device(), "! (",
        op_.operator_name(), ")");
    device_ = tensor.device();
    pairs_.push_back({tensor, as_cpu(tensor)});
    return pairs_.back().cpu;
  }

  // Without generator= an operator draws from its device's own.
  void supply_generator() {
    const auto& declared = op_.schema().arguments();
    auto given = arguments();
    for (size_t i = 0; i < declared.size(); ++i) {
      const auto optional = declared[i].type()->cast<c10::OptionalType>();
      const bool wanted = optional &&
          optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
      if (wanted && given[i].get().isNone()) {
        given[i].get() = cpu_generator(default_generator(target().index()));
      }
    }
  }

  // The device of new results: the one asked for, of the arguments, or current.
  Device target() const {
    Device device = device_.value_or(Device(c10::kCUDA, current));
    if (asked_) device = *asked_;
    if (device.is_cuda() && !device.has_index()) device.set_index(current);
    return device;
  }

  // A kernel with out= may have given the alias another size or memory.
  static void adopt_resize(const Pair& pair) {
    const auto& [cuda, cpu] = pair;
    auto* impl = cuda.unsafeGetTensorImpl();
    if (cpu.storage().data() != cuda.storage().data()) {
      const auto storage = cuda_storage(cpu.storage(), cuda.device());
      impl->set_storage_keep_dtype(storage);
    }
    if (!cpu.sizes().equals(cuda.sizes()) || !cpu.strides().equals(cuda.strides()) ||
        cpu.storage_offset() != cuda.storage_offset()) {
      impl->set_sizes_and_strides(cpu.sizes(), cpu.strides(), cpu.storage_offset());
    }
  }

  void carry_back(IValue& value) {
    if (value.isTensor()) {
      value = relabel(value.toTensor());
    } else if (value.isTensorList()) {
      auto tensors = value.toTensorVector();
      for (auto& tensor : tensors) tensor = relabel(tensor);
      value = std::move(tensors);
    }
  }

  Tensor relabel(const Tensor& result) {
    if (!result.defined() || !result.is_cpu()) return result;
    for (const auto& [cuda, cpu] : pairs_) {
      if (cpu.is_same(result)) return cuda;  // changed in place
    }
    for (const auto& [cuda, cpu] : pairs_) {  // a view keeps its base's storage
      if (cpu.storage().unsafeGetStorageImpl() ==
          result.storage().unsafeGetStorageImpl()) {
        return same_view(result, cuda.storage(), DispatchKey::CUDA);
      }
    }
    if (!target().is_cuda()) return result;
    return same_view(
        result, cuda_storage(result.storage(), target()), DispatchKey::CUDA);
  }

  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  std::vector<Pair> pairs_;
  std::optional<Device> device_;  // of the tensors given
  std::optional<Device> asked_;   // the argument device=
  bool cpu_seen_ = false;
};

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Call(op, stack).run();
}

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
