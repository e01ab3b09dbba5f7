// Scans of a row of logits, block by block: the largest, the mass, those in a range.
//
// A weight is a probability but for one factor: exp((logit - largest) / temperature), in float.

#pragma once

#include <cfloat>
#include <cmath>

#include "vectors.h"

namespace tandem {

constexpr int64_t kBlock = 512;  // logits: a draw ends with a search of one block, logit by logit
constexpr int kSteps = 6;        // thresholds that masses are summed above at once
constexpr float kLowest = -FLT_MAX;
constexpr float kInfinity = __builtin_inff();
constexpr uint32_t kInfinityBits = 0x7f800000;

static_assert(kBlock % (4 * kLanes) == 0);

// From logits to weights.
struct Weigher {
  float best;
  float scale;  // log2(e) / temperature

  Weigher(float best, double temperature)
      : best(best), scale(static_cast<float>(1.4426950408889634 / temperature)) {}

  // No weight is below 2^-126, not even that of -inf: subnormal numbers take a CPU a hundred times
  // as long. A sum of weights must leave out tokens that may not be sampled.
  Floats operator()(Floats x) const {
    return exp2_of<5, true>(larger(splat(-126.0f), (x - best) * scale));
  }
  double of(float x) const { return (*this)(splat(x))[0]; }
};

// The first `count` values, and -inf behind them: below every threshold.
inline Floats load_logits(const float* x, int64_t count) {
#if defined(__AVX512F__)
  return _mm512_mask_loadu_ps(splat(-kInfinity), static_cast<__mmask16>((1u << count) - 1), x);
#else
  float some[kLanes];
  for (float& one : some) one = -kInfinity;
  std::memcpy(some, x, count * sizeof(float));
  return load(some);
#endif
}

// Calls body(values) for the vectors of a block.
template <class Body>
inline void each_vector(const float* x, int64_t count, Body&& body) {
  int64_t at = 0;
  for (; at + kLanes <= count; at += kLanes) body(load(x + at));
  if (at < count) body(load_logits(x + at, count - at));
}

inline Floats only_where(Ints mask, Floats x) {
  return same_bits<Floats>(mask & same_bits<Ints>(x));
}

// sum + (x >= least ? weights : 0)
inline Floats add_from(Floats sum, Floats weights, Floats x, Floats least) {
#if defined(__AVX512F__)
  return _mm512_mask_add_ps(sum, _mm512_cmp_ps_mask(x, least, _CMP_GE_OQ), sum, weights);
#else
  return sum + only_where(x >= least, weights);
#endif
}

// True if a comparison holds in any lane.
inline bool any_of(Ints mask) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask(same_bits<__m512i>(mask)) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_ps(same_bits<__m256>(mask)) != 0;
#else
  int32_t found = 0;
  for (int lane = 0; lane < kLanes; ++lane) found |= mask[lane];
  return found != 0;
#endif
}

// The number of lanes that hold, of comparisons that were added up.
inline int64_t count_of(Ints masks) {
#if defined(__AVX512F__)
  return -_mm512_reduce_add_epi32(same_bits<__m512i>(masks));
#else
  int64_t count = 0;
  for (int lane = 0; lane < kLanes; ++lane) count -= masks[lane];
  return count;
#endif
}

// The largest of a block; sets `has_nan` if one is NaN.
inline float peak_of(const float* x, int64_t count, bool& has_nan) {
  Floats most[4];
  Words sizes[4] = {};  // without the sign, a NaN is larger than an infinity
  for (Floats& one : most) one = splat(-kInfinity);
  const auto scan = [&](int chain, Floats some) {
    const Words size = same_bits<Words>(some) & 0x7fffffffu;
    most[chain] = larger(most[chain], some);
    sizes[chain] = size > sizes[chain] ? size : sizes[chain];
  };
  int64_t at = 0;
  for (; at + 4 * kLanes <= count; at += 4 * kLanes) {
    for (int chain = 0; chain < 4; ++chain) scan(chain, load(x + at + chain * kLanes));
  }
  each_vector(x + at, count - at, [&](Floats some) { scan(0, some); });
  for (int chain = 1; chain < 4; ++chain) {
    most[0] = larger(most[0], most[chain]);
    sizes[0] = sizes[chain] > sizes[0] ? sizes[chain] : sizes[0];
  }
  has_nan |= any_of(same_bits<Ints>(sizes[0] > kInfinityBits));
  return largest_of(most[0]);
}

// The mass of all; -inf counts with the smallest weight there is.
inline float mass_of(const float* x, int64_t count, const Weigher& weigh) {
  Floats sum = {};
  each_vector(x, count, [&](Floats some) { sum += weigh(some); });
  return sum_of(sum);
}

// The mass of those from `least` on.
inline float mass_of(const float* x, int64_t count, const Weigher& weigh, float least) {
  Floats sum = {};
  const Floats from = splat(least);
  each_vector(x, count, [&](Floats some) { sum = add_from(sum, weigh(some), some, from); });
  return sum_of(sum);
}

// The masses from each of `steps` on.
inline void masses_of(const float* x, int64_t count, const Weigher& weigh, const float* steps,
                      float* above) {
  Floats sums[kSteps] = {}, at[kSteps];
  for (int step = 0; step < kSteps; ++step) at[step] = splat(steps[step]);
  each_vector(x, count, [&](Floats some) {
    const Floats weights = weigh(some);
    for (int step = 0; step < kSteps; ++step) {
      sums[step] = add_from(sums[step], weights, some, at[step]);
    }
  });
  for (int step = 0; step < kSteps; ++step) above[step] = sum_of(sums[step]);
}

#if !defined(__AVX512F__) && defined(__AVX2__)
// For each mask of 8 lanes the numbers of those that are set, a byte each, the lowest first.
struct SetLanes {
  uint64_t lanes[256] = {};

  constexpr SetLanes() {
    for (int mask = 0; mask < 256; ++mask) {
      int shift = 0;
      for (uint64_t lane = 0; lane < 8; ++lane) {
        if ((mask >> lane & 1) == 0) continue;
        lanes[mask] |= lane << shift;
        shift += 8;
      }
    }
  }
};
inline constexpr SetLanes kSetLanes;
#endif

// Copies the values in [low, high) in their order; `out` must hold `count`, and may be `x`.
inline int64_t gather(const float* x, int64_t count, float low, float high, float* out) {
  int64_t found = 0;
  const auto take = [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const float one = x[at];
      out[found] = one;  // never past the values that are read already
      found += one >= low && one < high;
    }
  };
  int64_t at = 0;
  // Whole vectors are stored, of which the first lanes count: a branch would be mispredicted.
#if defined(__AVX512F__)
  for (; at + kLanes <= count; at += kLanes) {
    const Floats some = load(x + at);
    const __mmask16 from = _mm512_cmp_ps_mask(some, splat(low), _CMP_GE_OQ);
    const __mmask16 inside = _mm512_mask_cmp_ps_mask(from, some, splat(high), _CMP_LT_OQ);
    store(out + found, _mm512_maskz_compress_ps(inside, some));
    found += __builtin_popcount(inside);
  }
#else
  constexpr int64_t kVectors = 4;
  for (; at + kVectors * kLanes <= count; at += kVectors * kLanes) {
    Ints inside[kVectors], any = {};
    for (int64_t vector = 0; vector < kVectors; ++vector) {
      const Floats some = load(x + at + vector * kLanes);
      inside[vector] = (some >= low) & (some < high);
      any |= inside[vector];
    }
    if (!any_of(any)) continue;  // where few are in the range, that is how it goes on
#if defined(__AVX2__)
    for (int64_t vector = 0; vector < kVectors; ++vector) {
      const Floats some = load(x + at + vector * kLanes);
      const int mask = _mm256_movemask_ps(same_bits<__m256>(inside[vector]));
      const __m256i lanes =
          _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(kSetLanes.lanes[mask])));
      store(out + found,
            same_bits<Floats>(_mm256_permutevar8x32_ps(same_bits<__m256>(some), lanes)));
      found += __builtin_popcount(mask);
    }
#else
    take(at, at + kVectors * kLanes);
#endif
  }
#endif
  take(at, count);
  return found;
}

}  // namespace tandem
