// Admission of threads to one job after another.

#pragma once

#include "cache_line.h"
#include "futex_event.h"

namespace tandem {

// A job is open for a number of threads until the caller closes it; those that come later skip it.
class JobTicket {
 public:
  // Opens the next job for up to `threads`, and wakes as many. The previous job must be closed.
  void open(int threads) {
    next(static_cast<uint32_t>(threads) * kAdmission);
    opened_.notify(threads);
  }

  // Admits no more threads, and waits until the admitted ones have left.
  void close(bool spins) {
    uint64_t now = state_.keep(~uint64_t{kAdmissions});
    while (AtomicPair::lower(now)) now = left_.wait(AtomicPair::lower(now), spins);
  }

  // Begins a job that admits no thread, and wakes all of them.
  void skip() {
    next(0);
    opened_.notify();
  }

  // Waits for a job after `job`, and returns its number.
  uint32_t wait(uint32_t job, bool spins) {
    return AtomicPair::upper(opened_.wait(job, spins));
  }

  // False if `job` is closed or full. A thread that enters must leave.
  bool try_enter(uint32_t job) {
    uint64_t now = state_.load();
    while (AtomicPair::upper(now) == job && AtomicPair::lower(now) >= kAdmission) {
      if (state_.replace(now, now - kAdmission + 1)) return true;
    }
    return false;
  }

  void leave() {
    state_.add(~uint64_t{0});  // one thread less inside
    left_.notify();
  }

 private:
  // The lower half of the state: threads inside, and how many more may enter.
  static constexpr uint32_t kAdmission = 1 << 16;
  static constexpr uint32_t kAdmissions = ~(kAdmission - 1);

  alignas(kCacheLine) AtomicPair state_;  // the number of the job, and its threads
  FutexEvent<true> opened_{state_};
  FutexEvent<false> left_{state_};

  void next(uint32_t threads) {
    state_.store(AtomicPair::of(AtomicPair::upper(state_.load()) + 1, threads));
  }
};

}  // namespace tandem
