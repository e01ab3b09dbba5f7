// A sample of a row: it tells where to look for a cut, so that little is looked at twice.
//
// What it says is only ever a guess; where it is wrong, more is looked at.

#pragma once

#include "sampling_desk.h"

namespace tandem {

// The largest of each block, and a thousand others from all over the row.
class Sample {
 public:
  Sample(Desk& desk, const float* logits) : desk_(desk) {
    const int64_t apart = std::max<int64_t>(kRun, (desk.vocab + kRuns - 1) / kRuns);
    for (int64_t at = 0; at < desk.vocab; at += apart) {
      const int64_t length = std::min(kRun, desk.vocab - at);
      for (int64_t one = at; one < at + length; ++one) {
        values_[count_] = logits[one];
        count_ += logits[one] >= desk.floor && logits[one] != desk.peaks[one / kBlock];
      }
      looked_at_ += length;
    }
  }

  // Below which there should be at least so many, and not many times as many.
  float least_of(int64_t count) {
    const int64_t wanted = 2 * count / each() + 10;
    if (wanted >= count_) return kLowest;
    std::nth_element(values_, values_ + wanted, values_ + count_, std::greater<float>());
    return values_[wanted];
  }

  // Sets the desk's steps around the place where top_p should cut.
  void set_steps(const Weigher& weigh, double top_p) {
    weigh_ = &weigh;
    peaks_mass_ = mass(desk_.peaks, desk_.blocks);
    mass_ = mass(values_, count_);
    const double beyond = (1 - top_p) * (peaks_mass_ + mass_ * static_cast<double>(each()));
    const double high = guess(kMost * beyond), low = guess(kLeast * beyond);
    for (int step = 0; step < kSteps; ++step) {
      const double one = high + (low - high) * step / (kSteps - 1);
      desk_.steps[step] = std::max(desk_.floor, static_cast<float>(one));
    }
  }

 private:
  static constexpr int64_t kRun = 16, kRuns = 64;
  // How wrong the mass that is cut off may be guessed.
  static constexpr double kLeast = 0.45, kMost = 2.0;

  Desk& desk_;
  const Weigher* weigh_ = nullptr;
  float values_[kRun * kRuns], some_[kRun * kRuns];
  int64_t count_ = 0, looked_at_ = 0;
  double peaks_mass_ = 0, mass_ = 0;

  // Logits that one of the sample stands for.
  int64_t each() const { return std::max<int64_t>(1, desk_.vocab / looked_at_); }

  double mass(const float* values, int64_t count) const {
    double sum = 0;
    for (int64_t at = 0; at < count; at += kBlock) {
      sum += mass_of(values + at, std::min(kBlock, count - at), *weigh_, kLowest);
    }
    return sum;
  }

  // Where so much mass is below, and in the peaks where the others have less.
  double guess(double below) {
    const double left = mass_ - below / static_cast<double>(each());
    if (left > 0) {
      std::copy(values_, values_ + count_, some_);
      return cut_of(*weigh_, some_, count_, {count_, left}).value;
    }
    const double of_peaks = peaks_mass_ + mass_ * static_cast<double>(each()) - below;
    if (of_peaks <= 0) return desk_.best;
    std::copy(desk_.peaks, desk_.peaks + desk_.blocks, desk_.spare);
    const int64_t finite = gather(desk_.spare, desk_.blocks, kLowest, kInfinity, desk_.spare);
    return cut_of(*weigh_, desk_.spare, finite, {finite, of_peaks}).value;
  }
};

}  // namespace tandem
