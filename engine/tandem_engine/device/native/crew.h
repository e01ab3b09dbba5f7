// The threads of a team: made at the first use, asleep between two uses.

#pragma once

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>

#include <algorithm>
#include <mutex>
#include <type_traits>
#include <vector>

#include "team.h"

namespace tandem {

using CpuSet = std::vector<int>;  // numbers of logical CPUs; empty: any

// Puts a thread on some CPUs. Where the kernel refuses, it stays where it may be.
inline void put_on(pthread_t thread, const CpuSet& cpus) {
  if (cpus.empty()) return;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (int cpu : cpus) {
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(cpu, &mask);
  }
  pthread_setaffinity_np(thread, sizeof mask, &mask);
}

// Puts the calling thread on some CPUs while this exists: it is Python's, and does other things,
// and threads that it starts would stay there.
class Visit {
 public:
  explicit Visit(const CpuSet& cpus)
      : came_(!cpus.empty() && sched_getaffinity(0, sizeof before_, &before_) == 0) {
    if (came_) put_on(pthread_self(), cpus);
  }
  ~Visit() {
    if (came_) sched_setaffinity(0, sizeof before_, &before_);
  }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

 private:
  cpu_set_t before_;
  const bool came_;
};

// Members but the calling thread, which is always one.
class Crew {
 public:
  // Members work on `places` [members], each a set of CPUs; or anywhere, if there are none.
  Crew(int members, std::vector<CpuSet> places)
      : members_(members), places_(std::move(places)), alive_(members) {
    spins_ = members <= cpus_of_process();
    sigset_t all, before;
    // Signals are Python's, and go to its threads.
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int number = 1; number < members; ++number) start(number);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  // Lets the threads go; the last one deletes this. No job may be under way.
  void retire() {
    retired_.store(true);
    gate_.store(Pair::of(Pair::upper(gate_.load()) + 1, 0));
    jobs_.ring();
    release();
  }

  // Calls work(team) in the calling thread, and in up to `size` - 1 others as they come.
  template <class Work>
  void run(int size, Work& work) {
    const Visit visit(place(0));
    first_part_ = parts_.part();
    size_ = size;
    context_ = &work;
    call_ = [](void* context, Team& team) { (*static_cast<Work*>(context))(team); };
    gate_.store(Pair::of(Pair::upper(gate_.load()) + 1, uint32_t(size - 1) * kPlace));
    jobs_.ring(size - 1);
    Team team(size, parts_, first_part_, spins_);
    work(team);
    uint64_t now = gate_.keep(~uint64_t{kPlaces});
    while (Pair::lower(now)) now = leaving_.wait(Pair::lower(now), spins_);
  }

 private:
  // The lower half of the gate: how many are inside, and how many more may enter.
  static constexpr uint32_t kPlace = 1 << 16;
  static constexpr uint32_t kPlaces = ~(kPlace - 1);

  const int members_;
  const std::vector<CpuSet> places_;
  bool spins_;
  std::atomic<int> alive_;  // threads, and the hall
  std::atomic<bool> retired_{false};
  Parts parts_;

  // The job. It is written while the gate is shut.
  uint32_t first_part_ = 0;
  int size_ = 1;
  void* context_ = nullptr;
  void (*call_)(void*, Team&) = nullptr;

  alignas(64) Pair gate_;  // the number of the job, and who is inside
  Bell<true> jobs_{gate_};
  Bell<false> leaving_{gate_};

  static int cpus_of_process() {
    cpu_set_t mask;
    return sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : INT_MAX;
  }

  void release() {
    if (alive_.fetch_sub(1) == 1) delete this;
  }

  CpuSet place(int number) const { return places_.empty() ? CpuSet{} : places_[number]; }

  void start(int number) {
    pthread_t thread;
    if (pthread_create(&thread, nullptr, &Crew::main_of, this) == 0) {
      char name[16];
      snprintf(name, sizeof name, "tandem-cpu-%d", number);
      pthread_setname_np(thread, name);
      put_on(thread, place(number));
      pthread_detach(thread);
      return;
    }
    // Fewer do the work as well.
    --alive_;
  }

  static void* main_of(void* argument) {
    Crew* crew = static_cast<Crew*>(argument);
    crew->work();
    crew->release();
    return nullptr;
  }

  void work() {
    uint32_t seen = 0;
    for (;;) {
      uint64_t now = jobs_.wait(seen, spins_);
      seen = Pair::upper(now);
      if (retired_.load()) return;
      if (!enter(now)) continue;
      Team team(size_, parts_, first_part_, spins_);
      call_(context_, team);
      gate_.add(~uint64_t{0});  // one less inside
      leaving_.ring();
    }
  }

  bool enter(uint64_t now) {
    const uint32_t job = Pair::upper(now);
    while (Pair::upper(now) == job && Pair::lower(now) >= kPlace) {
      if (gate_.replace(now, now - kPlace + 1)) return true;
    }
    return false;
  }
};

// The crew of this process, for one caller at a time.
class Hall {
 public:
  static Hall& of_process() {
    Hall* hall = current().load();
    if (hall) return *hall;
    Hall* made = new Hall;
    if (current().compare_exchange_strong(hall, made)) {
      static const int registered = pthread_atfork(nullptr, nullptr, [] {
        // The child has the memory and none of the threads, and another process's cores.
        current().store(nullptr);
      });
      (void)registered;
      return *made;
    }
    delete made;
    return *hall;
  }

  static int members() { return members_of_process().load(); }

  void set(int members, std::vector<CpuSet> places) {
    const std::lock_guard<std::mutex> turn(turn_);
    members_of_process().store(members);
    places_ = std::move(places);
    if (crew_) crew_->retire();
    crew_ = nullptr;
  }

  template <class Work>
  void run(int size, Work& work) {
    const std::lock_guard<std::mutex> turn(turn_);
    if (!crew_) crew_ = new Crew(members(), places_);
    crew_->run(std::min(size, members()), work);
  }

 private:
  std::mutex turn_;
  std::vector<CpuSet> places_;
  Crew* crew_ = nullptr;

  static std::atomic<Hall*>& current() {
    static std::atomic<Hall*> hall{nullptr};
    return hall;
  }
  static std::atomic<int>& members_of_process() {
    static std::atomic<int> members{1};
    return members;
  }
};

// Below so many operations waking others costs more than it saves.
constexpr int64_t kWorthATeam = 1 << 15;

// Calls work(team) in the members of a team that suits so many operations. Callers from several
// threads take turns. `work` must not call this.
template <class Work>
inline void in_team(int64_t operations, Work&& work) {
  const int64_t useful = 1 + operations / kWorthATeam;
  const int size = static_cast<int>(std::min<int64_t>(useful, Hall::members()));
  if (size > 1) {
    Hall::of_process().run(size, work);
    return;
  }
  Team alone;
  work(alone);
}

}  // namespace tandem
