// Threads that run what they are given in order; see [Note: streams] in nccl.cpp.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace atlas {

using at::Tensor;
using c10d::OpType;
using Tensors = std::vector<Tensor>;

// A thread that runs what it is given, in order. See [Note: streams].
class Stream {
 public:
  using Task = std::function<void()>;

  Stream() : thread_([queue = queue_] { serve(*queue); }) {
    const std::lock_guard<std::mutex> hold(all_lock());
    all().push_back(queue_);
  }
  Stream(const Stream&) = delete;

  // Never waits for a task that waits for a peer: such a thread is left behind.
  ~Stream() {
    std::unique_lock<std::mutex> hold(queue_->lock);
    queue_->closed = true;
    const bool idle = !queue_->busy && queue_->tasks.empty();
    queue_->changed.notify_all();
    hold.unlock();
    idle ? thread_.join() : thread_.detach();
  }

  // Returns when no stream of this process has anything left to do.
  static void finish_all() {
    std::unique_lock<std::mutex> hold(all_lock());
    const auto queues = all();
    hold.unlock();
    for (const auto& weak : queues) {
      const auto queue = weak.lock();
      if (!queue) continue;
      std::unique_lock<std::mutex> inside(queue->lock);
      queue->changed.wait(
          inside, [&] { return !queue->busy && queue->tasks.empty(); });
    }
  }

  void add(Task task) {
    const std::lock_guard<std::mutex> hold(queue_->lock);
    queue_->tasks.push_back(std::move(task));
    queue_->changed.notify_all();
  }

 private:
  struct Queue {
    std::mutex lock;
    std::condition_variable changed;
    std::deque<Task> tasks;
    bool busy = false, closed = false;
  };

  static void serve(Queue& queue) {
    std::unique_lock<std::mutex> hold(queue.lock);
    for (;;) {
      queue.changed.wait(hold, [&] { return queue.closed || !queue.tasks.empty(); });
      if (queue.tasks.empty()) return;
      queue.busy = true;
      Task task = std::move(queue.tasks.front());
      queue.tasks.pop_front();
      hold.unlock();
      task();
      task = nullptr;
      hold.lock();
      queue.busy = false;
      queue.changed.notify_all();
    }
  }

  static std::mutex& all_lock() {
    static auto* it = new std::mutex;  // never destroyed: threads may outlive main
    return *it;
  }
  static std::vector<std::weak_ptr<Queue>>& all() {
    static auto* it = new std::vector<std::weak_ptr<Queue>>;
    return *it;
  }

  std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
  std::thread thread_;
};

// The handle of one task; its future holds the caller's own cuda tensors.
class Job final : public c10d::Work {
 public:
  Job(int rank, OpType type, Tensors outputs, c10::Device device)
      : Work(rank, type),
        outputs_(std::move(outputs)),
        future_(c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()),
            std::vector<c10::Device>{device})) {}

  void run(const std::function<void()>& body) {
    std::exception_ptr failure;
    try {
      body();
    } catch (...) {
      failure = std::current_exception();
    }
    if (failure) {
      future_->setError(failure);
    } else {
      future_->markCompleted(at::IValue(outputs_));
    }
    finish(failure);  // last: whoever has waited finds the future done
  }

  Tensors result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  Tensors outputs_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace atlas
