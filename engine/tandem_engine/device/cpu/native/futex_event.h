// Waiting of threads for one another: a short spin, then a sleep in the kernel until notified.
//
// A spin is answered within a tenth of a microsecond and burns a core; a sleep burns nothing, and
// leaves the core to other threads, perhaps the very one that is waited for.

#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>

namespace tandem {

// Longer than the pieces that other threads are busy with; a wake-up costs about as much.
constexpr std::chrono::microseconds kSpin{30};

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Two numbers of 32 bits that change together; a thread can wait for either half.
class AtomicPair {
 public:
  static uint32_t upper(uint64_t both) { return static_cast<uint32_t>(both >> 32); }
  static uint32_t lower(uint64_t both) { return static_cast<uint32_t>(both); }
  static uint64_t of(uint32_t upper, uint32_t lower) { return uint64_t{upper} << 32 | lower; }

  uint64_t load() const { return both_.load(std::memory_order_acquire); }
  void store(uint64_t to) { both_.store(to); }
  bool replace(uint64_t& old, uint64_t by) { return both_.compare_exchange_weak(old, by); }
  uint64_t add(uint64_t value) { return both_.fetch_add(value) + value; }
  uint64_t keep(uint64_t bits) { return both_.fetch_and(bits) & bits; }

  // An address at which the kernel can compare 32 bits.
  uint32_t* half(bool is_upper) {
    constexpr bool kBig = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__;
    return reinterpret_cast<uint32_t*>(&both_) + (is_upper != kBig ? 1 : 0);
  }

 private:
  std::atomic<uint64_t> both_{0};
};
static_assert(sizeof(AtomicPair) == 8);

// The event that one half of a pair changes its value.
template <bool kUpper>
class FutexEvent {
 public:
  explicit FutexEvent(AtomicPair& pair) : pair_(pair) {}

  // Returns the pair as it is when that half of it is no longer `old`.
  uint64_t wait(uint32_t old, bool spins) {
    uint64_t now = pair_.load();
    if (half_of(now) != old) return now;
    if (spins && spin(old, now)) return now;
    sleepers_.fetch_add(1);
    while (half_of(now = pair_.load()) == old) {
      // The kernel compares with `old` again before it sleeps, so no notification is missed.
      syscall(SYS_futex, pair_.half(kUpper), FUTEX_WAIT_PRIVATE, old, nullptr, nullptr, 0);
    }
    sleepers_.fetch_sub(1);
    return now;
  }

  // Wakes up to `most` sleepers; to be called after every change.
  void notify(int most = INT_MAX) {
    if (sleepers_.load() > 0) {
      syscall(SYS_futex, pair_.half(kUpper), FUTEX_WAKE_PRIVATE, most, nullptr, nullptr, 0);
    }
  }

 private:
  AtomicPair& pair_;
  std::atomic<int> sleepers_{0};

  static uint32_t half_of(uint64_t both) {
    return kUpper ? AtomicPair::upper(both) : AtomicPair::lower(both);
  }

  bool spin(uint32_t old, uint64_t& now) const {
    constexpr int kPolls = 16;  // between two readings of the clock, each as long as some polls
    const auto end = std::chrono::steady_clock::now() + kSpin;
    do {
      for (int poll = 0; poll < kPolls; ++poll) {
        cpu_relax();
        if (half_of(now = pair_.load()) != old) return true;
      }
    } while (std::chrono::steady_clock::now() < end);
    return false;
  }
};

}  // namespace tandem
