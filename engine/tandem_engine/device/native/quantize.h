// Per-token quantisation to 8 bits without sign: x ≈ (q - 128) * scale.
//
// The scale of a row is its largest magnitude over 127. Instructions that multiply bytes take one
// operand without sign, so the symmetric values are shifted by 128; what the shift adds to a
// product, 128 times the sum of the weights, is the business of whoever multiplies.

#pragma once

#include <vector>

#include "elementwise.h"

namespace tandem {

inline Floats magnitude(Floats x) { return x < 0.0f ? -x : x; }

// Rounds to the nearest integer, ties to even; |x| is far below 2^22.
inline Floats rounded(Floats x) {
  constexpr float kRounds = 12582912.0f;
  return (x + kRounds) - kRounds;
}

// `row` gives the floats at a place, and some of them at the end.
template <class Row>
inline float quantize_row(const Row& row, int64_t width, uint8_t* out) {
  Floats most = {};
  each(
      width, [&](int64_t at) { most = larger(magnitude(row(at, kLanes)), most); },
      [&](int64_t at, int64_t left) { most = larger(magnitude(row(at, left)), most); });
  const float largest = largest_of(most);
  const float scale = largest > 0 ? largest / 127 : 1.0f;
  const float factor = 1.0f / scale;
  typedef uint8_t Bytes __attribute__((vector_size(kLanes)));
  const auto bytes = [&](int64_t at, int64_t count) {
    const Floats shifted = rounded(row(at, count) * factor) + 128.0f;
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

// [rows, width] → out like it, and scales [rows].
template <class T>
inline void quantize(Team& team, const T* x, int64_t rows, int64_t width, uint8_t* out,
                     float* scales) {
  for (const int64_t row : team.share(rows)) {
    const T* from = x + row * width;
    const auto values = [&](int64_t at, int64_t count) { return load_up_to(from + at, count); };
    scales[row] = quantize_row(values, width, out + row * width);
  }
}

// The same of rms_norm(x).
template <class T>
inline void quantize_norm(Team& team, const T* x, const T* weight, int64_t rows, int64_t width,
                          float eps, uint8_t* out, float* scales) {
  for (const int64_t row : team.share(rows)) {
    const T* from = x + row * width;
    const float factor = norm_factor(from, width, eps);
    const auto values = [&](int64_t at, int64_t count) {
      return load_up_to(from + at, count) * factor * load_up_to(weight + at, count);
    };
    scales[row] = quantize_row(values, width, out + row * width);
  }
}

// The same of silu(gate) * up. The values are needed twice, so they are kept in between.
template <class T>
inline void quantize_gated(Team& team, const T* gate_up, int64_t rows, int64_t width, uint8_t* out,
                           float* scales) {
  std::vector<float> kept(round_up(width, kLanes));
  for (const int64_t row : team.share(rows)) {
    const T *gate = gate_up + row * 2 * width, *up = gate + width;
    for (int64_t at = 0; at < width; at += kLanes) {
      const int64_t count = width - at < kLanes ? width - at : kLanes;
      store(kept.data() + at, gated(load_up_to(gate + at, count), load_up_to(up + at, count)));
    }
    const auto values = [&](int64_t at, int64_t) { return load(kept.data() + at); };
    scales[row] = quantize_row(values, width, out + row * width);
  }
}

}  // namespace tandem
