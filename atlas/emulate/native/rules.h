// What NCCL demands of a call, and the terms on which all ranks must agree.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <sstream>
#include <string>
#include <vector>

namespace atlas {

using at::Tensor;
using c10d::ReduceOp;
using Tensors = std::vector<Tensor>;

enum class Op : int64_t {
  all_reduce, broadcast, reduce, all_gather, all_gather_single, gather, scatter,
  reduce_scatter, reduce_scatter_single, all_to_all, all_to_all_single, barrier,
  send, recv
};

inline const char* name_of(Op op) {
  static const char* const names[] = {
      "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_single",
      "gather", "scatter", "reduce_scatter", "reduce_scatter_single",
      "all_to_all", "all_to_all_single", "barrier", "send", "recv"};
  return names[static_cast<int64_t>(op)];
}

inline const char* name_of(ReduceOp::RedOpType reduction) {
  static const char* const names[] = {
      "SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM",
      "UNUSED"};
  return names[reduction];
}

constexpr int64_t kNone = -1;

// What all ranks of a collective must say alike, see [Note: agreement].
struct Terms {
  Op op;
  int64_t count = 0;
  int64_t dtype = kNone;
  int64_t reduction = kNone;
  int64_t root = kNone;

  static constexpr int64_t kFields = 5;

  Tensor pack() const {
    return at::tensor(
        {static_cast<int64_t>(op), count, dtype, reduction, root}, at::kLong);
  }
  static Terms unpack(const Tensor& packed) {
    const auto* v = packed.const_data_ptr<int64_t>();
    return {static_cast<Op>(v[0]), v[1], v[2], v[3], v[4]};
  }
  bool operator==(const Terms&) const = default;

  std::string text() const {
    std::ostringstream out;
    out << name_of(op);
    if (reduction != kNone) {
      out << "(" << name_of(static_cast<ReduceOp::RedOpType>(reduction)) << ")";
    }
    if (dtype != kNone) {
      out << " of " << count << " " << static_cast<at::ScalarType>(dtype);
    }
    if (root != kNone) out << " with root " << root;
    return out.str();
  }
};

inline Terms terms_of(Op op, const Tensor& one) {
  return {op, one.numel(), static_cast<int64_t>(one.scalar_type())};
}

inline int64_t total(const Tensors& tensors) {
  int64_t count = 0;
  for (const auto& tensor : tensors) count += tensor.numel();
  return count;
}

inline bool is_float8(at::ScalarType type) {
  return type == at::kFloat8_e4m3fn || type == at::kFloat8_e5m2;
}

inline bool nccl_has(at::ScalarType type) {
  switch (type) {
    case at::kChar: case at::kByte: case at::kBool: case at::kInt: case at::kLong:
    case at::kHalf: case at::kBFloat16: case at::kFloat: case at::kDouble:
      return true;
    default:
      return is_float8(type);
  }
}

inline void check_tensor(Op op, const Tensor& tensor) {
  TORCH_CHECK_WITH(
      ValueError, tensor.is_cuda(), "NCCL ", name_of(op), ": Tensors must be CUDA "
      "and dense, and one is on ", tensor.device());
  TORCH_CHECK_WITH(
      ValueError, tensor.is_contiguous(), "NCCL ", name_of(op),
      ": Tensors must be contiguous, and one of shape ", tensor.sizes(),
      " has strides ", tensor.strides(), "; call .contiguous() on it");
  TORCH_CHECK_WITH(
      TypeError, nccl_has(tensor.scalar_type()), "NCCL ", name_of(op),
      ": Input tensor data type is not supported for NCCL process group: ",
      tensor.scalar_type(), "; it has int8, uint8, int32, int64, float16, "
      "bfloat16, float32, float64, bool and float8");
}

inline void check_tensors(Op op, const Tensors& tensors) {
  TORCH_CHECK_WITH(
      ValueError, !tensors.empty(), "NCCL ", name_of(op), ": no tensor was given");
  for (const auto& tensor : tensors) {
    check_tensor(op, tensor);
    TORCH_CHECK_WITH(
        TypeError, tensor.scalar_type() == tensors[0].scalar_type(), "NCCL ",
        name_of(op), ": Tensors must have identical type, and these are ",
        tensors[0].scalar_type(), " and ", tensor.scalar_type());
    TORCH_CHECK_WITH(
        ValueError, tensor.device() == tensors[0].device(), "NCCL ", name_of(op),
        ": Tensors must be on one device, and these are on ", tensors[0].device(),
        " and ", tensor.device());
  }
}

inline void check_reduction(ReduceOp::RedOpType reduction, at::ScalarType type) {
  TORCH_CHECK_WITH(
      ValueError,
      reduction != ReduceOp::BAND && reduction != ReduceOp::BOR &&
          reduction != ReduceOp::BXOR,
      "Cannot use ReduceOp.", name_of(reduction), " with NCCL");
  TORCH_CHECK_WITH(
      TypeError, reduction != ReduceOp::AVG || type != at::kBool,
      "Cannot use ReduceOp.AVG with boolean tensors on NCCL");
  TORCH_CHECK_WITH(
      TypeError, !is_float8(type), "NCCL has no reductions of ", type);
  TORCH_CHECK_WITH(
      NotImplementedError, reduction != ReduceOp::PREMUL_SUM,
      "the emulated NCCL has no ReduceOp.PREMUL_SUM");
  TORCH_CHECK_WITH(
      NotImplementedError,
      reduction != ReduceOp::AVG || at::isFloatingType(type),
      "the emulated NCCL has no ReduceOp.AVG of ", type);
}

}  // namespace atlas
