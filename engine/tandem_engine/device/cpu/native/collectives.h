// Collectives of the ranks of one host, through memory that they share.
//
// Data goes in rounds, each as much as a slot holds: a member writes its part into its slot, counts
// the round, and others read it there. A slot is written again when all have read it. Of a small
// tensor every rank reads all of it from every rank and sums by itself; of a larger one each rank
// sums its piece of a round and the others read the sum, three rounds in flight.
//
// Sums are of the ranks' values in the order of the ranks, in float, and rounded once; so all ranks
// get the same bits, however large the tensor.

#pragma once

#include <string.h>

#include <algorithm>
#include <memory>

#include "collective_peers.h"

namespace tandem {

enum class Operation : uint64_t { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kSend };

// Largest tensor that all ranks read as a whole.
constexpr int64_t kReadWhole = 32 << 10;

// The call that all members of a lane must make at the same number. It has no pointers.
struct Call {
  Operation operation;
  uint64_t type;   // of the elements, as shared_memory.py counts them
  uint64_t root;   // of a broadcast; of a send the group that its caller named
  uint64_t bytes;

  // Everything but the order, in 64 bits, of which the lowest are the number, modulo 1024.
  uint64_t signature(uint64_t number) const {
    return (number & kNumberMask) | static_cast<uint64_t>(operation) << 10 | type << 13 |
           root << 16 | bytes << 24;
  }
  static constexpr uint64_t kNumberMask = 1023;
};

// An empty tensor may have no address, which memcpy does not take.
inline void copy_bytes(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) memcpy(to, from, bytes);
}

// Sums pieces of `count` values in the order of `sources`.
template <class T, class Store>
inline void sum_in_order(const std::vector<const T*>& sources, int64_t count, Store&& store_sum) {
  const auto sum = [&](int64_t at, int64_t some) {
    Floats total = load_up_to(sources[0] + at, some);
    for (size_t source = 1; source < sources.size(); ++source) {
      total += load_up_to(sources[source] + at, some);
    }
    store_sum(at, total, some);
  };
  each(count, [&](int64_t at) { sum(at, kLanes); }, sum);
}

class World {
 public:
  World(uint8_t* base, const WorldArgs& args)
      : segment_(base, args),
        peers_(segment_, args),
        rank_(static_cast<int>(args.rank)),
        slot_bytes_(args.slot_bytes) {}

  Fault fault() const { return peers_.fault(); }
  int culprit() const { return peers_.culprit(); }
  WorldSegment& segment() { return segment_; }
  Peers& peers() { return peers_; }

  bool join(int64_t pid, uint64_t digest, int64_t timeout_ms) {
    RankHeader& own = segment_.rank(rank_);
    RankState absent = RankState::kAbsent;
    if (!own.state.compare_exchange_strong(absent, RankState::kJoining)) {
      return peers_.fail(Fault::kTaken, rank_);
    }
    own.pid = pid;
    own.start_time = peers_.state_of(rank_).start_time;
    own.digest = digest;
    own.state.store(RankState::kJoined);
    peers_.wake_all();
    for (int rank = 0; rank < segment_.size(); ++rank) {
      if (!peers_.wait_until_joined(rank, std::chrono::milliseconds(timeout_ms))) return false;
      if (segment_.rank(rank).digest != digest) return peers_.fail(Fault::kMismatch, rank);
      peers_.state_of(rank);  // opens its file
    }
    return peers_.is_well();
  }

  void leave() {
    segment_.rank(rank_).state.store(RankState::kLeft);
    peers_.wake_all();
  }

  // Makes every call of every rank return Fault::kFailed from now on; the first cause stays.
  void abort(int64_t culprit, const char* cause, int64_t length) {
    RankHeader& own = segment_.rank(rank_);
    uint32_t none = 0;
    if (segment_.header().failed.load() != none) return;
    // One cause a rank: a second thread would tear that of the first, which it waits for.
    if (is_aborting_.exchange(true)) {
      while (segment_.header().failed.load() == none) sched_yield();
      return;
    }
    own.culprit = culprit;
    own.cause_length = std::min(length, kCauseBytes);
    memcpy(own.cause, cause, own.cause_length);
    segment_.header().failed.compare_exchange_strong(none, static_cast<uint32_t>(rank_) + 1);
    peers_.wake_all();
  }

  template <class T>
  bool all_reduce(Lane& lane, T* data, int64_t count, uint64_t type) {
    const int64_t bytes = count * sizeof(T);
    if (!begin(lane, {Operation::kAllReduce, type, 0, static_cast<uint64_t>(bytes)})) return false;
    const bool is_small = bytes <= std::min(kReadWhole, slot_bytes_);
    return is_small ? reduce_whole(lane, data, count) : reduce_pieces(lane, data, count);
  }

  // Piece number `me` of the sum of `in`, which has a piece for each member.
  template <class T>
  bool reduce_scatter(Lane& lane, const T* in, T* out, int64_t piece, uint64_t type) {
    const int64_t members = static_cast<int64_t>(lane.members.size());
    const uint64_t bytes = piece * members * sizeof(T);
    if (!begin(lane, {Operation::kReduceScatter, type, 0, bytes})) return false;
    const int64_t share = slot_bytes_ / members;  // in whole cache lines, if it holds any
    const int64_t whole = share < kCacheLine ? share : share / kCacheLine * kCacheLine;
    const int64_t each_at_once = whole / sizeof(T);
    const auto part = [&](int64_t round) {
      return std::min(each_at_once, piece - round * each_at_once);
    };
    const auto write = [&](int64_t round) {
      T* const slot = slot_of<T>(lane, lane.me, lane.round + round);
      for (int64_t member = 0; member < members; ++member) {
        if (member == lane.me) continue;
        copy_bytes(slot + member * each_at_once, in + member * piece + round * each_at_once,
               part(round) * sizeof(T));
      }
    };
    const auto read = [&](int64_t round) {
      std::vector<const T*> sources = slots_of<T>(lane, lane.round + round);
      for (const T*& source : sources) source += lane.me * each_at_once;
      sources[lane.me] = in + lane.me * piece + round * each_at_once;
      T* const to = out + round * each_at_once;
      sum_in_order(sources, part(round), [&](int64_t at, Floats sum, int64_t some) {
        store_up_to(to + at, sum, some);
      });
    };
    return exchange(lane, rounds_of(piece, each_at_once), write, read);
  }

  // `out` has a piece of each member, in their order; it may contain `in` at its place.
  bool all_gather(Lane& lane, const uint8_t* in, uint8_t* out, int64_t piece, uint64_t type) {
    const int64_t members = static_cast<int64_t>(lane.members.size());
    if (!begin(lane, {Operation::kAllGather, type, 0, static_cast<uint64_t>(piece)})) return false;
    const auto part = [&](int64_t round) {
      return std::min(slot_bytes_, piece - round * slot_bytes_);
    };
    uint8_t* const own = out + lane.me * piece;
    if (own != in) copy_bytes(own, in, piece);
    const auto write = [&](int64_t round) {
      copy_bytes(slot_of<uint8_t>(lane, lane.me, lane.round + round), own + round * slot_bytes_,
             part(round));
    };
    const auto read = [&](int64_t round) {
      for (int64_t member = 0; member < members; ++member) {
        if (member == lane.me) continue;
        copy_bytes(out + member * piece + round * slot_bytes_,
               slot_of<uint8_t>(lane, member, lane.round + round), part(round));
      }
    };
    return exchange(lane, rounds_of(piece, slot_bytes_), write, read);
  }

  // The root goes on when its data are in its slots: it waits for no reader but for a free slot.
  bool broadcast(Lane& lane, uint8_t* data, int64_t bytes, int64_t root, uint64_t type) {
    const Call call{Operation::kBroadcast, type, static_cast<uint64_t>(root),
                    static_cast<uint64_t>(bytes)};
    return begin(lane, call) && pass_on(lane, data, bytes, root);
  }

  // To or from another rank, through the lane of the two. `group` is the lane that the caller named.
  bool send(Lane& pair, uint8_t* data, int64_t bytes, int64_t group, uint64_t type) {
    const Call call{Operation::kSend, type, static_cast<uint64_t>(group),
                    static_cast<uint64_t>(bytes)};
    return begin(pair, call) && pass_on(pair, data, bytes, 0);
  }

 private:
  WorldSegment segment_;
  Peers peers_;
  const int rank_;
  const int64_t slot_bytes_;
  std::atomic<bool> is_aborting_{false};
  std::atomic<uint64_t> order_{0};  // calls of all lanes; those of one come from one thread at a time

  // An empty tensor has a round, too: so no member is ever more calls ahead than there are slots.
  static int64_t rounds_of(int64_t length, int64_t at_once) {
    return std::max<int64_t>(1, (length + at_once - 1) / at_once);
  }

  template <class T>
  T* slot_of(const Lane& lane, int64_t member, uint64_t round) const {
    return reinterpret_cast<T*>(lane.slots[member] + round % kNumSlots * slot_bytes_);
  }

  template <class T>
  std::vector<const T*> slots_of(const Lane& lane, uint64_t round) const {
    std::vector<const T*> slots(lane.members.size());
    for (size_t member = 0; member < slots.size(); ++member) {
      slots[member] = slot_of<T>(lane, member, round);
    }
    return slots;
  }

  // Records the call and compares it with those of the members that have come to it. Of two members
  // at least one finds the other's, since each writes its own before it reads.
  bool begin(Lane& lane, const Call& call) {
    if (!peers_.is_well()) return false;
    const uint64_t number = ++lane.number;
    const uint64_t signature = call.signature(number);
    Member& own = *lane.members[lane.me];
    CallRecord& record = own.records[number % kNumRecords];
    record.number.store(number, std::memory_order_relaxed);
    record.order.store(++order_, std::memory_order_relaxed);
    record.signature.store(signature, std::memory_order_relaxed);
    own.cpu.store(sched_getcpu(), std::memory_order_relaxed);
    own.signature.store(signature);
    peers_.count_progress();
    for (size_t member = 0; member < lane.members.size(); ++member) {
      if (!agrees(*lane.members[member], number, signature)) {
        return peers_.fail(Fault::kMismatch, lane.ranks[member]);
      }
    }
    return true;
  }

  static bool agrees(const Member& member, uint64_t number, uint64_t signature) {
    const uint64_t other = member.signature.load();
    const uint64_t ahead = (other - number) & Call::kNumberMask;
    if (ahead == 0) return other == signature;
    if (ahead > kNumSlots) return true;  // it is behind, and will compare
    const CallRecord& record = member.records[number % kNumRecords];
    return record.number.load(std::memory_order_relaxed) != number ||
           record.signature.load(std::memory_order_relaxed) == signature;
  }

  // Writes rounds, and reads those of the others one round behind: then they are mostly there.
  template <class Write, class Read>
  bool exchange(Lane& lane, int64_t rounds, const Write& write, const Read& read) {
    for (int64_t at = 0; at <= rounds; ++at) {
      if (at < rounds && !write_round(lane, at, write)) return false;
      if (at == 0 && rounds > 1) continue;
      const int64_t behind = rounds > 1 ? at - 1 : at;
      if (behind < rounds && !read_round(lane, behind, read)) return false;
    }
    lane.round += rounds;
    return true;
  }

  template <class Write>
  bool write_round(Lane& lane, int64_t at, const Write& write) {
    const uint64_t round = lane.round + at;
    if (round >= kNumSlots && !peers_.wait_for_all(lane, &Member::read, round + 1 - kNumSlots)) {
      return false;
    }
    write(at);
    peers_.publish(lane, &Member::written, round + 1);
    return true;
  }

  template <class Read>
  bool read_round(Lane& lane, int64_t at, const Read& read) {
    const uint64_t round = lane.round + at;
    if (!peers_.wait_for_all(lane, &Member::written, round + 1)) return false;
    read(at);
    peers_.publish(lane, &Member::read, round + 1);
    return true;
  }

  template <class T>
  bool reduce_whole(Lane& lane, T* data, int64_t count) {
    const auto write = [&](int64_t) {
      copy_bytes(slot_of<T>(lane, lane.me, lane.round), data, count * sizeof(T));
    };
    const auto read = [&](int64_t) {
      sum_in_order(slots_of<T>(lane, lane.round), count, [&](int64_t at, Floats sum, int64_t some) {
        store_up_to(data + at, sum, some);
      });
    };
    return exchange(lane, 1, write, read);
  }

  // Each member sums its piece of a round, in its slot, and all read the pieces of all.
  template <class T>
  bool reduce_pieces(Lane& lane, T* data, int64_t count) {
    const Pieces<T> pieces{data, count, slot_bytes_ / static_cast<int64_t>(sizeof(T)),
                           static_cast<int64_t>(lane.members.size())};
    const int64_t rounds = rounds_of(count, pieces.at_once);
    for (int64_t at = 0; at < rounds + 2; ++at) {
      if (at < rounds && !write_round(lane, at, [&](int64_t it) { give(lane, pieces, it); })) {
        return false;
      }
      if (at >= 1 && at <= rounds && !reduce_round(lane, pieces, at - 1)) return false;
      if (at >= 2 && !gather_round(lane, pieces, at - 2)) return false;
    }
    lane.round += rounds;
    return true;
  }

  // A tensor in rounds of `at_once` values, each in a piece for each member.
  template <class T>
  struct Pieces {
    T* data;
    int64_t count, at_once, members;

    T* begin_of(int64_t round) const { return data + round * at_once; }
    int64_t length_of(int64_t round) const { return std::min(at_once, count - round * at_once); }
    int64_t first(int64_t round, int64_t member) const {
      const int64_t length = length_of(round);
      const int64_t each = (length + members - 1) / members;
      return std::min(length, member * round_up(each, kCacheLine / int64_t{sizeof(T)}));
    }
    int64_t length(int64_t round, int64_t member) const {
      return first(round, member + 1) - first(round, member);
    }
  };

  template <class T>
  void give(const Lane& lane, const Pieces<T>& pieces, int64_t at) const {
    T* const slot = slot_of<T>(lane, lane.me, lane.round + at);
    const T* const from = pieces.begin_of(at);
    const int64_t begin = pieces.first(at, lane.me), end = pieces.first(at, lane.me + 1);
    copy_bytes(slot, from, begin * sizeof(T));
    copy_bytes(slot + end, from + end, (pieces.length_of(at) - end) * sizeof(T));
  }

  template <class T>
  bool reduce_round(const Lane& lane, const Pieces<T>& pieces, int64_t at) {
    const uint64_t round = lane.round + at;
    if (!peers_.wait_for_all(lane, &Member::written, round + 1)) return false;
    const int64_t first = pieces.first(at, lane.me);
    std::vector<const T*> sources = slots_of<T>(lane, round);
    for (const T*& source : sources) source += first;
    T* const own = pieces.begin_of(at) + first;
    T* const slot = slot_of<T>(lane, lane.me, round) + first;
    sources[lane.me] = own;
    sum_in_order(sources, pieces.length(at, lane.me), [&](int64_t i, Floats sum, int64_t some) {
      store_up_to(own + i, sum, some);
      store_up_to(slot + i, sum, some);
    });
    peers_.publish(lane, &Member::reduced, round + 1);
    return true;
  }

  template <class T>
  bool gather_round(const Lane& lane, const Pieces<T>& pieces, int64_t at) {
    const uint64_t round = lane.round + at;
    if (!peers_.wait_for_all(lane, &Member::reduced, round + 1)) return false;
    for (int64_t member = 0; member < pieces.members; ++member) {
      if (member == lane.me) continue;
      const int64_t first = pieces.first(at, member);
      copy_bytes(pieces.begin_of(at) + first, slot_of<T>(lane, member, round) + first,
             pieces.length(at, member) * sizeof(T));
    }
    peers_.publish(lane, &Member::read, round + 1);
    return true;
  }

  // From the root to all others.
  bool pass_on(Lane& lane, uint8_t* data, int64_t bytes, int64_t root) {
    const int64_t rounds = rounds_of(bytes, slot_bytes_);
    for (int64_t at = 0; at < rounds; ++at) {
      uint8_t* const part = data + at * slot_bytes_;
      const int64_t length = std::min(slot_bytes_, bytes - at * slot_bytes_);
      if (lane.me == root) {
        const auto write = [&](int64_t) {
          copy_bytes(slot_of<uint8_t>(lane, root, lane.round + at), part, length);
        };
        if (!write_round(lane, at, write)) return false;
        peers_.publish(lane, &Member::read, lane.round + at + 1);
      } else {
        const uint64_t round = lane.round + at;
        if (!peers_.wait(lane, root, &Member::written, round + 1)) return false;
        copy_bytes(part, slot_of<uint8_t>(lane, root, round), length);
        peers_.publish(lane, &Member::read, round + 1);
      }
    }
    lane.round += rounds;
    return true;
  }
};

}  // namespace tandem
