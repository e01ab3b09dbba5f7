// What is known of a row of logits while its token is looked for, and where it is written down.

#pragma once

#include <algorithm>
#include <vector>

#include "sampling_cut.h"
#include "worker_context.h"

namespace tandem {

// How a row is sampled; and where its logits are changed before, and how.
struct SampledRow {
  double temperature;  // 0: the likeliest token is taken
  double margin;       // how far below the largest logit one may be: 0 or less
  double top_p;        // 1: off
  int64_t top_k;       // 0: off
  uint64_t seed;
  int64_t position;     // of the token in the output
  int64_t num_logprobs;  // -1: none are asked for; else of so many tokens beside the chosen one
  double repetition, frequency, presence;
  const int64_t* biased;  // token ids
  const float* biases;
  int64_t num_biased;
  const int64_t* seen;  // token ids that penalties look at
  const float* counts;  // how often each stands in the output
  int64_t num_seen;
  const int64_t* barred;  // token ids that may not come
  int64_t num_barred;

  bool is_greedy() const { return temperature == 0.0; }
  bool is_changed() const { return num_biased + num_seen + num_barred > 0; }
};

// All about one row that threads have found out together. Nothing is kept for the next one.
class Desk {
 public:
  const int64_t vocab, blocks;

  explicit Desk(int64_t vocab, float* room)
      : vocab(vocab), blocks((vocab + kBlock - 1) / kBlock) {
    peaks = room;
    masses = peaks + blocks;
    above = masses + blocks;
    gathered = above + blocks * kSteps;
    spare = gathered + blocks * kBlock;
    starts = reinterpret_cast<int32_t*>(spare + blocks * kBlock);
    counts = starts + blocks;
    ties = counts + blocks;
    wrongs = reinterpret_cast<uint8_t*>(ties + blocks);
  }

  // Floats that a desk is made of, in whole cache lines.
  static int64_t room(int64_t vocab) {
    const int64_t blocks = (vocab + kBlock - 1) / kBlock;
    return round_up(blocks * (6 + kSteps + 2 * kBlock), 16);
  }

  int64_t length(int64_t block) const { return std::min(kBlock, vocab - block * kBlock); }

  // Of each block:
  float* peaks;      // the largest
  float* masses;     // the mass of what stays
  float* above;      // [kSteps]: the mass from each step on, of the run that begins here
  float* gathered;   // [kBlock]: those that may stay, of a run of blocks side by side
  int32_t* starts;   // where in `gathered`
  int32_t* counts;   // and how many
  int32_t* ties;     // how many of those at the cut stay
  uint8_t* wrongs;   // whether something is no number

  float* spare;  // [blocks * kBlock]

  // Of the row:
  float best;        // the largest; of no use if the row has failed
  bool has_failed;   // no number, or no finite one, is the largest
  float floor;       // what is below does not stay
  float steps[kSteps];
  Bracket around;    // what is gathered
  Bracket cut_in;    // where the cut is
  bool is_short;     // too few were gathered
  double mass_left;  // what top_p has left for those around the cut
  double log_total;  // of the model's own logits: what log-probabilities fall short of them
  std::vector<float> before;  // logits where they were changed
};

}  // namespace tandem
