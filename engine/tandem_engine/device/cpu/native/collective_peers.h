// Waiting for the ranks of other processes, and finding out why one does not come.

#pragma once

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>

#include <algorithm>
#include <chrono>

#include "collective_segment.h"
#include "futex_event.h"

namespace tandem {

// Outcomes of a call, as shared_memory.py knows them.
enum class Fault : int64_t { kNone, kMismatch, kSilent, kEnded, kLeft, kFailed, kClosed, kTaken };

// A process as /proc has it.
struct ProcessState {
  uint64_t start_time = 0;  // ticks from the start of the machine; 0: it has ended, or is a zombie
  bool is_stopped = false;  // by a signal, or by a debugger
};

inline ProcessState state_of(int64_t pid) {
  char path[32], text[1024];
  snprintf(path, sizeof path, "/proc/%lld/stat", static_cast<long long>(pid));
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  const ssize_t length = read(file, text, sizeof text - 1);
  close(file);
  if (length <= 0) return {};
  text[length] = 0;
  const char* at = strrchr(text, ')');  // the name before it may hold anything
  char state = 'Z';
  unsigned long long start = 0;
  if (at == nullptr ||
      sscanf(at + 1, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
             &state, &start) != 2) {
    return {};
  }
  if (state == 'Z' || state == 'X') return {};
  return {start, state == 'T' || state == 't'};
}

inline uint64_t start_time_of(int64_t pid) { return state_of(pid).start_time; }

// Time for which the threads of a process have run on CPUs; zero: it has ended.
inline std::chrono::nanoseconds cpu_time_of(int64_t pid) {
  clockid_t clock;
  timespec used;
  if (clock_getcpuclockid(static_cast<pid_t>(pid), &clock) != 0) return {};
  if (clock_gettime(clock, &used) != 0) return {};
  return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
}

// The other ranks as one rank waits for them.
class Peers {
 public:
  Peers(WorldSegment& segment, int rank, int64_t timeout_ms, int64_t spin_us)
      : segment_(segment), rank_(rank), timeout_(timeout_ms), spin_(spin_us) {}

  Fault fault() const { return fault_; }
  int culprit() const { return culprit_; }

  bool fail(Fault fault, int culprit) {
    fault_ = fault;
    culprit_ = culprit;
    return false;
  }

  // False if the world has failed: no later call of any rank does anything.
  bool is_well() {
    const uint32_t failed = segment_.header().failed.load();
    return failed == 0 || fail(Fault::kFailed, static_cast<int>(failed) - 1);
  }

  // Sets a counter of this rank, and wakes the ranks that sleep for it.
  static void publish(const Lane& lane, Counter counter, uint64_t rounds) {
    Member& own = *lane.members[lane.me];
    (own.*counter).store(static_cast<uint32_t>(rounds));
    if (own.sleepers.load() > 0) wake(own.*counter);
  }

  // Waits until all other members have come to so many rounds; false: see fault().
  bool wait_for_all(const Lane& lane, Counter counter, uint64_t rounds) {
    for (size_t member = 0; member < lane.members.size(); ++member) {
      if (static_cast<int>(member) != lane.me && !wait(lane, member, counter, rounds)) return false;
    }
    return true;
  }

  bool wait(const Lane& lane, size_t member, Counter counter, uint64_t rounds) {
    Member& peer = *lane.members[member];
    const auto has_come = [&] { return is_at(peer.*counter, rounds); };
    if (has_come() || (may_spin(peer) && spin(has_come))) return true;
    peer.sleepers.fetch_add(1);
    const bool come = sleep(peer.*counter, lane.ranks[member], timeout_, has_come);
    peer.sleepers.fetch_sub(1);
    return come;
  }

  // Waits until a rank has joined.
  bool wait_until_joined(int rank, std::chrono::milliseconds timeout) {
    std::atomic<RankState>& state = segment_.rank(rank).state;
    const auto has_joined = [&] { return state.load() >= RankState::kJoined; };
    return sleep(reinterpret_cast<std::atomic<uint32_t>&>(state), rank, timeout, has_joined);
  }

  // Wakes every rank that waits for any.
  void wake_all() {
    for (int rank = 0; rank < segment_.size(); ++rank) {
      wake(reinterpret_cast<std::atomic<uint32_t>&>(segment_.rank(rank).state));
    }
    for (int64_t at = 0; at < segment_.num_lanes(); ++at) {
      for (Member* member : segment_.lane(at).members) {
        for (const Counter counter : {&Member::written, &Member::reduced, &Member::read}) {
          wake(member->*counter);
        }
      }
    }
  }

 private:
  // So often a sleeping rank checks that the one it waits for still lives.
  static constexpr std::chrono::milliseconds kSlice{100};
  // A rank that only waits uses less of a slice, except now and then; one that computes gets more,
  // though not in each slice on a busy machine. So a slice with work makes up for some without.
  static constexpr std::chrono::milliseconds kLeastWork{2};
  static constexpr int kForgiven = 10;
  static constexpr std::chrono::nanoseconds kUnknown{-1};

  WorldSegment& segment_;
  const int rank_;
  const std::chrono::milliseconds timeout_;
  const std::chrono::microseconds spin_;
  // Of the last call of the thread: one may send while another receives.
  static inline thread_local Fault fault_ = Fault::kNone;
  static inline thread_local int culprit_ = -1;

  static bool is_at(const std::atomic<uint32_t>& counter, uint64_t rounds) {
    return static_cast<int32_t>(counter.load() - static_cast<uint32_t>(rounds)) >= 0;
  }

  static void wake(std::atomic<uint32_t>& word) {
    syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }

  // One that spins keeps a peer on the same CPU from what it waits for.
  static bool may_spin(const Member& peer) {
    return peer.cpu.load(std::memory_order_relaxed) != sched_getcpu();
  }

  template <class HasCome>
  bool spin(const HasCome& has_come) const {
    constexpr int kPolls = 16;  // between two readings of the clock
    const auto end = std::chrono::steady_clock::now() + spin_;
    while (std::chrono::steady_clock::now() < end) {
      for (int poll = 0; poll < kPolls; ++poll) {
        cpu_relax();
        if (has_come()) return true;
      }
    }
    return false;
  }

  template <class HasCome>
  bool sleep(std::atomic<uint32_t>& word, int rank, std::chrono::milliseconds timeout,
             const HasCome& has_come) {
    using Clock = std::chrono::steady_clock;
    Clock::duration waited{0}, unchecked{0};
    std::chrono::nanoseconds used = kUnknown;  // most waits are too short to ask for it
    for (;;) {
      const uint32_t seen = word.load();
      if (has_come()) return true;
      if (!is_well()) return false;
      const auto begin = Clock::now();
      // The kernel compares with `seen` again before it sleeps, so no wake-up is missed.
      timespec slice{0, std::chrono::nanoseconds(kSlice).count()};
      syscall(SYS_futex, &word, FUTEX_WAIT, seen, &slice, nullptr, 0);
      // A rank that was itself stopped meanwhile does not count that as silence of the others.
      const auto elapsed = std::min<Clock::duration>(Clock::now() - begin, 2 * kSlice);
      waited += elapsed;
      unchecked += elapsed;
      const bool is_due = unchecked >= kSlice;
      if (is_due) unchecked = Clock::duration{0};
      bool runs = false;
      const bool is_gone = has_left(rank) || (is_due && has_ended(rank, runs));
      // What a rank has published before its end counts.
      if (has_come()) return true;
      // The first fault of the world is the cause of a rank's leaving.
      if (!is_well() || is_gone) return false;
      if (is_due && is_at_work(used) && runs) {
        waited = std::max(Clock::duration{0}, waited - kForgiven * kSlice);
      }
      if (waited >= timeout) return fail(Fault::kSilent, rank);
    }
  }

  bool has_left(int rank) {
    const bool left = segment_.rank(rank).state.load() == RankState::kLeft;
    return left && !fail(Fault::kLeft, rank);
  }

  bool has_ended(int rank, bool& runs) {
    const RankHeader& header = segment_.rank(rank);
    if (header.state.load() != RankState::kJoined) return false;
    const ProcessState now = state_of(header.pid);
    runs = !now.is_stopped;
    return now.start_time != header.start_time && !fail(Fault::kEnded, rank);
  }

  // True if any of the other ranks has computed since `used`: the one that is waited for, or one
  // that it waits for in turn. A stage of a pipeline may take minutes, and is not silent meanwhile.
  bool is_at_work(std::chrono::nanoseconds& used) {
    const std::chrono::nanoseconds before = used;
    used = cpu_time_of_others();
    return before != kUnknown && used - before >= kLeastWork;
  }

  std::chrono::nanoseconds cpu_time_of_others() {
    std::chrono::nanoseconds sum{0};
    for (int rank = 0; rank < segment_.size(); ++rank) {
      const RankHeader& header = segment_.rank(rank);
      const bool has_joined = header.state.load() == RankState::kJoined;
      if (rank != rank_ && has_joined) sum += cpu_time_of(header.pid);
    }
    return sum;
  }
};

}  // namespace tandem
