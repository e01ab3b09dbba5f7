// The threads of the kernels: started at the first use, asleep between two uses.

#pragma once

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>

#include <algorithm>
#include <mutex>
#include <type_traits>
#include <vector>

#include "job_ticket.h"
#include "worker_context.h"

namespace tandem {

using CpuSet = std::vector<int>;  // numbers of logical CPUs; empty: any

// Pins a thread to some CPUs. Where the kernel refuses, its affinity stays as it is.
inline void pin_thread(pthread_t thread, const CpuSet& cpus) {
  if (cpus.empty()) return;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (int cpu : cpus) {
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(cpu, &mask);
  }
  pthread_setaffinity_np(thread, sizeof mask, &mask);
}

// Pins the calling thread while this exists: it is Python's and does other things, and threads that
// it starts would inherit the affinity.
class ScopedAffinity {
 public:
  explicit ScopedAffinity(const CpuSet& cpus)
      : is_set_(!cpus.empty() && sched_getaffinity(0, sizeof before_, &before_) == 0) {
    if (is_set_) pin_thread(pthread_self(), cpus);
  }
  ~ScopedAffinity() {
    if (is_set_) sched_setaffinity(0, sizeof before_, &before_);
  }
  ScopedAffinity(const ScopedAffinity&) = delete;
  ScopedAffinity& operator=(const ScopedAffinity&) = delete;

 private:
  cpu_set_t before_;
  const bool is_set_;
};

// A fixed number of threads, of which the calling thread is always one.
class ThreadPool {
 public:
  // Thread n is pinned to `cpus[n]`; none is if `cpus` is empty.
  ThreadPool(int threads, std::vector<CpuSet> cpus)
      : threads_(threads), cpus_(std::move(cpus)), alive_(threads) {
    spins_ = threads <= cpus_of_process();
    sigset_t all, before;
    // Signals are Python's, and go to its threads.
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int number = 1; number < threads; ++number) start(number);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  // Ends the threads; the last one deletes this. No job may be under way.
  void retire() {
    retired_.store(true);
    ticket_.skip();
    release();
  }

  // Calls work(worker) in the calling thread, and in up to `workers` - 1 others as they come.
  template <class Work>
  void run(int workers, Work& work) {
    const ScopedAffinity affinity(cpus_of(0));
    first_phase_ = phases_.current();
    workers_ = workers;
    context_ = &work;
    call_ = [](void* context, WorkerContext& worker) { (*static_cast<Work*>(context))(worker); };
    ticket_.open(workers - 1);
    WorkerContext worker(workers, phases_, first_phase_, spins_);
    work(worker);
    ticket_.close(spins_);
  }

 private:
  const int threads_;
  const std::vector<CpuSet> cpus_;
  bool spins_;
  std::atomic<int> alive_;  // threads, and the owner
  std::atomic<bool> retired_{false};
  WorkPhases phases_;

  // The job. It is written while the ticket is closed.
  uint32_t first_phase_ = 0;
  int workers_ = 1;
  void* context_ = nullptr;
  void (*call_)(void*, WorkerContext&) = nullptr;

  JobTicket ticket_;

  static int cpus_of_process() {
    cpu_set_t mask;
    return sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : INT_MAX;
  }

  void release() {
    if (alive_.fetch_sub(1) == 1) delete this;
  }

  CpuSet cpus_of(int number) const { return cpus_.empty() ? CpuSet{} : cpus_[number]; }

  void start(int number) {
    pthread_t thread;
    if (pthread_create(&thread, nullptr, &ThreadPool::main_of, this) == 0) {
      char name[16];
      snprintf(name, sizeof name, "tandem-cpu-%d", number);
      pthread_setname_np(thread, name);
      pin_thread(thread, cpus_of(number));
      pthread_detach(thread);
      return;
    }
    // Fewer threads can do the work, too.
    --alive_;
  }

  static void* main_of(void* argument) {
    ThreadPool* pool = static_cast<ThreadPool*>(argument);
    pool->work();
    pool->release();
    return nullptr;
  }

  void work() {
    uint32_t job = 0;
    for (;;) {
      job = ticket_.wait(job, spins_);
      if (retired_.load()) return;
      if (!ticket_.try_enter(job)) continue;
      WorkerContext worker(workers_, phases_, first_phase_, spins_);
      call_(context_, worker);
      ticket_.leave();
    }
  }
};

// The thread pool of this process, for one caller at a time.
class SharedPool {
 public:
  static SharedPool& of_process() {
    SharedPool* shared = current().load();
    if (shared) return *shared;
    SharedPool* made = new SharedPool;
    if (current().compare_exchange_strong(shared, made)) {
      static const int registered = pthread_atfork(nullptr, nullptr, [] {
        // The child has the memory and none of the threads, and another process's cores.
        current().store(nullptr);
      });
      (void)registered;
      return *made;
    }
    delete made;
    return *shared;
  }

  static int num_threads() { return threads_of_process().load(); }

  void set(int threads, std::vector<CpuSet> cpus) {
    const std::lock_guard<std::mutex> lock(mutex_);
    threads_of_process().store(threads);
    cpus_ = std::move(cpus);
    if (pool_) pool_->retire();
    pool_ = nullptr;
  }

  template <class Work>
  void run(int workers, Work& work) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!pool_) pool_ = new ThreadPool(num_threads(), cpus_);
    pool_->run(std::min(workers, num_threads()), work);
  }

 private:
  std::mutex mutex_;
  std::vector<CpuSet> cpus_;
  ThreadPool* pool_ = nullptr;

  static std::atomic<SharedPool*>& current() {
    static std::atomic<SharedPool*> shared{nullptr};
    return shared;
  }
  static std::atomic<int>& threads_of_process() {
    static std::atomic<int> threads{1};
    return threads;
  }
};

// With fewer operations for a thread, waking it costs more than it saves.
constexpr int64_t kOperationsPerThread = 1 << 15;

// Calls work(worker) in as many threads as suit so many operations. Calls from several threads run
// one after the other. `work` must not call this.
template <class Work>
inline void run_in_pool(int64_t operations, Work&& work) {
  const int64_t useful = 1 + operations / kOperationsPerThread;
  const int workers = static_cast<int>(std::min<int64_t>(useful, SharedPool::num_threads()));
  if (workers > 1) {
    SharedPool::of_process().run(workers, work);
    return;
  }
  WorkerContext alone;
  work(alone);
}

}  // namespace tandem
