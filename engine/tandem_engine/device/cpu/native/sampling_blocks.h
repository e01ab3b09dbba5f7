// A row of logits in blocks: what workers do with all of them, and what they gather of them.

#pragma once

#include <numeric>

#include "sampling_workspace.h"

namespace tandem {

class RowBlocks {
 public:
  RowBlocks(float* logits, WorkerContext& worker, RowWorkspace& workspace)
      : logits_(logits), worker_(worker), ws_(workspace) {}

 protected:
  float* const logits_;
  WorkerContext& worker_;
  RowWorkspace& ws_;

  static constexpr int64_t kAtOnce = 8;  // blocks

  const float* block_at(int64_t block) const { return logits_ + block * kBlock; }

  // Calls body() in one worker, while the others wait.
  template <class Body>
  void single(Body&& body) {
    for (const int64_t one : worker_.each(1)) {
      (void)one;
      body();
    }
  }

  // Calls body(begin, end) for runs of blocks that make up all, in all workers.
  template <class Body>
  void each_run(Body&& body) {
    for (const int64_t run : worker_.each((ws_.blocks + kAtOnce - 1) / kAtOnce)) {
      body(run * kAtOnce, std::min(ws_.blocks, (run + 1) * kAtOnce));
    }
  }

  // Calls body(block) for all blocks, in all workers.
  template <class Body>
  void each_block(Body&& body) {
    each_run([&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) body(block);
    });
  }

  // Finds the largest logits, and the masses of the blocks if `weighs`: while logits come from
  // memory, there is time for it. A block is weighed relative to its own largest logit at first.
  void scan(double temperature, bool weighs) {
    each_block([&](int64_t block) {
      bool has_nan = false;
      const float peak = peak_of(block_at(block), ws_.length(block), has_nan);
      ws_.peaks[block] = peak;
      ws_.has_nan[block] = has_nan;
      if (!weighs) return;
      const bool is_finite = !has_nan && peak >= kLowest;
      ws_.masses[block] =
          is_finite ? mass_of(block_at(block), ws_.length(block), Weigher(peak, temperature)) : 0;
    });
    single([&] {
      find_best();
      if (weighs && !ws_.has_failed) rescale_masses(temperature);
    });
  }

  void find_best() {
    ws_.best = -kInfinity;
    bool has_nan = false;
    for (int64_t block = 0; block < ws_.blocks; ++block) {
      ws_.best = std::max(ws_.best, ws_.peaks[block]);
      has_nan |= ws_.has_nan[block];
    }
    ws_.has_failed = has_nan || !std::isfinite(ws_.best);
  }

  // From relative to a block's own largest logit to relative to the largest of all.
  void rescale_masses(double temperature) {
    const Weigher weigh(ws_.best, temperature);
    int64_t block = 0;
    for (; block + kLanes <= ws_.blocks; block += kLanes) {
      store(ws_.masses + block, load(ws_.masses + block) * weigh(load(ws_.peaks + block)));
    }
    for (; block < ws_.blocks; ++block) {
      ws_.masses[block] *= static_cast<float>(weigh.of(ws_.peaks[block]));
    }
  }

  template <class Condition>
  void gather_blocks(Condition&& condition) {
    each_run([&](int64_t begin, int64_t end) {
      if (!condition()) return;
      int64_t start = begin * kBlock;
      for (int64_t block = begin; block < end; ++block) {
        int64_t found = 0;
        if (ws_.peaks[block] >= ws_.bracket.low) {
          found = gather(block_at(block), ws_.length(block), ws_.bracket.low, ws_.bracket.high,
                         ws_.gathered + start);
        }
        ws_.starts[block] = static_cast<int32_t>(start);
        ws_.counts[block] = static_cast<int32_t>(found);
        start += found;
      }
    });
  }

  int64_t count_gathered() const {
    return std::accumulate(ws_.counts, ws_.counts + ws_.blocks, int64_t{0});
  }

  // The first gathered logit of a block; those of a run of blocks lie side by side.
  float* gathered_of(int64_t block) const { return ws_.gathered + ws_.starts[block]; }

  int64_t count_gathered(int64_t begin, int64_t end) const {
    return ws_.starts[end - 1] + ws_.counts[end - 1] - ws_.starts[begin];
  }

  // Copies the logits in the bracket of the cut to `scratch`, and returns their number.
  int64_t collect() {
    int64_t count = 0;
    for (int64_t begin = 0; begin < ws_.blocks; begin += kAtOnce) {
      const int64_t end = std::min(ws_.blocks, begin + kAtOnce);
      count += gather(gathered_of(begin), count_gathered(begin, end), ws_.cut_bracket.low,
                      ws_.cut_bracket.high, ws_.scratch + count);
    }
    return count;
  }
};

}  // namespace tandem
