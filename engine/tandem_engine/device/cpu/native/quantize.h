// Quantisation to 8 bits without sign: x ≈ (q - zero) * scale.
//
// The scale of a row is its largest magnitude over 127 and the zero point 128, or both are given.
// Instructions that multiply bytes take one operand without sign, so the symmetric values are
// shifted by 128; the product must subtract what the shift adds, 128 times the sum of the weights.

#pragma once

#include <vector>

#include "elementwise.h"
#include "linear_int8.h"
#include "quantize_row.h"

namespace tandem {

// Quantises a row for a layer; returns the factor of its products.
template <class Row>
inline float quantize_row_for(const Input& input, const Row& row, int64_t width, uint8_t* out) {
  if (input.scale == 0) return quantize_row(row, width, out);
  return quantize_row_by(row, width, static_cast<float>(input.scale),
                         static_cast<float>(input.zero), out);
}

// [rows, width] → out like it, and scales [rows].
template <class T>
inline void quantize(WorkerContext& worker, const T* x, int64_t rows, int64_t width,
                     const Input& input, uint8_t* out, float* scales) {
  for (const int64_t row : worker.each_in_runs(rows)) {
    const T* from = x + row * width;
    const auto values = [&](int64_t at, int64_t count) { return load_up_to(from + at, count); };
    scales[row] = quantize_row_for(input, values, width, out + row * width);
  }
}

// The same of rms_norm(x).
template <class T>
inline void quantize_norm(WorkerContext& worker, const T* x, const T* weight, int64_t rows,
                          int64_t width, float eps, const Input& input, uint8_t* out,
                          float* scales) {
  for (const int64_t row : worker.each_in_runs(rows)) {
    const T* from = x + row * width;
    const float factor = norm_factor(from, width, eps);
    const auto values = [&](int64_t at, int64_t count) {
      return load_up_to(from + at, count) * factor * load_up_to(weight + at, count);
    };
    scales[row] = quantize_row_for(input, values, width, out + row * width);
  }
}

// The same of silu(gate) * up. The values are needed twice, so they are kept in between.
template <class T>
inline void quantize_gated(WorkerContext& worker, const T* gate_up, int64_t rows, int64_t width,
                           const Input& input, uint8_t* out, float* scales) {
  std::vector<float> kept(round_up(width, kLanes));
  for (const int64_t row : worker.each_in_runs(rows)) {
    const T *gate = gate_up + row * 2 * width, *up = gate + width;
    for (int64_t at = 0; at < width; at += kLanes) {
      const int64_t count = width - at < kLanes ? width - at : kLanes;
      store(kept.data() + at, gated(load_up_to(gate + at, count), load_up_to(up + at, count)));
    }
    const auto values = [&](int64_t at, int64_t) { return load(kept.data() + at); };
    scales[row] = quantize_row_for(input, values, width, out + row * width);
  }
}

}  // namespace tandem
