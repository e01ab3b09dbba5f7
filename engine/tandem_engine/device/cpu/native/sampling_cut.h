// The threshold that top_k and top_p amount to, found by bisection: only the few values that are
// left in the end are sorted.

#pragma once

#include <algorithm>
#include <functional>

#include "sampling_scan.h"

namespace tandem {

// All logits above the threshold stay, and the first `ties` of those that equal it.
struct Threshold {
  float value;
  int64_t ties;
};

// A value stays while fewer than `count` stand before it, and less than `mass` of weight; the
// largest always does.
struct Quota {
  int64_t count;
  double mass;
};

constexpr int64_t kFew = 96;  // so few are sorted

// The number of equal values that stay, one by one, as `Quota` says.
inline int64_t ties_within(const Quota& quota, double weight, int64_t count) {
  int64_t most = std::min(quota.count, count);
  if (weight * static_cast<double>(most) > quota.mass) {
    most = static_cast<int64_t>(std::ceil(quota.mass / weight));
    while (most > 1 && static_cast<double>(most - 1) * weight >= quota.mass) --most;
  }
  return std::max<int64_t>(most, 1);
}

inline Threshold cut_of_few(const Weigher& weigh, float* values, int64_t count, Quota quota) {
  std::sort(values, values + count, std::greater<float>());
  for (int64_t at = 0;;) {
    int64_t end = at + 1;
    while (end < count && values[end] == values[at]) ++end;
    const int64_t equals = end - at;
    const double weight = weigh.of(values[at]);
    const int64_t ties = ties_within(quota, weight, equals);
    quota.count -= equals;
    quota.mass -= weight * static_cast<double>(equals);
    if (end == count || quota.count <= 0 || quota.mass <= 0) return {values[at], ties};
    at = end;
  }
}

// A float's ordinal among all floats: as many lie between two as their ordinals differ.
inline int64_t ordinal_of(float x) {
  const int32_t bits = same_bits<int32_t>(x);
  return bits < 0 ? -int64_t{bits & 0x7fffffff} : bits;
}

inline float of_ordinal(int64_t ordinal) {
  const auto size = static_cast<uint32_t>(ordinal < 0 ? -ordinal : ordinal);
  return same_bits<float>(ordinal < 0 ? size | 0x80000000u : size);
}

// Descending thresholds in (low, high]. Every other time they divide the floats between the two
// into equal numbers, so that a row of any spread takes a few rounds at most.
inline void set_steps(float low, float high, bool by_ordinal, float* steps) {
  const int64_t first = ordinal_of(low), last = ordinal_of(high);
  for (int step = 0; step < kSteps; ++step) {
    const double share = static_cast<double>(kSteps - step) / (kSteps + 1);
    const auto between = static_cast<float>(low + share * (static_cast<double>(high) - low));
    const float one =
        by_ordinal
            ? of_ordinal(first + static_cast<int64_t>(share * static_cast<double>(last - first)))
            : between;
    steps[step] = one > low ? std::min(one, high) : of_ordinal(first + 1);
  }
}

// Number and mass of the values from each threshold on.
struct Above {
  int64_t counts[kSteps] = {};
  double masses[kSteps] = {};
};

inline Above above_of(const Weigher& weigh, const float* values, int64_t count, bool weighs,
                      const float* steps) {
  Above above;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t length = std::min(kBlock, count - begin);
    Ints counts[kSteps] = {};
    each_vector(values + begin, length, [&](Floats some) {
      for (int step = 0; step < kSteps; ++step) counts[step] += some >= steps[step];
    });
    for (int step = 0; step < kSteps; ++step) above.counts[step] += count_of(counts[step]);
    if (!weighs) continue;
    float masses[kSteps];
    masses_of(values + begin, length, weigh, steps, masses);
    for (int step = 0; step < kSteps; ++step) above.masses[step] += masses[step];
  }
  return above;
}

struct Bracket {
  float low, high;
};

inline Bracket bracket_of(const float* values, int64_t count) {
  Floats low = splat(kInfinity), high = splat(-kInfinity);
  int64_t at = 0;
  for (; at + kLanes <= count; at += kLanes) {
    const Floats some = load(values + at);
    low = -larger(-low, -some);
    high = larger(high, some);
  }
  Bracket range{-largest_of(-low), largest_of(high)};
  for (; at < count; ++at) {
    range.low = std::min(range.low, values[at]);
    range.high = std::max(range.high, values[at]);
  }
  return range;
}

// The cut of `count` values, at least one, which are reordered; each is finite.
inline Threshold cut_of(const Weigher& weigh, float* values, int64_t count, Quota quota) {
  const bool weighs = quota.mass < static_cast<double>(kInfinity);
  for (bool by_ordinal = false;; by_ordinal = !by_ordinal) {
    if (count <= kFew) return cut_of_few(weigh, values, count, quota);
    const Bracket range = bracket_of(values, count);
    if (range.low == range.high) {
      return {range.low, ties_within(quota, weigh.of(range.low), count)};
    }
    float steps[kSteps];
    set_steps(range.low, range.high, by_ordinal, steps);
    const Above above = above_of(weigh, values, count, weighs, steps);
    int step = 0;
    while (step < kSteps && above.counts[step] < quota.count &&
           above.masses[step] < quota.mass) {
      ++step;
    }
    const float low = step < kSteps ? steps[step] : kLowest;
    const float high = step > 0 ? steps[step - 1] : kInfinity;
    if (step > 0) {
      quota.count -= above.counts[step - 1];
      quota.mass -= above.masses[step - 1];
    }
    count = gather(values, count, low, high, values);
  }
}

}  // namespace tandem
