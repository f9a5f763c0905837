// Runs an operator of the emulated device with the kernel of the CPU.
#pragma once

#include "alias.h"
#include "generator.h"

#include <torch/library.h>

#include <functional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace atlas {

using c10::IValue;

// Operators that take tensors of both kinds on a real GPU too. Elsewhere a CPU
// tensor may only stand beside cuda ones as a number, without dimensions.
inline const std::unordered_set<std::string>& takes_both() {
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

inline void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Call(op, stack).run();
}

}  // namespace atlas
