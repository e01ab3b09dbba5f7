// Threads that compute one thing together, and how they share its work out.
//
// Every worker calls a kernel with the same arguments and takes pieces of its work until none is
// left (dynamic scheduling). So one call can hold one kernel or a whole forward pass.
//
// A worker waits for pieces, never for another worker: one that has lost its core to another
// process takes none, and when it is back, it skips what the others have done meanwhile. Only a
// worker that loses its core in the middle of a piece delays the others, so pieces are small.

#pragma once

#include <cstdint>

#include "cache_line.h"
#include "futex_event.h"

namespace tandem {

// The work that workers share: one phase after another, each in pieces.
class WorkPhases {
 public:
  // The number of the phase that is under way.
  uint32_t current() const { return AtomicPair::upper(now_.load()); }

  // A piece of `phase`, or -1: none is left.
  int64_t take(uint32_t phase, int64_t pieces) {
    uint64_t now = now_.load();
    while (AtomicPair::upper(now) == phase && AtomicPair::lower(now) < pieces) {
      if (now_.replace(now, now + 1)) return AtomicPair::lower(now);
    }
    return -1;
  }

  // Counts a piece as done; the last one begins the next phase.
  void finish(uint32_t phase, int64_t pieces) {
    if (done_.fetch_add(1) + 1 < pieces) return;
    done_.store(0);
    now_.store(AtomicPair::of(phase + 1, 0));
    next_.notify();
  }

  // Waits until all pieces of `phase` are done, and what they wrote can be read.
  void wait(uint32_t phase, bool spins) { next_.wait(phase, spins); }

 private:
  alignas(kCacheLine) AtomicPair now_;  // the phase, and its next piece
  alignas(kCacheLine) std::atomic<int64_t> done_{0};
  alignas(kCacheLine) FutexEvent<true> next_{now_};
};

class WorkerContext;

// The numbers of [0, count) that one worker gets, for a range-based loop that ends when the numbers
// of all workers are done.
class DynamicRange {
 public:
  struct End {};

  class Iterator {
   public:
    Iterator(WorkerContext& worker, int64_t count, int64_t at_once);
    int64_t operator*() const { return at_; }
    bool operator!=(End) const { return at_ < end_; }
    void operator++();

   private:
    WorkerContext& worker_;
    const int64_t count_, at_once_, pieces_;
    int64_t at_ = 0, end_ = 0;

    void take();
  };

  DynamicRange(WorkerContext& worker, int64_t count, int64_t at_once)
      : worker_(worker), count_(count), at_once_(at_once) {}
  Iterator begin() { return Iterator(worker_, count_, at_once_); }
  End end() const { return {}; }

 private:
  WorkerContext& worker_;
  int64_t count_, at_once_;
};

// What a kernel knows of the threads that compute it.
class WorkerContext {
 public:
  // The only worker.
  WorkerContext() : num_workers(1) {}
  WorkerContext(int workers, WorkPhases& phases, uint32_t first, bool spins)
      : num_workers(workers), phases_(&phases), phase_(first), spins_(spins) {}
  WorkerContext(const WorkerContext&) = delete;
  WorkerContext& operator=(const WorkerContext&) = delete;

  const int num_workers;

  // for (int64_t number : worker.each(count)): one number at a time, for long work.
  DynamicRange each(int64_t count) { return DynamicRange(*this, count, 1); }

  // The same in runs of numbers, two a worker, for short work.
  DynamicRange each_in_runs(int64_t count) {
    return DynamicRange(*this, count, 1 + (count - 1) / (2 * num_workers));
  }

 private:
  friend class DynamicRange::Iterator;
  WorkPhases* const phases_ = nullptr;
  uint32_t phase_ = 0;
  const bool spins_ = false;
};

inline DynamicRange::Iterator::Iterator(WorkerContext& worker, int64_t count, int64_t at_once)
    : worker_(worker),
      count_(count),
      at_once_(at_once),
      pieces_(count > 0 ? (count + at_once - 1) / at_once : 0) {
  if (!worker_.phases_) {
    end_ = count_;
  } else if (pieces_ > 0) {
    take();
  }
}

inline void DynamicRange::Iterator::operator++() {
  if (++at_ < end_ || !worker_.phases_) return;
  worker_.phases_->finish(worker_.phase_, pieces_);
  take();
}

inline void DynamicRange::Iterator::take() {
  const int64_t piece = worker_.phases_->take(worker_.phase_, pieces_);
  if (piece < 0) {
    worker_.phases_->wait(worker_.phase_++, worker_.spins_);
    at_ = end_ = 0;
    return;
  }
  at_ = piece * at_once_;
  end_ = at_ + at_once_ < count_ ? at_ + at_once_ : count_;
}

}  // namespace tandem
