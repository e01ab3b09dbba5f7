// One row to 8 bits: x ≈ (q - shift) * scale, where the scale is its largest magnitude over 127.

#pragma once

#include "vectors.h"

namespace tandem {

// The zero point: the middle of bytes without sign, and 0 of those with one.
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
  Floats not_finite = {};  // 0, or NaN from the first value on that is not finite

  void add(Floats x) {
    most = larger(magnitude(x), most);  // which drops NaNs
    not_finite += x * 0.0f;
  }
  // NaN if one of the values was not finite: the sampler checks for it.
  float largest() const { return largest_of(most) + sum_of(not_finite); }
};

// `row(at, count)` gives `count` floats of the row, followed by zeros.
template <class Byte, class Row>
inline float quantize_row(const Row& row, int64_t width, Byte* out) {
  Range range;
  each(
      width, [&](int64_t at) { range.add(row(at, kLanes)); },
      [&](int64_t at, int64_t left) { range.add(row(at, left)); });
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

// By a given scale and zero point; values outside of the range are clamped. Returns 1, or NaN if
// one of them was not finite.
template <class Row>
inline float quantize_row_by(const Row& row, int64_t width, float scale, float zero,
                             uint8_t* out) {
  constexpr float kMost = 255.0f;
  const float factor = 1.0f / scale;
  Floats not_finite = {};
  typedef uint8_t Bytes __attribute__((vector_size(kLanes)));
  const auto bytes = [&](int64_t at, int64_t count) {
    const Floats x = row(at, count);
    not_finite += x * 0.0f;
    const Floats shifted = larger(x * factor + zero, Floats{});  // 0 of a NaN
    const Floats clamped = shifted > kMost ? splat(kMost) : shifted;
    return __builtin_convertvector(__builtin_convertvector(rounded(clamped), Ints), Bytes);
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
  return 1.0f + sum_of(not_finite);
}

}  // namespace tandem
