// The same product for W8A8: a weight of int8, one scale an output, and rows of 8 bits without
// sign, one scale a row (see quantize.h), or one scale and zero point for all of them.
//
// Sums are exact integers, so every variant gives the same bits. With x = (q - 128) * scale
//
//     sum of x * w = scale * (sum of q * w - 128 * sum of w)
//
// where 128 may be another zero point, and the second sum is that of a whole row of the weight,
// known when it is packed.

#pragma once

#include "linear.h"

namespace tandem {

// The quantisation of the rows that a layer reads.
struct Input {
  double scale;  // of all rows, and then a factor of the weight's scales; 0: each has its own
  int64_t zero;  // zero point: 128 where each row has its own scale
};

struct Int8Weight {
  using Element = int8_t;
  const int8_t* panels;
  const float* scales;   // [outputs]
  const int32_t* sums;   // [outputs] of each row of the weight
  const float* bias;     // [outputs], or null
  int64_t inputs;
  int64_t outputs;
  Input input;

  int64_t num_panels() const { return (outputs + kPanel - 1) / kPanel; }
  const int8_t* panel(int64_t number) const { return panels + number * kPanel * inputs; }
};

// The epilogue of integer sums: out = (sums - zero * sums of w) * scales + bias + residual, where
// the rows of the sums may have been shifted already.
template <class Out, class T>
struct Rescaled {
  Out* out;           // [rows, outputs], contiguous
  const T* residual;  // like out, or null; may be out itself
  const float* x_scales;
  const Int8Weight& weight;

  Rescaled(Out* to, const T* added, const float* scales, const Int8Weight& by)
      : out(to), residual(added), x_scales(scales), weight(by) {}

  void put(int64_t row, int64_t output, int64_t count, Ints sums) const {
    const int64_t at = row * weight.outputs + output;
    const Floats shift = load_up_to(reinterpret_cast<const float*>(weight.sums) + output, count);
    const int32_t zero = static_cast<int32_t>(weight.input.zero) - kRowShift;
    const Ints centred = sums - same_bits<Ints>(shift) * zero;
    Floats result = __builtin_convertvector(centred, Floats) * x_scales[row] *
                    load_up_to(weight.scales + output, count);
    if (weight.bias) result += load_up_to(weight.bias + output, count);
    if (residual) result += load_up_to(residual + at, count);
    store_up_to(out + at, result, count);
  }
};

inline void sum_rows(WorkerContext& worker, const int8_t* rows, int64_t count, int64_t inputs,
                     int32_t* sums) {
  for (const int64_t row : worker.each_in_runs(count)) {
    sums[row] = 0;
    for (int64_t input = 0; input < inputs; ++input) sums[row] += rows[row * inputs + input];
  }
}

}  // namespace tandem
