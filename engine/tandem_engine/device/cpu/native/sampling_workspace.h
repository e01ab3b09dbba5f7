// The intermediate results of sampling one row of logits.

#pragma once

#include <algorithm>
#include <vector>

#include "sampling_cut.h"
#include "worker_context.h"

namespace tandem {

// How a row is sampled, and how its logits are adjusted before.
struct SampledRow {
  double temperature;  // 0: the argmax is taken
  double margin;       // lower bound of a logit relative to the largest: 0 or less
  double top_p;        // 1: off
  int64_t top_k;       // 0: off
  uint64_t seed;
  int64_t position;      // of the token in the output
  int64_t num_logprobs;  // -1: none; else of so many tokens beside the sampled one
  double repetition, frequency, presence;
  const int64_t* biased;  // token ids
  const float* biases;
  int64_t num_biased;
  const int64_t* seen;  // token ids that penalties apply to
  const float* counts;  // occurrences of each in the output
  int64_t num_seen;
  const int64_t* banned;  // token ids that may not be sampled
  int64_t num_banned;

  bool is_greedy() const { return temperature == 0.0; }
  bool is_adjusted() const { return num_biased + num_seen + num_banned > 0; }
};

// The results that threads share of one row. Nothing is kept for the next row.
class RowWorkspace {
 public:
  const int64_t vocab, blocks;

  explicit RowWorkspace(int64_t vocab, float* memory)
      : vocab(vocab), blocks((vocab + kBlock - 1) / kBlock) {
    peaks = memory;
    masses = peaks + blocks;
    above = masses + blocks;
    gathered = above + blocks * kSteps;
    scratch = gathered + blocks * kBlock;
    starts = reinterpret_cast<int32_t*>(scratch + blocks * kBlock);
    counts = starts + blocks;
    ties = counts + blocks;
    has_nan = reinterpret_cast<uint8_t*>(ties + blocks);
  }

  // Size of a workspace's memory, in whole cache lines.
  static int64_t num_floats(int64_t vocab) {
    const int64_t blocks = (vocab + kBlock - 1) / kBlock;
    return round_up(blocks * (6 + kSteps + 2 * kBlock), 16);
  }

  int64_t length(int64_t block) const { return std::min(kBlock, vocab - block * kBlock); }

  // Of each block:
  float* peaks;      // the largest logit
  float* masses;     // the mass of what stays
  float* above;      // [kSteps]: the mass from each step on, of the run that begins here
  float* gathered;   // [kBlock]: logits that may stay, of a run of blocks side by side
  int32_t* starts;   // the first in `gathered`
  int32_t* counts;   // and their number
  int32_t* ties;     // number of those at the cut that stay
  uint8_t* has_nan;  // nonzero if a logit is NaN

  float* scratch;  // [blocks * kBlock]

  // Of the row:
  float best;       // the largest logit; unspecified if the row has failed
  bool has_failed;  // the largest is NaN or not finite
  float floor;      // lower bound of logits that stay
  float steps[kSteps];
  Bracket bracket;            // range of logits to gather
  Bracket cut_bracket;        // range of logits that holds the cut
  bool is_of_tail;            // gathered are those around and below the cut, not those above
  bool is_short;              // too few were gathered
  double mass_left;           // of top_p, for the logits in the bracket of the cut
  double log_total;           // log of the softmax's denominator, of the model's own logits
  std::vector<float> before;  // logits as they were where they are adjusted
};

}  // namespace tandem
