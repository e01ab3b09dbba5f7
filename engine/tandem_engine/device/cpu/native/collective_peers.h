// Waiting for the ranks of other processes, and finding out why one does not come.

#pragma once

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "collective_segment.h"
#include "futex_event.h"

namespace tandem {

// Outcomes of a call, as shared_world.py knows them.
enum class Fault : int64_t {
  kNone, kMismatch, kSilent, kEnded, kLeft, kFailed, kClosed, kTaken, kEndless
};

// A process as /proc has it.
struct ProcessState {
  bool is_known = false;     // false: /proc cannot be read now, which says nothing of the process
  uint64_t start_time = 0;   // ticks from the start of the machine; 0: it has ended, or is a zombie
  bool is_stopped = false;   // by a signal, or by a debugger
};

// The file of a process in /proc, opened once: it needs no descriptor when there may be none left,
// and stays that of the same process when its number is used again.
class ProcessFile {
 public:
  ProcessFile() = default;
  ProcessFile(const ProcessFile&) = delete;
  ProcessFile& operator=(const ProcessFile&) = delete;
  ~ProcessFile() {
    if (file_.load() >= 0) close(file_.load());
  }

  ProcessState read_state(int64_t pid) {
    if (file_.load() < 0 && !open_for(pid)) return {is_gone(errno)};
    char text[1024];
    const ssize_t length = pread(file_.load(), text, sizeof text - 1, 0);
    if (length <= 0) return {length == 0 || is_gone(errno)};
    text[length] = 0;
    return parse(text);
  }

 private:
  std::atomic<int> file_{-1};

  static bool is_gone(int error) { return error == ENOENT || error == ESRCH; }

  // Two threads may come here at once; one of them gives its file back.
  bool open_for(int64_t pid) {
    char path[32];
    snprintf(path, sizeof path, "/proc/%lld/stat", static_cast<long long>(pid));
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    int none = -1;
    if (!file_.compare_exchange_strong(none, file)) close(file);
    return true;
  }

  static ProcessState parse(const char* text) {
    const char* at = strrchr(text, ')');  // the name before it may hold anything
    char state = 'Z';
    unsigned long long start = 0;
    if (at == nullptr ||
        sscanf(at + 1,
               " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
               &state, &start) != 2) {
      return {};
    }
    if (state == 'Z' || state == 'X') return {true};
    return {true, start, state == 'T' || state == 't'};
  }
};

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
  Peers(WorldSegment& segment, const WorldArgs& args)
      : segment_(segment),
        rank_(static_cast<int>(args.rank)),
        timeout_(args.timeout_ms),
        endless_(args.endless_ms),
        spin_(args.spin_us),
        files_(new ProcessFile[args.size]) {}

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
  void publish(const Lane& lane, Counter counter, uint64_t rounds) {
    Member& own = *lane.members[lane.me];
    (own.*counter).store(static_cast<uint32_t>(rounds));
    count_progress();
    if (own.sleepers.load() > 0) wake(own.*counter);
  }

  void count_progress() { segment_.rank(rank_).progress.fetch_add(1, std::memory_order_relaxed); }

  // The process of a rank, whose file is opened when it has joined.
  ProcessState state_of(int rank) { return files_[rank].read_state(segment_.rank(rank).pid); }

  // Waits until all other members have come to so many rounds; false: see fault().
  bool wait_for_all(const Lane& lane, Counter counter, uint64_t rounds) {
    for (size_t member = 0; member < lane.members.size(); ++member) {
      if (static_cast<int>(member) != lane.me && !wait(lane, member, counter, rounds)) return false;
    }
    return true;
  }

  // Adds a time of waiting for a rank outside of calls to its silence, or to that of the rank that it
  // waits for; false: see fault(). `begins`: the time before does not count.
  bool listen_to(int rank, std::chrono::milliseconds slice, bool begins) {
    static thread_local Silence silence;
    if (begins) silence = {};
    segment_.rank(rank_).listens_to.store(1 + rank, std::memory_order_relaxed);
    if (!is_well() || has_left(rank) || has_ended(rank)) return false;
    return is_in_time(silence, rank, slice, timeout_);
  }

  void stop_listening() { segment_.rank(rank_).listens_to.store(0, std::memory_order_relaxed); }

  // The longest time for which a rank may compute between two calls.
  std::chrono::milliseconds longest_work() const {
    const int64_t expected = segment_.header().expected_ms.load(std::memory_order_relaxed);
    return expected > 0 ? timeout_ + std::chrono::milliseconds(expected) : endless_;
  }

  bool wait(const Lane& lane, size_t member, Counter counter, uint64_t rounds) {
    Member& peer = *lane.members[member];
    Member& own = *lane.members[lane.me];
    const auto has_come = [&] { return is_at(peer.*counter, rounds); };
    if (has_come() || (may_spin(peer) && spin(has_come))) return true;
    peer.sleepers.fetch_add(1);
    own.waits_for.store(1 + lane.ranks[member], std::memory_order_relaxed);
    const bool come = sleep(peer.*counter, lane.ranks[member], timeout_, has_come);
    own.waits_for.store(0, std::memory_order_relaxed);
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
  using Clock = std::chrono::steady_clock;

  // So often a sleeping rank checks that the one it waits for still lives.
  static constexpr std::chrono::milliseconds kSlice{100};
  // Time on a CPU pays for so much time without progress: a rank that computes gets a twentieth of a
  // core on any machine, and one that only keeps threads alive uses far less.
  static constexpr int kPaysFor = 20;

  // And for so much of a step that is due: of a rank with a fifth of a core all time counts, as of
  // one with a core, and of one that gets less in proportion.
  static constexpr int kCountsFor = 5;

  // The time for which the rank whose turn it is has made no progress.
  struct Silence {
    int due = -1;
    uint64_t progress = 0;
    std::chrono::nanoseconds used{0};  // of its time on CPUs, at the last slice
    Clock::duration quiet{0};          // less what its work has paid for
    Clock::duration worked{0};         // in which it has computed
  };

  WorldSegment& segment_;
  const int rank_;
  const std::chrono::milliseconds timeout_;
  const std::chrono::milliseconds endless_;
  const std::chrono::microseconds spin_;
  const std::unique_ptr<ProcessFile[]> files_;
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
    Clock::duration unchecked{0};
    Silence silence;  // most waits are too short for one
    for (;;) {
      const uint32_t seen = word.load();
      if (has_come()) return true;
      if (!is_well()) return false;
      const auto begin = Clock::now();
      // The kernel compares with `seen` again before it sleeps, so no wake-up is missed.
      timespec slice{0, std::chrono::nanoseconds(kSlice).count()};
      syscall(SYS_futex, &word, FUTEX_WAIT, seen, &slice, nullptr, 0);
      // A rank that was itself stopped meanwhile does not count that as silence of the others.
      unchecked += std::min<Clock::duration>(Clock::now() - begin, 2 * kSlice);
      const bool is_due = unchecked >= kSlice;
      const bool is_gone = has_left(rank) || (is_due && has_ended(rank));
      // What a rank has published before its end counts.
      if (has_come()) return true;
      // The first fault of the world is the cause of a rank's leaving.
      if (!is_well() || is_gone) return false;
      if (!is_due) continue;
      if (!is_in_time(silence, rank, unchecked, timeout)) return false;
      unchecked = Clock::duration{0};
    }
  }

  // Adds a slice to the silence of the rank that `rank` waits for; false: it lasts too long.
  bool is_in_time(Silence& silence, int rank, Clock::duration slice,
                  std::chrono::milliseconds timeout) {
    if (!listen(silence, rank, slice)) return false;
    if (silence.quiet >= timeout) return fail(Fault::kSilent, silent_rank(silence.due));
    const bool is_endless = silence.worked >= longest_work() && has_joined(silence.due);
    return !is_endless || fail(Fault::kEndless, silence.due);
  }

  // Adds a slice to the silence of the rank that `rank` waits for; false: that has ended.
  bool listen(Silence& silence, int rank, Clock::duration slice) {
    const int due = rank_due(rank);
    if (due != rank && has_ended(due)) return false;
    const uint64_t progress = segment_.rank(due).progress.load(std::memory_order_relaxed);
    const std::chrono::nanoseconds used = cpu_time_of_rank(due);
    if (silence.due != due || silence.progress != progress) {
      silence = {due, progress, used};
      return true;
    }
    // Less than before: it has just left, and has no time any more.
    const auto work = std::max(std::chrono::nanoseconds{0}, used - silence.used);
    const auto unpaid = silence.quiet + slice - kPaysFor * work;
    silence = {due, progress, used, std::max<Clock::duration>(Clock::duration{0}, unpaid),
               silence.worked + std::min<Clock::duration>(slice, kCountsFor * work)};
    return true;
  }

  // The end of the chain of ranks that wait, each for the next: the one whose turn it is. Where they
  // wait in a circle, `rank`, which this one waits for.
  int rank_due(int rank) {
    int due = rank;
    for (int64_t step = 0; step < segment_.size(); ++step) {
      const int next = waited_for_by(due);
      if (next < 0) return due;
      due = next;
    }
    return rank;
  }

  // The rank that another one waits for; -1: for none.
  int waited_for_by(int rank) {
    const int listens_to = segment_.rank(rank).listens_to.load(std::memory_order_relaxed);
    if (listens_to > 0) return listens_to - 1;
    for (int64_t at = 0; at < segment_.num_lanes(); ++at) {
      const Lane& lane = segment_.lane(at);
      for (size_t member = 0; member < lane.ranks.size(); ++member) {
        if (lane.ranks[member] != rank) continue;
        const int waits_for = lane.members[member]->waits_for.load(std::memory_order_relaxed);
        if (waits_for > 0) return waits_for - 1;
      }
    }
    return -1;
  }

  // The rank to blame for a silence: one that is stopped, which all others may wait for in ways that
  // are not seen here, or else the one whose turn it is.
  int silent_rank(int due) {
    if (!has_joined(due) || is_stopped(due)) return due;
    for (int rank = 0; rank < segment_.size(); ++rank) {
      if (rank != rank_ && is_stopped(rank)) return rank;
    }
    return due;
  }

  bool is_stopped(int rank) { return has_joined(rank) && state_of(rank).is_stopped; }

  bool has_joined(int rank) const {
    return segment_.rank(rank).state.load() == RankState::kJoined;
  }

  bool has_left(int rank) {
    const bool left = segment_.rank(rank).state.load() == RankState::kLeft;
    return left && !fail(Fault::kLeft, rank);
  }

  bool has_ended(int rank) {
    if (!has_joined(rank)) return false;
    const ProcessState now = state_of(rank);
    if (!now.is_known) return false;
    const uint64_t joined_at = segment_.rank(rank).start_time;  // 0: it could not read its own
    const bool is_another = joined_at != 0 && now.start_time != joined_at;
    return (now.start_time == 0 || is_another) && !fail(Fault::kEnded, rank);
  }

  std::chrono::nanoseconds cpu_time_of_rank(int rank) const {
    return has_joined(rank) ? cpu_time_of(segment_.rank(rank).pid) : std::chrono::nanoseconds{0};
  }
};

}  // namespace tandem
