// A sample of a row: an estimate of where a cut is, so that few logits are scanned twice; where it
// is wrong, more are.

#pragma once

#include "sampling_workspace.h"

namespace tandem {

// The largest logit of each block, and a thousand others from all over the row.
class Sample {
 public:
  Sample(RowWorkspace& workspace, const float* logits) : ws_(workspace) {
    const int64_t apart = std::max<int64_t>(kRun, (workspace.vocab + kRuns - 1) / kRuns);
    for (int64_t at = 0; at < workspace.vocab; at += apart) {
      const int64_t length = std::min(kRun, workspace.vocab - at);
      for (int64_t one = at; one < at + length; ++one) {
        values_[count_] = logits[one];
        count_ += logits[one] >= workspace.floor && logits[one] != workspace.peaks[one / kBlock];
      }
      scanned_ += length;
    }
  }

  // The logits between which the last of the `count` largest should be.
  Bracket bracket_of_top(int64_t count) {
    const int64_t rank = count / each();
    // Neighbours may be alike, and tell less than as many logits from all over the row.
    const auto error = static_cast<int64_t>(4 * std::sqrt(static_cast<double>(rank))) + 10;
    return {rank + error < count_ ? of_rank(rank + error) : kLowest,
            rank > error ? of_rank(rank - error) : kInfinity};
  }

  int64_t count_from(float least) const {
    return std::count_if(values_, values_ + count_, [&](float one) { return one >= least; });
  }
  int64_t count_below(float high) const { return count_ - count_from(high); }

  // Sets the workspace's steps around the logit at which top_p should cut: near, where many of the
  // sample's logits tell what is cut off.
  void set_steps(const Weigher& weigh, double top_p) {
    weigh_ = &weigh;
    peaks_mass_ = mass(ws_.peaks, ws_.blocks);
    mass_ = mass(values_, count_);
    const double below = (1 - top_p) * (peaks_mass_ / static_cast<double>(each()) + mass_);
    double error = error_below(estimate(below));
    // A cut among the peaks: few logits have most of the mass then, and the sample misses them.
    if (below >= mass_) error = std::max(error, kOfPeaks * below);
    const double high = estimate(below + error);
    const double low = below > error ? estimate(below - error) : smallest();
    for (int step = 0; step < kSteps; ++step) {
      const double one = high + (low - high) * step / (kSteps - 1);
      ws_.steps[step] = std::max(ws_.floor, static_cast<float>(one));
    }
  }

 private:
  static constexpr int64_t kRun = 16, kRuns = 64;
  static constexpr double kOfPeaks = 0.6;

  RowWorkspace& ws_;
  const Weigher* weigh_ = nullptr;
  float values_[kRun * kRuns], some_[kRun * kRuns];
  int64_t count_ = 0, scanned_ = 0;
  double peaks_mass_ = 0, mass_ = 0;

  float of_rank(int64_t rank) {
    std::nth_element(values_, values_ + rank, values_ + count_, std::greater<float>());
    return values_[rank];
  }

  float smallest() const {
    return count_ > 0 ? *std::min_element(values_, values_ + count_) : kLowest;
  }

  // Logits for each of the sample.
  int64_t each() const { return std::max<int64_t>(1, ws_.vocab / scanned_); }

  double mass(const float* values, int64_t count) const {
    double sum = 0;
    for (int64_t at = 0; at < count; at += kBlock) {
      sum += mass_of(values + at, std::min(kBlock, count - at), *weigh_, kLowest);
    }
    return sum;
  }

  // By how much the mass of the sample below `cut` may be wrong: four standard deviations, and as
  // much as eight more of the largest weights would add.
  double error_below(double cut) {
    const int64_t count = gather(values_, count_, kLowest, static_cast<float>(cut), some_);
    Floats squares = {}, most = {};
    each_vector(some_, count, [&](Floats some) {
      const Floats weights = (*weigh_)(some);
      squares += weights * weights;
      most = larger(most, weights);
    });
    const auto largest = std::max(largest_of(most), static_cast<float>(weigh_->of(smallest())));
    return 4 * std::sqrt(static_cast<double>(sum_of(squares))) + 8.0 * largest;
  }

  // The logit with so much of the sample's mass below it, among the peaks where it has less.
  double estimate(double below) {
    const double left = mass_ - below;
    if (left > 0) {
      std::copy(values_, values_ + count_, some_);
      return cut_of(*weigh_, some_, count_, {count_, left}).value;
    }
    const double of_peaks = peaks_mass_ + left * static_cast<double>(each());
    if (of_peaks <= 0) return ws_.best;
    std::copy(ws_.peaks, ws_.peaks + ws_.blocks, ws_.scratch);
    const int64_t finite = gather(ws_.scratch, ws_.blocks, kLowest, kInfinity, ws_.scratch);
    return cut_of(*weigh_, ws_.scratch, finite, {finite, of_peaks}).value;
  }
};

}  // namespace tandem
