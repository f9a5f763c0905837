// Random numbers of the emulated devices: CPU generators behind a cuda label.
#pragma once

#include "device.h"

#include <ATen/CPUGeneratorImpl.h>

#include <utility>
#include <vector>

namespace atlas {

using at::DispatchKey;
using at::DispatchKeySet;

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
inline const at::Generator& default_generator(DeviceIndex index) {
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

inline at::Generator cpu_generator(const at::Generator& given) {
  if (!given.defined()) return given;
  TORCH_CHECK(
      given.device().is_cuda(),
      "Expected a 'cuda' device type for generator but found '",
      given.device().type(), "'");
  return static_cast<Generator*>(given.unsafeGetGeneratorImpl())->inner;
}

}  // namespace atlas
