// A stand-in for NCCL: gloo moves the bytes, NCCL's rules decide what may move.
//
// It is an ordinary c10d backend of an ordinary ProcessGroup, so that callers,
// the dispatcher and batch_isend_irecv take the ways they take on a GPU.
//
// [Note: streams] NCCL runs what it is given in order, on CUDA streams. Here a
// stream is a thread with a queue. As in ProcessGroupNCCL, collectives and batches
// of messages share one stream per group, and single sends and receives have one
// per pair of ranks. A send ends when its receive has begun. Two ranks that both
// send first, each before its receive, therefore wait for each other until the
// group's timeout, while the same messages in one batch pass.
//
// [Note: agreement] Before a collective the ranks exchange its terms (operation,
// size, type, reduction, root), and before a message its size and type. NCCL does
// not check: it would hang, or mix up bytes. Here every rank gets an error.

#include "device.h"
#include "rules.h"
#include "stream.h"
#include "wire.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/library.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace atlas {
namespace {

class StandIn final : public c10d::Backend {
 public:
  StandIn(
      BackendPtr gloo, c10::intrusive_ptr<c10d::Store> store,
      std::chrono::milliseconds timeout)
      : Backend(gloo->getRank(), gloo->getSize()),
        wire_(std::make_shared<Wire>(gloo, gloo->getRank(), gloo->getSize())),
        store_(std::move(store)),
        options_(c10::make_intrusive<Options>("nccl", timeout)) {}

  const std::string getBackendName() const override { return "nccl"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  bool supportsCoalescing() const override { return true; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void setTimeout(std::chrono::milliseconds timeout) override {
    options_->timeout = timeout;
    wire_->gloo->setTimeout(timeout);
  }

  // ------------------------------------------------------------- collectives

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    return all_reduce(tensors, opts);
  }

  WorkPtr allreduce_coalesced(
      Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override {
    return all_reduce(tensors, opts);
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override {
    check_tensors(Op::broadcast, tensors);
    Terms terms = terms_of(Op::broadcast, tensors[0]);
    terms.root = opts.rootRank;
    return collective(
        OpType::BROADCAST, terms, tensors, tensors,
        [lent = lend(tensors), opts](Wire& wire) mutable {
          return wire.gloo->broadcast(lent, opts);
        });
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override {
    check_tensors(Op::reduce, tensors);
    Terms terms = reducing(Op::reduce, tensors[0], opts.reduceOp);
    terms.root = opts.rootRank;
    return collective(
        OpType::REDUCE, terms, tensors, tensors,
        [lent = lend(tensors), opts](Wire& wire) mutable {
          return wire.gloo->reduce(lent, opts);
        });
  }

  WorkPtr allgather(
      std::vector<Tensors>& outputs, Tensors& inputs,
      const c10d::AllgatherOptions& opts) override {
    const Tensors all = join(flatten(outputs), inputs);
    check_tensors(Op::all_gather, all);
    check_count(Op::all_gather, outputs[0].size(), size_);
    check_count(Op::all_gather, outputs[0][rank_].numel(), inputs[0].numel());
    for (const auto& output : outputs[0]) {
      if (output.numel() != inputs[0].numel()) return uneven(outputs[0], inputs[0]);
    }
    return collective(
        OpType::ALLGATHER, terms_of(Op::all_gather, inputs[0]), all,
        flatten(outputs),
        [out = lend(outputs), in = lend(inputs), opts](Wire& wire) mutable {
          return wire.gloo->allgather(out, in, opts);
        });
  }

  WorkPtr _allgather_base(
      Tensor& output, Tensor& input, const c10d::AllgatherOptions& opts) override {
    check_tensors(Op::all_gather_single, {output, input});
    check_count(Op::all_gather_single, output.numel(), input.numel() * size_);
    return collective(
        OpType::_ALLGATHER_BASE, terms_of(Op::all_gather_single, input),
        {output, input}, {output},
        [out = lend_flat(output), in = lend_flat(input), opts](Wire& wire) mutable {
          return wire.gloo->_allgather_base(out, in, opts);
        });
  }

  WorkPtr allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs,
      const c10d::AllgatherOptions& opts) override {
    return each(outputs, inputs, [&](Tensor& out, Tensor& in) {
      return _allgather_base(out, in, opts);
    });
  }

  WorkPtr reduce_scatter(
      Tensors& outputs, std::vector<Tensors>& inputs,
      const c10d::ReduceScatterOptions& opts) override {
    const Tensors all = join(flatten(inputs), outputs);
    check_tensors(Op::reduce_scatter, all);
    check_count(Op::reduce_scatter, inputs[0].size(), size_);
    check_count(Op::reduce_scatter, inputs[0][rank_].numel(), outputs[0].numel());
    Terms terms = reducing(Op::reduce_scatter, outputs[0], opts.reduceOp);
    terms.count = total(inputs[0]);
    return collective(
        OpType::REDUCE_SCATTER, terms, all, outputs,
        [out = lend(outputs), in = lend(inputs), opts](Wire& wire) mutable {
          return wire.gloo->reduce_scatter(out, in, opts);
        });
  }

  WorkPtr _reduce_scatter_base(
      Tensor& output, Tensor& input,
      const c10d::ReduceScatterOptions& opts) override {
    check_tensors(Op::reduce_scatter_single, {output, input});
    check_count(Op::reduce_scatter_single, input.numel(), output.numel() * size_);
    return collective(
        OpType::_REDUCE_SCATTER_BASE,
        reducing(Op::reduce_scatter_single, output, opts.reduceOp), {output, input},
        {output},
        [out = lend_flat(output), in = lend_flat(input), opts](Wire& wire) mutable {
          return wire.gloo->_reduce_scatter_base(out, in, opts);
        });
  }

  WorkPtr reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs,
      const c10d::ReduceScatterOptions& opts) override {
    return each(outputs, inputs, [&](Tensor& out, Tensor& in) {
      return _reduce_scatter_base(out, in, opts);
    });
  }

  WorkPtr gather(
      std::vector<Tensors>& outputs, Tensors& inputs,
      const c10d::GatherOptions& opts) override {
    const Tensors all = join(flatten(outputs), inputs);
    check_tensors(Op::gather, all);
    Terms terms = terms_of(Op::gather, inputs[0]);
    terms.root = opts.rootRank;
    return collective(
        OpType::GATHER, terms, all, flatten(outputs),
        [out = lend(outputs), in = lend(inputs), opts](Wire& wire) mutable {
          return wire.gloo->gather(out, in, opts);
        });
  }

  WorkPtr scatter(
      Tensors& outputs, std::vector<Tensors>& inputs,
      const c10d::ScatterOptions& opts) override {
    const Tensors all = join(flatten(inputs), outputs);
    check_tensors(Op::scatter, all);
    Terms terms = terms_of(Op::scatter, outputs[0]);
    terms.root = opts.rootRank;
    return collective(
        OpType::SCATTER, terms, all, outputs,
        [out = lend(outputs), in = lend(inputs), opts](Wire& wire) mutable {
          return wire.gloo->scatter(out, in, opts);
        });
  }

  WorkPtr alltoall_base(
      Tensor& output, Tensor& input, std::vector<int64_t>& output_splits,
      std::vector<int64_t>& input_splits,
      const c10d::AllToAllOptions& opts) override {
    check_tensors(Op::all_to_all_single, {output, input});
    Terms terms = terms_of(Op::all_to_all_single, input);
    terms.count = 0;  // may differ between ranks; the splits are compared instead
    return collective(
        OpType::ALLTOALL_BASE, terms, {output, input}, {output},
        [out = lend(output), in = lend(input), output_splits, input_splits,
         sent = elements(input, input_splits),
         expected = elements(output, output_splits),
         opts](Wire& wire) mutable {
          wire.agree_on_splits(sent, expected);
          return wire.gloo->alltoall_base(
              out, in, output_splits, input_splits, opts);
        });
  }

  // Gloo has no list form: the lists are laid out in two flat tensors.
  WorkPtr alltoall(
      Tensors& outputs, Tensors& inputs,
      const c10d::AllToAllOptions& opts) override {
    const Tensors all = join(outputs, inputs);
    check_tensors(Op::all_to_all, all);
    check_count(Op::all_to_all, outputs.size(), size_);
    check_count(Op::all_to_all, inputs.size(), size_);
    Terms terms = terms_of(Op::all_to_all, inputs[0]);
    terms.count = 0;
    return collective(
        OpType::ALLTOALL, terms, all, outputs,
        [out = lend(outputs), in = lend(inputs), opts](Wire& wire) -> WorkPtr {
          auto sent = sizes_of(in), expected = sizes_of(out);
          wire.agree_on_splits(sent, expected);
          Tensor from = pack(in), to = at::empty({total(out)}, from.options());
          const auto parts = to.split_with_sizes(expected);
          wire.gloo->alltoall_base(to, from, expected, sent, opts)->wait();
          for (size_t r = 0; r < out.size(); ++r) out[r].view(-1).copy_(parts[r]);
          return nullptr;
        });
  }

  // To have agreed is to have met.
  WorkPtr barrier(const c10d::BarrierOptions&) override {
    return collective(
        OpType::BARRIER, Terms{Op::barrier}, {}, {},
        [](Wire&) -> WorkPtr { return nullptr; });
  }

  // ---------------------------------------------------------------- messages

  WorkPtr send(Tensors& tensors, int peer, int tag) override {
    return message(Op::send, OpType::SEND, tensors, peer, tag);
  }

  WorkPtr recv(Tensors& tensors, int peer, int tag) override {
    return message(Op::recv, OpType::RECV, tensors, peer, tag);
  }

  WorkPtr recvAnysource(Tensors&, int) override {
    TORCH_CHECK_WITH(
        NotImplementedError, false, "NCCL does not support recvAnysource: it "
        "cannot receive from anyone; name the source, recv(tensor, src=...)");
  }

  void startCoalescing() override { coalescing_ = std::make_shared<Coalesced>(); }

  WorkPtr endCoalescing() override {
    const auto gathered = std::move(coalescing_);
    coalescing_ = nullptr;
    if (!gathered || (gathered->messages.empty() && gathered->tasks.empty())) {
      return nullptr;
    }
    return enqueue(
        kGroup, OpType::COALESCED, gathered->outputs, [gathered](Wire& wire) {
          for (const auto& task : gathered->tasks) task(wire);
          run_batch(wire, gathered->messages);
        });
  }

 private:
  using Task = std::function<void(Wire&)>;
  static constexpr int kGroup = -1;

  // What lies between startCoalescing and endCoalescing.
  struct Coalesced {
    std::vector<Task> tasks;
    std::vector<Message> messages;
    Tensors outputs;
  };

  // Checked on the caller's thread; agreed on and run on the group's stream.
  template <typename Body>
  WorkPtr collective(
      OpType type, const Terms& terms, const Tensors& tensors, Tensors outputs,
      Body body) {
    use_device(
        terms.op, tensors.empty() ? current : tensors[0].device().index());
    ++sequence_;
    Task task = [terms, body = std::move(body)](Wire& wire) mutable {
      wire.agree(terms);
      if (const WorkPtr work = body(wire)) work->wait();
    };
    if (!coalescing_) {
      return enqueue(kGroup, type, std::move(outputs), std::move(task));
    }
    coalescing_->tasks.push_back(std::move(task));
    coalescing_->outputs = join(coalescing_->outputs, outputs);
    return nullptr;  // as on NCCL: the handle comes with endCoalescing
  }

  WorkPtr message(Op op, OpType type, Tensors& tensors, int peer, int tag) {
    check_tensors(op, tensors);
    check_count(op, tensors.size(), 1);
    TORCH_CHECK_WITH(
        ValueError, tag == 0, "NCCL ", name_of(op), ": NCCL has no tags, and tag=",
        tag, " was given; messages between two ranks arrive in order");
    TORCH_CHECK_WITH(
        ValueError, peer != rank_, "NCCL ", name_of(op), ": rank ", rank_,
        " is its own peer; copy the tensor instead");
    use_device(op, tensors[0].device().index());
    Message one{op, peer, lend(tensors[0]), terms_of(op, tensors[0])};
    if (!coalescing_) {
      return enqueue(
          peer, type, tensors,
          [one](Wire& wire) { run_single(wire, one); });
    }
    coalescing_->messages.push_back(std::move(one));
    coalescing_->outputs = join(coalescing_->outputs, tensors);
    return nullptr;
  }

  // `on` is the peer of a single message, or kGroup.
  WorkPtr enqueue(int on, OpType type, Tensors outputs, Task task) {
    const std::lock_guard<std::mutex> hold(lock_);
    const c10::Device device(c10::kCUDA, device_);
    auto job = c10::make_intrusive<Job>(rank_, type, std::move(outputs), device);
    auto& stream = streams_[on];
    if (!stream) stream = std::make_unique<Stream>();
    stream->add([job, task = std::move(task), wire = wire_]() mutable {
      job->run([&] { task(*wire); });
    });
    return job;
  }

  // A rank brings one device to a group, chosen with set_device, and no two
  // ranks on one host bring the same.
  void use_device(Op op, c10::DeviceIndex device) {
    const std::lock_guard<std::mutex> hold(lock_);
    if (device_ == device) return;
    TORCH_CHECK_WITH(
        DistBackendError, device_ < 0, "NCCL ", name_of(op), ": this rank used "
        "cuda:", static_cast<int>(device_), " in this group, and now cuda:",
        static_cast<int>(device));
    TORCH_CHECK_WITH(
        DistBackendError, current == device, "NCCL ", name_of(op),
        ": the tensor is on cuda:", static_cast<int>(device),
        " but the current device is cuda:", static_cast<int>(current),
        "; call torch.cuda.set_device(local_rank) before the first collective");
    claim(device);
    device_ = device;
  }

  void claim(c10::DeviceIndex device) {
    char host[256] = {};
    gethostname(host, sizeof(host) - 1);
    const auto key = c10::str("device/", host, "/", static_cast<int>(device));
    const auto me = std::to_string(rank_);
    const auto owner = store_->compareSet(key, "", me);
    TORCH_CHECK_WITH(
        DistBackendError, owner == me, "ncclInvalidUsage: Duplicate GPU detected : "
        "rank ", me, " and rank ", owner, " both on CUDA device ",
        static_cast<int>(device), "; call torch.cuda.set_device(local_rank) first");
  }

  void check_count(Op op, int64_t given, int64_t wanted) const {
    TORCH_CHECK_WITH(
        ValueError, given == wanted, "NCCL ", name_of(op), ": ", given,
        " given where ", wanted, " are needed on ", size_, " ranks");
  }

  Terms reducing(Op op, const Tensor& one, const ReduceOp& reduction) const {
    const ReduceOp::RedOpType kind = reduction.op_;
    check_reduction(kind, one.scalar_type());
    Terms terms = terms_of(op, one);
    terms.reduction = kind;
    return terms;
  }

  WorkPtr all_reduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
    check_tensors(Op::all_reduce, tensors);
    Terms terms = reducing(Op::all_reduce, tensors[0], opts.reduceOp);
    terms.count = total(tensors);
    return collective(
        OpType::ALLREDUCE, terms, tensors, tensors,
        [lent = lend(tensors), opts](Wire& wire) -> WorkPtr {
          for (const auto& one : lent) {
            Tensors single{one};
            wire.gloo->allreduce(single, opts)->wait();
          }
          return nullptr;
        });
  }

  // NCCL's backend gathers tensors of different sizes by p broadcasts.
  WorkPtr uneven(const Tensors& outputs, const Tensor& input) {
    Terms terms = terms_of(Op::all_gather, input);
    terms.count = total(outputs);
    return collective(
        OpType::ALLGATHER, terms, join(outputs, {input}), outputs,
        [out = lend(outputs), in = lend(input)](Wire& wire) -> WorkPtr {
          wire.agree_on_splits(
              std::vector<int64_t>(out.size(), in.numel()), sizes_of(out));
          out[wire.rank].view(-1).copy_(in.view(-1));
          for (int root = 0; root < wire.size; ++root) {
            c10d::BroadcastOptions opts;
            opts.rootRank = root;
            Tensors one{out[root]};
            wire.gloo->broadcast(one, opts)->wait();
          }
          return nullptr;
        });
  }

  // The coalesced forms: one handle for many calls.
  template <typename One>
  WorkPtr each(Tensors& outputs, Tensors& inputs, One one) {
    const bool outermost = !coalescing_;
    if (outermost) startCoalescing();
    try {
      for (size_t i = 0; i < outputs.size(); ++i) one(outputs[i], inputs[i]);
    } catch (...) {
      if (outermost) coalescing_ = nullptr;
      throw;
    }
    return outermost ? endCoalescing() : nullptr;
  }

  std::vector<int64_t> elements(
      const Tensor& tensor, const std::vector<int64_t>& splits) const {
    const auto rows = tensor.dim() ? tensor.size(0) : 1;
    const auto row = rows ? tensor.numel() / rows : 0;
    if (splits.empty()) {
      TORCH_CHECK_WITH(
          ValueError, rows % size_ == 0, "NCCL all_to_all_single: ", rows,
          " rows do not divide by ", size_, " ranks; give the split sizes");
      return std::vector<int64_t>(size_, rows / size_ * row);
    }
    check_count(Op::all_to_all_single, splits.size(), size_);
    std::vector<int64_t> counts;
    int64_t sum = 0;
    for (const auto split : splits) {
      counts.push_back(split * row);
      sum += split;
    }
    check_count(Op::all_to_all_single, sum, rows);
    return counts;
  }

  static std::vector<int64_t> sizes_of(const Tensors& tensors) {
    std::vector<int64_t> sizes;
    for (const auto& tensor : tensors) sizes.push_back(tensor.numel());
    return sizes;
  }

  static Tensor pack(const Tensors& tensors) {
    Tensors flat;
    for (const auto& tensor : tensors) flat.push_back(tensor.reshape(-1));
    return at::cat(flat);
  }

  std::shared_ptr<Wire> wire_;
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<Options> options_;
  std::mutex lock_;
  c10::DeviceIndex device_ = -1;  // the one this rank uses in this group
  uint64_t sequence_ = 0;
  std::shared_ptr<Coalesced> coalescing_;
  std::map<int, std::unique_ptr<Stream>> streams_;  // of the group, of each pair
};

// Gives `group` the stand-in as its backend for cuda, over the gloo of `gloo`.
void attach_nccl(
    const c10::intrusive_ptr<c10d::ProcessGroup>& group,
    const c10::intrusive_ptr<c10d::ProcessGroup>& gloo, int64_t timeout_ms) {
  group->setBackend(
      c10::kCUDA, c10d::ProcessGroup::BackendType::NCCL,
      c10::make_intrusive<StandIn>(
          gloo->getBackend(c10::kCPU), group->getStore(),
          std::chrono::milliseconds(timeout_ms)));
}

TORCH_LIBRARY_FRAGMENT(atlas_emulate, m) {
  m.def("attach_nccl", attach_nccl);
}

}  // namespace

void finish_streams() { Stream::finish_all(); }

}  // namespace atlas
