// One row to 8 bits: x ≈ (q - shift) * scale, where the scale is its largest magnitude over 127.

#pragma once

#include "vectors.h"

namespace tandem {

// What 0 becomes: the middle of bytes without sign, and 0 of those with one.
template <class Byte>
constexpr float kShift = std::is_signed_v<Byte> ? 0.0f : 128.0f;

inline Floats magnitude(Floats x) { return x < 0.0f ? -x : x; }

// Rounds to the nearest integer, ties to even; |x| is far below 2^22.
inline Floats rounded(Floats x) {
  constexpr float kRounds = 12582912.0f;
  return (x + kRounds) - kRounds;
}

struct Range {
  Floats most = {};
  Floats spoiled = {};  // stays 0 until something comes that is not finite; then it is no number

  void see(Floats x) {
    most = larger(magnitude(x), most);  // which loses what is no number
    spoiled += x * 0.0f;
  }
  // No number if there was one among them, or an infinity: the sampler looks for it.
  float largest() const { return largest_of(most) + sum_of(spoiled); }
};

// `row` gives the floats at a place, and some of them, 0 behind them, at the end.
template <class Byte, class Row>
inline float quantize_row(const Row& row, int64_t width, Byte* out) {
  Range range;
  each(
      width, [&](int64_t at) { range.see(row(at, kLanes)); },
      [&](int64_t at, int64_t left) { range.see(row(at, left)); });
  const float largest = range.largest();
  const float scale = largest == 0 ? 1.0f : largest / 127;
  const float factor = 1.0f / scale;
  typedef Byte Bytes __attribute__((vector_size(kLanes)));
  const auto bytes = [&](int64_t at, int64_t count) {
    const Floats shifted = rounded(row(at, count) * factor) + kShift<Byte>;
    return __builtin_convertvector(__builtin_convertvector(shifted, Ints), Bytes);
  };
  each(
      width,
      [&](int64_t at) {
        const Bytes some = bytes(at, kLanes);
        std::memcpy(out + at, &some, kLanes);
      },
      [&](int64_t at, int64_t left) {
        const Bytes some = bytes(at, left);
        std::memcpy(out + at, &some, left);
      });
  return scale;
}

// By a scale and a zero point that are given; what lies outside is cut off. Returns 1, or no number
// if there was one among them, or an infinity.
template <class Row>
inline float quantize_row_by(const Row& row, int64_t width, float scale, float zero,
                             uint8_t* out) {
  constexpr float kMost = 255.0f;
  const float factor = 1.0f / scale;
  Floats spoiled = {};
  typedef uint8_t Bytes __attribute__((vector_size(kLanes)));
  const auto bytes = [&](int64_t at, int64_t count) {
    const Floats x = row(at, count);
    spoiled += x * 0.0f;
    const Floats shifted = larger(x * factor + zero, Floats{});  // 0 of what is no number
    const Floats cut = shifted > kMost ? splat(kMost) : shifted;
    return __builtin_convertvector(__builtin_convertvector(rounded(cut), Ints), Bytes);
  };
  each(
      width,
      [&](int64_t at) {
        const Bytes some = bytes(at, kLanes);
        std::memcpy(out + at, &some, kLanes);
      },
      [&](int64_t at, int64_t left) {
        const Bytes some = bytes(at, left);
        std::memcpy(out + at, &some, left);
      });
  return 1.0f + sum_of(spoiled);
}

}  // namespace tandem
