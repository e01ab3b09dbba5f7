// Threads that compute one thing together.
//
// A kernel is written for a team: every member calls it with the same arguments, and takes pieces
// of its work until none is left. So one call can hold one kernel or a whole forward pass.
//
// Nobody waits for a member, only for pieces: one that has lost its core to another process takes
// none, and when it is back, it passes over what the others have done meanwhile. What can hold a
// team up is a member that loses its core in the middle of a piece, so pieces are small.

#pragma once

#include <cstdint>

#include "waiting.h"

namespace tandem {

// The work that members share out: one part after another, each in pieces.
class Parts {
 public:
  // The number of the part that is under way.
  uint32_t part() const { return Pair::upper(now_.load()); }

  // A piece of `part`, or -1: none is left.
  int64_t take(uint32_t part, int64_t pieces) {
    uint64_t now = now_.load();
    while (Pair::upper(now) == part && Pair::lower(now) < pieces) {
      if (now_.replace(now, now + 1)) return Pair::lower(now);
    }
    return -1;
  }

  // A piece is done; with the last one comes the next part.
  void put_back(uint32_t part, int64_t pieces) {
    if (done_.fetch_add(1) + 1 < pieces) return;
    done_.store(0);
    now_.store(Pair::of(part + 1, 0));
    next_.ring();
  }

  // Waits until all pieces of `part` are done, and then sees what was written in them.
  void wait(uint32_t part, bool spins) { next_.wait(part, spins); }

 private:
  alignas(64) Pair now_;  // the part, and its next piece
  alignas(64) std::atomic<int64_t> done_{0};
  alignas(64) Bell<true> next_{now_};
};

class Team;

// The numbers of [0, count) that this member gets, for a range-based loop that ends when all
// members' numbers are done.
class Turns {
 public:
  struct End {};

  class Iterator {
   public:
    Iterator(Team& team, int64_t count, int64_t at_once);
    int64_t operator*() const { return at_; }
    bool operator!=(End) const { return at_ < end_; }
    void operator++();

   private:
    Team& team_;
    const int64_t count_, at_once_, pieces_;
    int64_t at_ = 0, end_ = 0;

    void take();
  };

  Turns(Team& team, int64_t count, int64_t at_once)
      : team_(team), count_(count), at_once_(at_once) {}
  Iterator begin() { return Iterator(team_, count_, at_once_); }
  End end() const { return {}; }

 private:
  Team& team_;
  int64_t count_, at_once_;
};

// A member's view of its team.
class Team {
 public:
  // Somebody who does everything alone.
  Team() : size(1) {}
  Team(int members, Parts& parts, uint32_t first, bool spins)
      : size(members), parts_(&parts), part_(first), spins_(spins) {}
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  const int size;

  // for (int64_t number : team.each(count)): one number at a time, for what takes long.
  Turns each(int64_t count) { return Turns(*this, count, 1); }

  // The same in runs of numbers, two a member, for what is soon done.
  Turns share(int64_t count) { return Turns(*this, count, 1 + (count - 1) / (2 * size)); }

 private:
  friend class Turns::Iterator;
  Parts* const parts_ = nullptr;
  uint32_t part_ = 0;
  const bool spins_ = false;
};

inline Turns::Iterator::Iterator(Team& team, int64_t count, int64_t at_once)
    : team_(team),
      count_(count),
      at_once_(at_once),
      pieces_(count > 0 ? (count + at_once - 1) / at_once : 0) {
  if (!team_.parts_) {
    end_ = count_;
  } else if (pieces_ > 0) {
    take();
  }
}

inline void Turns::Iterator::operator++() {
  if (++at_ < end_ || !team_.parts_) return;
  team_.parts_->put_back(team_.part_, pieces_);
  take();
}

inline void Turns::Iterator::take() {
  const int64_t piece = team_.parts_->take(team_.part_, pieces_);
  if (piece < 0) {
    team_.parts_->wait(team_.part_++, team_.spins_);
    at_ = end_ = 0;
    return;
  }
  at_ = piece * at_once_;
  end_ = at_ + at_once_ < count_ ? at_ + at_once_ : count_;
}

}  // namespace tandem
