// The gloo group under the stand-in: agreement, and messages between two ranks.
#pragma once

#include "device.h"
#include "rules.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <future>
#include <map>
#include <mutex>
#include <sstream>
#include <utility>
#include <vector>

namespace atlas {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

inline Tensor lend(const Tensor& tensor) {
  const Tensor cpu = as_cpu(tensor.detach());
  return is_float8(cpu.scalar_type()) ? cpu.view(at::kByte) : cpu;
}

inline Tensor lend_flat(const Tensor& tensor) { return lend(tensor).view(-1); }

inline Tensors lend(const Tensors& tensors) {
  Tensors lent;
  for (const auto& tensor : tensors) lent.push_back(lend(tensor));
  return lent;
}

inline std::vector<Tensors> lend(const std::vector<Tensors>& lists) {
  std::vector<Tensors> lent;
  for (const auto& list : lists) lent.push_back(lend(list));
  return lent;
}

inline Tensors flatten(const std::vector<Tensors>& lists) {
  Tensors all;
  for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

inline Tensors join(Tensors first, const Tensors& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// The gloo group underneath. Collectives come from one thread only; messages
// come from several, hence the lock around their start.
struct Wire {
  BackendPtr gloo;
  int rank, size;
  std::mutex lock;

  Wire(BackendPtr gloo, int rank, int size)
      : gloo(std::move(gloo)), rank(rank), size(size) {}

  WorkPtr send(Tensor tensor, int peer, int tag) {
    Tensors one{std::move(tensor)};
    const std::lock_guard<std::mutex> hold(lock);
    return gloo->send(one, peer, tag);
  }
  WorkPtr recv(Tensor tensor, int peer, int tag) {
    Tensors one{std::move(tensor)};
    const std::lock_guard<std::mutex> hold(lock);
    return gloo->recv(one, peer, tag);
  }

  std::vector<Tensor> all_gather(Tensor mine) {
    std::vector<Tensors> all(1);
    for (int r = 0; r < size; ++r) all[0].push_back(at::empty_like(mine));
    Tensors input{std::move(mine)};
    gloo->allgather(all, input)->wait();
    return all[0];
  }

  void agree(const Terms& mine) {
    const auto said = all_gather(mine.pack());
    bool same = true;
    std::ostringstream text;
    for (int r = 0; r < size; ++r) {
      const Terms theirs = Terms::unpack(said[r]);
      same &= theirs == mine;
      text << (r ? ", " : "") << "rank " << r << " calls " << theirs.text();
    }
    TORCH_CHECK_WITH(
        DistBackendError, same, "NCCL would hang or mix up bytes here: the ranks "
        "disagree: ", text.str());
  }

  // What rank s sends to rank r must be what r expects of s, for all s and r.
  void agree_on_splits(
      const std::vector<int64_t>& sent, const std::vector<int64_t>& expected) {
    auto mine = sent;
    mine.insert(mine.end(), expected.begin(), expected.end());
    const auto said = all_gather(at::tensor(mine, at::kLong));
    for (int s = 0; s < size; ++s) {
      for (int r = 0; r < size; ++r) {
        const auto out = said[s].const_data_ptr<int64_t>()[r];
        const auto in = said[r].const_data_ptr<int64_t>()[size + s];
        TORCH_CHECK_WITH(
            DistBackendError, out == in, "NCCL would hang or mix up bytes here: "
            "the ranks disagree: in all_to_all rank ", s, " sends ", out,
            " elements to rank ", r, ", which expects ", in);
      }
    }
  }
};

struct Message {
  Op op;
  int peer;
  Tensor lent;
  Terms terms;
};

// Tags of gloo, so that a batch never meets a single message.
struct Lane {
  int terms, bytes;
};
constexpr Lane kSingle{0, 1}, kBatch{2, 3};

struct Sending {
  WorkPtr terms, bytes;
  void wait() const {
    terms->wait();
    bytes->wait();
  }
};

inline Sending begin_send(Wire& wire, const Message& message, Lane lane) {
  return {
      wire.send(message.terms.pack(), message.peer, lane.terms),
      wire.send(message.lent, message.peer, lane.bytes)};
}

inline void receive(Wire& wire, const Message& message, Lane lane) {
  Tensor packed = at::empty({Terms::kFields}, at::kLong);
  wire.recv(packed, message.peer, lane.terms)->wait();
  const Terms sent = Terms::unpack(packed);
  TORCH_CHECK_WITH(
      DistBackendError,
      sent.count == message.terms.count && sent.dtype == message.terms.dtype,
      "NCCL would hang or mix up bytes here: the ranks disagree: rank ",
      message.peer, " calls ", sent.text(), ", rank ", wire.rank, " calls ",
      message.terms.text());
  wire.recv(message.lent, message.peer, lane.bytes)->wait();
}

inline void run_single(Wire& wire, const Message& message) {
  if (message.op == Op::send) {
    begin_send(wire, message, kSingle).wait();
  } else {
    receive(wire, message, kSingle);
  }
}

// All messages of a batch progress at once; those from one peer keep their order.
inline void run_batch(Wire& wire, const std::vector<Message>& batch) {
  std::vector<Sending> sendings;
  std::map<int, std::vector<const Message*>> from;
  for (const auto& message : batch) {
    if (message.op == Op::send) {
      sendings.push_back(begin_send(wire, message, kBatch));
    } else {
      from[message.peer].push_back(&message);
    }
  }
  const auto policy =
      from.size() > 1 ? std::launch::async : std::launch::deferred;
  std::vector<std::future<void>> receiving;
  for (const auto& item : from) {
    receiving.push_back(std::async(policy, [&wire, &messages = item.second] {
      for (const auto* message : messages) receive(wire, *message, kBatch);
    }));
  }
  for (auto& each : receiving) each.get();
  for (const auto& each : sendings) each.wait();
}

}  // namespace atlas
