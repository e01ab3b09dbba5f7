// Layout of the memory that the ranks of one host share, all zeros when it begins:
//
//   WorldHeader | RankHeader of each rank | lane | lane | …         each part begins a page
//   lane: Member of each of its ranks | slots of each of them that sends
//
// A lane is where some ranks exchange data in one order of calls: a lane for each group, and one for
// each ordered pair of ranks. Nothing in it is an address: each process maps it elsewhere.

#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "cache_line.h"
#include "vectors.h"

namespace tandem {

constexpr int64_t kPage = 4096;
constexpr int64_t kNumSlots = 4;     // data of so many rounds are in flight
constexpr int64_t kNumRecords = 64;  // calls of each member; more than can be in flight
constexpr int64_t kCauseBytes = 1024;

// As Python declares a world; all ranks declare the same, except the rank and the times.
struct WorldArgs {
  int64_t rank;
  int64_t size;
  int64_t num_groups;
  const int64_t* group_sizes;
  const int64_t* group_ranks;  // of all groups, one behind another
  int64_t slot_bytes;          // a power of 2, a cache line at least
  int64_t timeout_ms;
  int64_t endless_ms;
  int64_t spin_us;
};

enum class RankState : uint32_t { kAbsent, kJoining, kJoined, kLeft };

struct alignas(kPage) WorldHeader {
  std::atomic<uint32_t> failed;  // 1 + the rank that found the first fault; 0: none
  // By how much longer than `timeout_ms` a rank may compute between two calls, given the steps at
  // hand; 0: that is not known.
  std::atomic<int64_t> expected_ms;
};

struct alignas(kPage) RankHeader {
  std::atomic<RankState> state;
  int64_t pid;
  uint64_t start_time;
  uint64_t digest;  // of what it has declared
  // The fault that it found, written before WorldHeader::failed.
  int64_t culprit;
  int64_t cause_length;
  char cause[kCauseBytes];
  // Calls that it has begun, and rounds that it has published. Only native code reads it.
  std::atomic<uint64_t> progress;
  std::atomic<int32_t> listens_to;  // 1 + the rank that it waits for outside of calls; 0: none
};

struct CallRecord {
  std::atomic<uint64_t> number;  // 1 + the number of the call in its lane; 0: none
  std::atomic<uint64_t> order;   // among all calls of the rank
  std::atomic<uint64_t> signature;
};

// What the other members see of one. Its counters are of rounds, modulo 2^32, and change a lot;
// so they have a cache line, and its neighbour, which is prefetched with it, for themselves.
struct alignas(kPage) Member {
  std::atomic<uint32_t> written;  // its slots hold the data of so many rounds
  std::atomic<uint32_t> reduced;  // and sums of so many
  std::atomic<uint32_t> read;     // it needs nothing more of so many, of any slot
  std::atomic<uint32_t> sleepers;
  std::atomic<int32_t> cpu;         // that it ran on when it made its last call
  std::atomic<int32_t> waits_for;   // 1 + the rank that it sleeps for; 0: none
  std::atomic<uint64_t> signature;  // of that call
  alignas(kApart) CallRecord records[kNumRecords];
};

using Counter = std::atomic<uint32_t> Member::*;

static_assert(std::atomic<uint64_t>::is_always_lock_free, "processes share no locks");

// One process's view of a lane.
struct Lane {
  std::vector<int> ranks;
  int me = -1;
  std::vector<Member*> members;
  std::vector<uint8_t*> slots;  // null: that member never sends
  uint64_t round = 0;
  uint64_t number = 0;  // of the next call
};

class WorldSegment {
 public:
  WorldSegment(uint8_t* base, const WorldArgs& args) : base_(base), size_(args.size) {
    next_ = (1 + args.size) * kPage;
    const int64_t* ranks = args.group_ranks;
    for (int64_t group = 0; group < args.num_groups; ++group) {
      add({ranks, ranks + args.group_sizes[group]}, args, true);
      ranks += args.group_sizes[group];
    }
    first_pair_ = args.num_groups;
    for (int source = 0; source < args.size; ++source) {
      for (int target = 0; target < args.size; ++target) add({source, target}, args, false);
    }
  }

  int64_t bytes() const { return next_; }
  int64_t size() const { return size_; }
  int64_t num_lanes() const { return static_cast<int64_t>(lanes_.size()); }
  Lane& lane(int64_t at) { return lanes_[at]; }
  Lane& pair(int64_t source, int64_t target) {
    return lanes_[first_pair_ + source * size_ + target];
  }
  WorldHeader& header() const { return *reinterpret_cast<WorldHeader*>(base_); }
  RankHeader& rank(int64_t at) const {
    return *reinterpret_cast<RankHeader*>(base_ + (1 + at) * kPage);
  }

 private:
  uint8_t* base_;
  int64_t size_, next_, first_pair_;
  std::vector<Lane> lanes_;

  uint8_t* take(int64_t bytes) {
    uint8_t* const at = base_ ? base_ + next_ : nullptr;
    next_ += round_up(bytes, kPage);
    return at;
  }

  void add(std::vector<int> ranks, const WorldArgs& args, bool all_send) {
    Lane lane;
    for (size_t at = 0; at < ranks.size(); ++at) {
      if (ranks[at] == args.rank) lane.me = static_cast<int>(at);
      lane.members.push_back(reinterpret_cast<Member*>(take(sizeof(Member))));
    }
    for (size_t at = 0; at < ranks.size(); ++at) {
      const bool sends = all_send || at == 0;
      lane.slots.push_back(sends ? take(kNumSlots * args.slot_bytes) : nullptr);
    }
    lane.ranks = std::move(ranks);
    lanes_.push_back(std::move(lane));
  }
};

}  // namespace tandem
