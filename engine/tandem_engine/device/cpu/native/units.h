// A unit is the value that one lane multiplies at once, of floats, float16, bfloat16 and bytes. It
// has 32 bits, except where a single value of 16 is widened first.
//
// Each type of weight has functions that spread a unit of a row over all lanes, read a vector of
// units, and multiply the two and add them to sums.

#pragma once

#include "vectors.h"

namespace tandem {

// Values of a unit; a single bfloat16, which is widened first, where pairs cannot be multiplied.
template <class T>
constexpr int kUnit = 1;
template <>
constexpr int kUnit<Bf16> = kHasPairs ? 2 : 1;
template <>
constexpr int kUnit<int8_t> = 4;

// The type of sums of products with a weight.
template <class T>
using Sums = std::conditional_t<std::is_same_v<T, int8_t>, Ints, Floats>;

// Reading and multiplying: one unit that all lanes share, or a unit a lane.
inline Floats spread(const float* x) { return splat(*x); }
inline Floats load_units(const float* w) { return load(w); }
inline Floats load_some_units(const float* w, int64_t count) { return load_some(w, count); }
inline Floats multiply_add(Floats sum, Floats x, Floats w) { return sum + x * w; }

// Of weights alone: rows by them are floats.
inline Floats load_units(const F16* w) { return load(w); }

#if defined(__AVX512BF16__) || defined(TANDEM_NEON_MATRICES)
typedef Ints Pairs;
inline Pairs load_units(const Bf16* w) {
  Pairs pairs;
  std::memcpy(&pairs, w, sizeof(pairs));
  return pairs;
}
inline Pairs load_some_units(const Bf16* w, int64_t count) {
  Pairs pairs = {};
  std::memcpy(&pairs, w, count * sizeof(Bf16));
  return pairs;
}
#if defined(__AVX512BF16__)
inline Pairs spread(const Bf16* x) {
  int32_t pair;
  std::memcpy(&pair, x, sizeof(pair));
  return Pairs{} + pair;
}
inline Floats multiply_add(Floats sum, Pairs x, Pairs w) {
  return _mm512_dpbf16_ps(sum, same_bits<__m512bh>(x), same_bits<__m512bh>(w));
}
#else  // tiles spread nothing there: see neon.h
inline Floats multiply_add(Floats sum, Pairs x, Pairs w) {
  return same_bits<Floats>(vbfdotq_f32(same_bits<float32x4_t>(sum), same_bits<bfloat16x8_t>(x),
                                       same_bits<bfloat16x8_t>(w)));
}
#endif
#else
inline Floats spread(const Bf16* x) { return splat(to_float(*x)); }
inline Floats load_units(const Bf16* w) { return load(w); }
inline Floats load_some_units(const Bf16* w, int64_t count) { return load_some(w, count); }
#endif

inline Ints load_units(const int8_t* w) {
  Ints fours;
  std::memcpy(&fours, w, sizeof(fours));
  return fours;
}

#if defined(__ARM_FEATURE_DOTPROD)
// Four values with sign by four others; tiles have their own (see neon.h).
inline Ints multiply_add(Ints sum, Ints x, Ints w) {
  return same_bits<Ints>(vdotq_s32(same_bits<int32x4_t>(sum), same_bits<int8x16_t>(x),
                                   same_bits<int8x16_t>(w)));
}
#else
// Four int8 of a weight by four values of 8 bits without sign.
inline Words spread(const uint8_t* x) {
  uint32_t four;
  std::memcpy(&four, x, sizeof(four));
  return Words{} + four;
}

inline Ints multiply_add(Ints sum, Words x, Ints w) {
#if defined(__AVX512VNNI__)
  return same_bits<Ints>(_mm512_dpbusd_epi32(same_bits<__m512i>(sum), same_bits<__m512i>(x),
                                             same_bits<__m512i>(w)));
#else
  for (int part = 0; part < 4; ++part) {
    const Ints byte = same_bits<Ints>(x >> (8 * part) & 255);
    sum += byte * (w << (24 - 8 * part) >> 24);
  }
  return sum;
#endif
}
#endif

}  // namespace tandem
