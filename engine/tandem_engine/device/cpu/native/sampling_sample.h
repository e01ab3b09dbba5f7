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

  // Sets the workspace's steps around the logit at which top_p should cut.
  void set_steps(const Weigher& weigh, double top_p) {
    weigh_ = &weigh;
    peaks_mass_ = mass(ws_.peaks, ws_.blocks);
    mass_ = mass(values_, count_);
    const double beyond = (1 - top_p) * (peaks_mass_ + mass_ * static_cast<double>(each()));
    const double high = estimate(kMost * beyond), low = estimate(kLeast * beyond);
    for (int step = 0; step < kSteps; ++step) {
      const double one = high + (low - high) * step / (kSteps - 1);
      ws_.steps[step] = std::max(ws_.floor, static_cast<float>(one));
    }
  }

 private:
  static constexpr int64_t kRun = 16, kRuns = 64;
  // By these factors the estimate of the mass that is cut off may be wrong.
  static constexpr double kLeast = 0.45, kMost = 2.0;

  RowWorkspace& ws_;
  const Weigher* weigh_ = nullptr;
  float values_[kRun * kRuns], some_[kRun * kRuns];
  int64_t count_ = 0, scanned_ = 0;
  double peaks_mass_ = 0, mass_ = 0;

  float of_rank(int64_t rank) {
    std::nth_element(values_, values_ + rank, values_ + count_, std::greater<float>());
    return values_[rank];
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

  // The logit with so much mass below it, among the peaks where the others have less.
  double estimate(double below) {
    const double left = mass_ - below / static_cast<double>(each());
    if (left > 0) {
      std::copy(values_, values_ + count_, some_);
      return cut_of(*weigh_, some_, count_, {count_, left}).value;
    }
    const double of_peaks = peaks_mass_ + mass_ * static_cast<double>(each()) - below;
    if (of_peaks <= 0) return ws_.best;
    std::copy(ws_.peaks, ws_.peaks + ws_.blocks, ws_.scratch);
    const int64_t finite = gather(ws_.scratch, ws_.blocks, kLowest, kInfinity, ws_.scratch);
    return cut_of(*weigh_, ws_.scratch, finite, {finite, of_peaks}).value;
  }
};

}  // namespace tandem
