// Tiles of the products that NEON has instructions for: of bytes (Armv8.2's dot product), and of
// bfloat16 and bytes in small matrices (Armv8.6; Kunpeng 920 has only the former).
//
// A dot product multiplies the four units of a vector of the weight by one unit of a row, which the
// instruction picks itself. A matrix product multiplies two units of two rows by two units of two
// outputs, for which units of the weight are zipped, once for all rows. It adds them up as two dot
// products do, one after the other, so a row's sums are the same whatever rows are beside it.

#pragma once

#include "units.h"

namespace tandem {

#if defined(__ARM_FEATURE_DOTPROD)

#if defined(TANDEM_NEON_MATRICES)
constexpr bool kHasMatrices = true;
#else
constexpr bool kHasMatrices = false;
#endif

// What the values of rows in 8 bits are shifted by where both operands must have a sign.
constexpr int32_t kRowShift = kHasMatrices ? 0 : 128;

// True if tiles of a weight of W are computed here.
template <class W>
constexpr bool kOnNeon = std::is_same_v<W, int8_t> || (kHasMatrices && std::is_same_v<W, Bf16>);

// sum + the dot products of the units of w and unit `kAt` of x.
template <int kAt>
inline Ints add_dot(Ints sum, Ints w, Words x) {
  const int32x4_t before = same_bits<int32x4_t>(sum);
#if defined(TANDEM_NEON_MATRICES)
  return same_bits<Ints>(
      vsudotq_laneq_s32(before, same_bits<int8x16_t>(w), same_bits<uint8x16_t>(x), kAt));
#else
  return same_bits<Ints>(
      vdotq_laneq_s32(before, same_bits<int8x16_t>(w), same_bits<int8x16_t>(x), kAt));
#endif
}

#if defined(TANDEM_NEON_MATRICES)

template <int kAt>
inline Floats add_dot(Floats sum, Ints w, Words x) {
  return same_bits<Floats>(vbfdotq_laneq_f32(same_bits<float32x4_t>(sum),
                                             same_bits<bfloat16x8_t>(w),
                                             same_bits<bfloat16x8_t>(x), kAt));
}

// sum + x @ w.T: two rows by two outputs, of two units each.
inline Floats add_matrix(Floats sum, Words x, Words w) {
  return same_bits<Floats>(vbfmmlaq_f32(same_bits<float32x4_t>(sum), same_bits<bfloat16x8_t>(x),
                                        same_bits<bfloat16x8_t>(w)));
}

inline Ints add_matrix(Ints sum, Words x, Words w) {
  return same_bits<Ints>(vusmmlaq_s32(same_bits<int32x4_t>(sum), same_bits<uint8x16_t>(x),
                                      same_bits<int8x16_t>(w)));
}

// One or two units of a row, by way of a register: gcc takes a part of a vector through memory.
template <int kUnits, class X>
inline uint64x1_t half_of_units(const X* x) {
  std::conditional_t<kUnits == 2, uint64_t, uint32_t> units;
  std::memcpy(&units, x, sizeof(units));
  return vcreate_u64(units);
}

#endif

// Up to four units of a row, and 0 behind them.
template <int kUnits, class X>
inline Words row_units(const X* x) {
  Words units = {};
  std::memcpy(&units, x, kUnits * sizeof(uint32_t));
  return std::is_same_v<X, uint8_t> && kRowShift ? units ^ 0x80808080u : units;
}

template <int kRows, class W>
struct NeonTile {
  static_assert(kLanes == 4 && sizeof(Ints) == kLanes * kUnit<W> * sizeof(W));
  using Sum = Sums<W>;

  template <class X>
  static void multiply(const X* x, int64_t stride, const W* panel, int64_t inputs,
                       Sum (&sums)[kRows][2]) {
    if constexpr (kHasMatrices && kRows > 1) {
      multiply_matrices(x, stride, panel, inputs, sums);
    } else {
      const int64_t whole = inputs / (4 * kUnit<W>) * (4 * kUnit<W>);
      int64_t input = 0;
      for (; input < whole; input += 4 * kUnit<W>) add_units<4>(x, stride, panel, input, sums);
      for (; input < inputs; input += kUnit<W>) add_units<1>(x, stride, panel, input, sums);
    }
  }

 private:
  static Ints weights(const W* panel, int64_t input, int unit, int half) {
    return same_bits<Ints>(
        load_units(panel + (input + unit * kUnit<W>) * 2 * kLanes + half * kLanes * kUnit<W>));
  }

  template <int kUnits, class X>
  static void add_units(const X* x, int64_t stride, const W* panel, int64_t input,
                        Sum (&sums)[kRows][2]) {
    Ints w[kUnits][2];
    for (int unit = 0; unit < kUnits; ++unit) {
      for (int half = 0; half < 2; ++half) w[unit][half] = weights(panel, input, unit, half);
    }
    for (int row = 0; row < kRows; ++row) {
      const Words units = row_units<kUnits>(x + row * stride + input);
      for (int half = 0; half < 2; ++half) {
        sums[row][half] = add_dot<0>(sums[row][half], w[0][half], units);
        if constexpr (kUnits == 4) {
          sums[row][half] = add_dot<1>(sums[row][half], w[1][half], units);
          sums[row][half] = add_dot<2>(sums[row][half], w[2][half], units);
          sums[row][half] = add_dot<3>(sums[row][half], w[3][half], units);
        }
      }
    }
  }

#if defined(TANDEM_NEON_MATRICES)
  static constexpr int kPairs = (kRows + 1) / 2;  // of rows; a last one alone is its own pair

  // Of a pair of rows by each two outputs of a panel: [row][output].
  using PairSums = Sum[kPairs][4];

  template <class X>
  static void multiply_matrices(const X* x, int64_t stride, const W* panel, int64_t inputs,
                                Sum (&sums)[kRows][2]) {
    PairSums pairs = {};
    int64_t input = 0;
    for (; input + 2 * kUnit<W> <= inputs; input += 2 * kUnit<W>) {
      add_matrices<2>(x, stride, panel, input, pairs);
    }
    if (input < inputs) add_matrices<1>(x, stride, panel, input, pairs);
    for (int row = 0; row < kRows; ++row) {
      for (int half = 0; half < 2; ++half) {
        const Sum low = pairs[row / 2][2 * half], high = pairs[row / 2][2 * half + 1];
        sums[row][half] = row % 2 ? behind(low, high) : before(low, high);
      }
    }
  }

  template <int kUnits, class X>
  static void add_matrices(const X* x, int64_t stride, const W* panel, int64_t input,
                           PairSums& pairs) {
    Words w[4];
    for (int half = 0; half < 2; ++half) {
      const uint32x4_t first = same_bits<uint32x4_t>(weights(panel, input, 0, half));
      uint32x4_t second = {};
      if constexpr (kUnits == 2) second = same_bits<uint32x4_t>(weights(panel, input, 1, half));
      w[2 * half] = same_bits<Words>(vzip1q_u32(first, second));
      w[2 * half + 1] = same_bits<Words>(vzip2q_u32(first, second));
    }
    for (int pair = 0; pair < kPairs; ++pair) {
      const int last = 2 * pair + 1 < kRows ? 2 * pair + 1 : 2 * pair;
      const Words both = same_bits<Words>(
          vcombine_u64(half_of_units<kUnits>(x + 2 * pair * stride + input),
                       half_of_units<kUnits>(x + last * stride + input)));
      for (int at = 0; at < 4; ++at) {
        pairs[pair][at] = add_matrix(pairs[pair][at], both, w[at]);
      }
    }
  }

  // The first halves of two vectors one behind the other, and the second ones.
  template <class Vector>
  static Vector before(Vector a, Vector b) {
    return same_bits<Vector>(vzip1q_u64(same_bits<uint64x2_t>(a), same_bits<uint64x2_t>(b)));
  }
  template <class Vector>
  static Vector behind(Vector a, Vector b) {
    return same_bits<Vector>(vzip2q_u64(same_bits<uint64x2_t>(a), same_bits<uint64x2_t>(b)));
  }
#endif
};

#else

constexpr int32_t kRowShift = 0;

template <class W>
constexpr bool kOnNeon = false;

template <int kRows, class W>
struct NeonTile {};

#endif

}  // namespace tandem
