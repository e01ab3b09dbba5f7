// Ranks as threads of one process, for sanitizers: each has its own World in the same memory, and
// calls every collective many times; the sums and copies must be right.
//
// Built and run by tools/check_native.py. Exits with 1 at the first wrong result.

#include <stdio.h>
#include <stdlib.h>

#include <memory>
#include <thread>

#include "collectives.h"

using namespace tandem;

namespace {

constexpr int kRanks = 3;
constexpr int64_t kSlotBytes = 4096;
constexpr int64_t kCounts[] = {0, 1, 17, 1024, 1025, 9001};

void require(bool is_right, const char* what, int rank, int64_t count) {
  if (is_right) return;
  fprintf(stderr, "rank %d: %s of %lld is wrong\n", rank, what, static_cast<long long>(count));
  exit(1);
}

// A call that failed says why.
void require_call(bool is_done, const World& world, int rank, int64_t count) {
  if (is_done) return;
  fprintf(stderr, "rank %d: fault %lld of rank %d\n", rank,
          static_cast<long long>(world.fault()), world.culprit());
  require(false, "a call", rank, count);
}

float value(int rank, int64_t at) { return static_cast<float>(rank + 1) * (at % 13); }

float sum_of_ranks(int64_t at) {
  float sum = 0;
  for (int rank = 0; rank < kRanks; ++rank) sum += value(rank, at);
  return sum;
}

std::vector<float> values(int rank, int64_t count) {
  std::vector<float> found(count);
  for (int64_t at = 0; at < count; ++at) found[at] = value(rank, at);
  return found;
}

template <class Expected>
bool equals(const std::vector<float>& found, Expected&& expected) {
  for (size_t at = 0; at < found.size(); ++at) {
    if (found[at] != expected(static_cast<int64_t>(at))) return false;
  }
  return true;
}

void reduce(World& world, Lane& lane, int rank, int64_t count) {
  std::vector<float> data = values(rank, count);
  require_call(world.all_reduce(lane, data.data(), count, 0), world, rank, count);
  require(equals(data, sum_of_ranks), "all_reduce", rank, count);

  const std::vector<float> whole = values(rank, kRanks * count);
  std::vector<float> piece(count);
  require_call(world.reduce_scatter(lane, whole.data(), piece.data(), count, 0), world, rank,
               count);
  require(equals(piece, [&](int64_t at) { return sum_of_ranks(lane.me * count + at); }),
          "reduce_scatter", rank, count);
}

void copy(World& world, Lane& lane, int rank, int64_t count) {
  const std::vector<float> piece = values(rank, count);
  std::vector<float> all(kRanks * count);
  const auto bytes = [](auto& some) { return reinterpret_cast<uint8_t*>(some.data()); };
  require_call(world.all_gather(lane, reinterpret_cast<const uint8_t*>(piece.data()), bytes(all),
                           count * sizeof(float), 0),
               world, rank, count);
  require(equals(all, [&](int64_t at) { return value(lane.ranks[at / count], at % count); }),
          "all_gather", rank, count);

  for (int root = 0; root < kRanks; ++root) {
    std::vector<float> data = values(rank, count);
    require_call(world.broadcast(lane, bytes(data), count * sizeof(float), root, 0), world, rank,
                 count);
    require(equals(data, [&](int64_t at) { return value(lane.ranks[root], at); }), "broadcast",
            rank, count);
  }

  // Along a chain: the first sends, the others receive and send on what they got.
  std::vector<float> data = values(rank, count);
  if (rank > 0) {
    Lane& before = world.segment().pair(rank - 1, rank);
    require_call(world.send(before, bytes(data), count * sizeof(float), 0, 0), world, rank, count);
  }
  if (rank + 1 < kRanks) {
    Lane& behind = world.segment().pair(rank, rank + 1);
    require_call(world.send(behind, bytes(data), count * sizeof(float), 0, 0), world, rank, count);
  }
  require(equals(data, [](int64_t at) { return value(0, at); }), "send", rank, count);
}

void run(uint8_t* base, int rank, int64_t spin_us) {
  const int64_t sizes[] = {kRanks, kRanks}, ranks[] = {0, 1, 2, 2, 0, 1};
  const WorldArgs args{rank, kRanks, 2, sizes, ranks, kSlotBytes, 60'000, 600'000, spin_us};
  World world(base, args);
  // Some process that lives on: what qemu makes up of this one in /proc differs by the thread.
  require(world.join(getppid(), 1, 60'000), "join", rank, 0);
  for (int turn = 0; turn < 20; ++turn) {
    for (const int64_t count : kCounts) {
      for (int group = 0; group < 2; ++group) {
        reduce(world, world.segment().lane(group), rank, count);
        copy(world, world.segment().lane(group), rank, count);
      }
    }
  }
  if (rank == 1) world.abort(1, "enough", 6);
  // The others get here at different times; each finds the end at its next call but a few.
  std::vector<float> data(5000);
  while (world.all_reduce(world.segment().lane(0), data.data(), 5000, 0)) continue;
  require(world.fault() == Fault::kFailed && world.culprit() == 1, "abort", rank, 0);
  world.leave();
}

}  // namespace

int main() {
  const int64_t sizes[] = {kRanks, kRanks}, ranks[] = {0, 1, 2, 2, 0, 1};
  const WorldArgs args{0, kRanks, 2, sizes, ranks, kSlotBytes, 0, 0, 0};
  const int64_t bytes = WorldSegment(nullptr, args).bytes();
  for (const int64_t spin_us : {0, 50}) {
    uint8_t* const base = static_cast<uint8_t*>(aligned_alloc(kPage, bytes));
    memset(base, 0, bytes);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) threads.emplace_back(run, base, rank, spin_us);
    for (std::thread& thread : threads) thread.join();
    free(base);
  }
  return 0;
}
