// Vectors of the widest kind that the target has, and the element types of tensors.
//
// The kernels are written once, in terms of `Floats`. A variant gains over another by the flags
// that it is compiled with, and by products of pairs where the target has them.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

// Armv8.6's products of small matrices of bfloat16 and of bytes.
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) && defined(__ARM_FEATURE_MATMUL_INT8)
#define TANDEM_NEON_MATRICES
#endif

namespace tandem {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

#if defined(__AVX512BF16__) || defined(TANDEM_NEON_MATRICES)
constexpr bool kHasPairs = true;  // products of bfloat16 pairs, summed in float32
#else
constexpr bool kHasPairs = false;
#endif

struct Bf16 {
  uint16_t bits;
};

// IEEE 754's half precision: weights and caches come in it, activations do not (see Computed).
struct F16 {
  uint16_t bits;
};

// The type of activations where weights are of type E. A float16 ends at 65,504, which the residual
// of some models exceeds, and no CPU adds up products of them in a wider type.
template <class E>
using Computed = std::conditional_t<std::is_same_v<E, F16>, float, E>;

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));

template <class To, class From>
inline To same_bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

inline Floats splat(float x) { return Floats{} + x; }

inline Floats load(const float* p) {
  Floats x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}

inline Floats load(const int8_t* p) {
#if defined(__AVX512F__)
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#elif defined(__AVX2__)
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#elif defined(__aarch64__)
  uint32_t four;
  std::memcpy(&four, p, sizeof(four));
  const int16x8_t wide = vmovl_s8(vcreate_s8(four));
  return same_bits<Floats>(vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))));
#else
  typedef int8_t Bytes __attribute__((vector_size(kLanes)));
  Bytes bytes;
  std::memcpy(&bytes, p, sizeof(bytes));
  return __builtin_convertvector(bytes, Floats);
#endif
}

inline void store(float* p, Floats x) { std::memcpy(p, &x, sizeof(x)); }

// gcc widens a vector half by half if it is not told the instruction.
inline Words widened(Halves bits) {
#if defined(__AVX512F__)
  return same_bits<Words>(_mm512_cvtepu16_epi32(same_bits<__m256i>(bits)));
#elif defined(__AVX2__)
  return same_bits<Words>(_mm256_cvtepu16_epi32(same_bits<__m128i>(bits)));
#elif defined(__aarch64__)
  return same_bits<Words>(vmovl_u16(same_bits<uint16x4_t>(bits)));
#else
  return __builtin_convertvector(bits, Words);
#endif
}

inline Floats load(const Bf16* p) {
  Halves bits;
  std::memcpy(&bits, p, sizeof(bits));
  return same_bits<Floats>(widened(bits) << 16);
}

inline Floats load(const F16* p) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__F16C__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(__aarch64__)
  float16x4_t halves;
  std::memcpy(&halves, p, sizeof(halves));
  return same_bits<Floats>(vcvt_f32_f16(halves));
#else
  Halves halves;
  std::memcpy(&halves, p, sizeof(halves));
  const Words bits = widened(halves);
  const Words magnitude = (bits & 0x7fff) << 13;
  // By a product, which is exact and makes normal floats of subnormal halves, too.
  constexpr float kRebias = 5.192296858534828e33f;  // 2^112
  const Words scaled = same_bits<Words>(same_bits<Floats>(magnitude) * kRebias);
  const Words is_finite = same_bits<Words>(magnitude < (0x7c00u << 13));
  const Words nan_or_inf = magnitude | 0x7f800000u;
  return same_bits<Floats>((scaled & is_finite) | (nan_or_inf & ~is_finite) |
                           (bits & 0x8000) << 16);
#endif
}

// Rounds to the nearest, ties to even, as torch does; NaN stays NaN.
inline Halves to_f16(Floats x) {
#if defined(__AVX512F__)
  return same_bits<Halves>(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__F16C__)
  return same_bits<Halves>(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__aarch64__)
  return same_bits<Halves>(vcvt_f16_f32(same_bits<float32x4_t>(x)));
#else
  const Words bits = same_bits<Words>(x);
  const Words magnitude = bits & 0x7fffffffu;
  // From 2^-14 on: the exponent moves, and 13 bits are rounded off.
  const Words normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // Below, adding 1/2 leaves the bits of a subnormal half in the lowest bits, rounded.
  const Words small = same_bits<Words>(same_bits<Floats>(magnitude) + 0.5f) - 0x3f000000u;
  const Words is_small = same_bits<Words>(magnitude < (113u << 23));
  const Words is_large = same_bits<Words>(magnitude >= (143u << 23));  // from 2^16 on
  const Words is_number = same_bits<Words>(x == x);
  const Words large = (0x7c00 & is_number) | (0x7e00 & ~is_number);
  const Words result = (small & is_small) | (normal & ~is_small);
  return __builtin_convertvector(
      (large & is_large) | (result & ~is_large) | (bits >> 16 & 0x8000), Halves);
#endif
}

inline void store(F16* p, Floats x) {
  const Halves bits = to_f16(x);
  std::memcpy(p, &bits, sizeof(bits));
}

// Rounds to the nearest, ties to even, as torch does; NaN stays NaN.
inline Halves to_bf16(Floats x) {
#if defined(__AVX512BF16__)
  return same_bits<Halves>(_mm512_cvtneps_pbh(x));
#elif defined(TANDEM_NEON_MATRICES)
  return same_bits<Halves>(vcvt_bf16_f32(same_bits<float32x4_t>(x)));
#else
  const Words bits = same_bits<Words>(x);
  const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const Words is_number = same_bits<Words>(x == x);
  return __builtin_convertvector((rounded & is_number) | (0x7fc0 & ~is_number), Halves);
#endif
}

inline void store(Bf16* p, Floats x) {
  const Halves bits = to_bf16(x);
  std::memcpy(p, &bits, sizeof(bits));
}

inline float to_float(float x) { return x; }

inline float to_float(Bf16 x) { return same_bits<float>(uint32_t{x.bits} << 16); }

inline float to_float(F16 x) {
  F16 some[kLanes] = {x};
  return load(some)[0];
}

inline void assign(float& to, float x) { to = x; }

inline void assign(Bf16& to, float x) {
  const Halves bits = to_bf16(splat(x));
  to.bits = bits[0];
}

// The first `count` values, and 0 behind them.
template <class T>
inline Floats load_some(const T* p, int64_t count) {
  T some[kLanes] = {};
  std::memcpy(some, p, count * sizeof(T));
  return load(some);
}

template <class T>
inline void store_some(T* p, Floats x, int64_t count) {
  T some[kLanes];
  store(some, x);
  std::memcpy(p, some, count * sizeof(T));
}

template <class T>
inline Floats load_up_to(const T* p, int64_t count) {
  return count == kLanes ? load(p) : load_some(p, count);
}

template <class T>
inline void store_up_to(T* p, Floats x, int64_t count) {
  if (count == kLanes) {
    store(p, x);
  } else {
    store_some(p, x, count);
  }
}

inline int64_t round_up(int64_t x, int64_t multiple) {
  return (x + multiple - 1) / multiple * multiple;
}

// Calls whole(at) at every multiple of the lanes that fits, then rest(at, count) if some are left.
template <class Whole, class Rest>
inline void each(int64_t length, Whole&& whole, Rest&& rest) {
  int64_t at = 0;
  for (; at + kLanes <= length; at += kLanes) whole(at);
  if (at < length) rest(at, length - at);
}

// From one type to another.
template <class From, class To>
inline void copy_value(From from, To& to) {
  if constexpr (std::is_same_v<From, To>) {
    to = from;
  } else {
    to = to_float(from);
  }
}

template <class From, class To>
inline void copy_row(const From* from, int64_t width, To* to) {
  if constexpr (std::is_same_v<From, To>) {
    std::memcpy(to, from, width * sizeof(To));
  } else {
    each(
        width, [&](int64_t at) { store(to + at, load(from + at)); },
        [&](int64_t at, int64_t left) { store_some(to + at, load_some(from + at, left), left); });
  }
}

// The larger; if one of them is NaN, the second.
inline Floats larger(Floats a, Floats b) {
#if defined(__AVX512F__)
  return _mm512_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}

// Sums of a run's lanes come in a fixed order, so that the same input gives the same bits.
inline float sum_of(Floats x) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(x);
#elif defined(__aarch64__)
  return vaddvq_f32(same_bits<float32x4_t>(x));
#else
  float sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += x[lane];
  return sum;
#endif
}

inline float largest_of(Floats x) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(x);
#elif defined(__aarch64__)
  return vmaxvq_f32(same_bits<float32x4_t>(x));
#else
  float largest = x[0];
  for (int lane = 1; lane < kLanes; ++lane) largest = x[lane] > largest ? x[lane] : largest;
  return largest;
#endif
}

// 2 to the x for x below 126, nan stays nan; below 2^-126 it may be 0. With `kIsBounded`
// x must not be below -126.
//
// x = n + r with |r| <= 1/2, and 2^r is a polynomial: of degree 6 and 4 the Taylor one of e^(r ln
// 2), right to the last two bits of a float and to four more than a bfloat16 has; of degree 5 the
// one that is closest on all of [-1/2, 1/2], off by 1e-7 at most.
template <int kDegree, bool kIsBounded = false>
inline Floats exp2_of(Floats x) {
  constexpr float kTaylor[] = {1.0f,           0.693147181f,   0.240226507f,  0.0555041087f,
                               0.00961812911f, 0.00133335581f, 0.000154035304f};
  constexpr float kClosest[] = {1.0f,          0.693146978f,  0.240222421f,
                                0.0555073389f, 0.0096715126f, 0.00132646654f};
  const auto factor = [&](int at) { return kDegree == 5 ? kClosest[at] : kTaylor[at]; };
  constexpr float kSmallest = -126.0f;
#if defined(__AVX512F__)
  // This maximum returns its second operand if that is NaN.
  const Floats bounded = kIsBounded ? x : Floats(_mm512_max_ps(splat(2 * kSmallest), x));
  const Floats n = _mm512_roundscale_ps(bounded, _MM_FROUND_TO_NEAREST_INT);
#else
  constexpr float kRounds = 12582912.0f;  // 1.5 * 2^23: adding it leaves no bits behind the point
  Floats bounded = x;
  if constexpr (!kIsBounded) bounded = x < kSmallest ? splat(kSmallest) : x;
  const Floats shifted = bounded + kRounds;
  const Floats n = shifted - kRounds;
#endif
  const Floats r = bounded - n;
  Floats p = splat(factor(kDegree));
  for (int at = kDegree - 1; at >= 0; --at) p = p * r + factor(at);
#if defined(__AVX512F__)
  return _mm512_scalef_ps(p, n);
#else
  const Ints exponent = same_bits<Ints>(shifted) << 23;  // the bits of n stand lowest
  const Floats result = same_bits<Floats>(same_bits<Ints>(p) + exponent);
  if constexpr (kIsBounded) return result;
  return x < kSmallest ? Floats{} : result;
#endif
}

constexpr float kLog2E = 1.44269504f;

// e to the x; relative error about |x| times that of a float.
inline Floats exp_of(Floats x) {
  constexpr float kLargest = 125.0f;
  const Floats power = x * kLog2E;
  return exp2_of<6>(power > kLargest ? splat(kLargest) : power);
}

}  // namespace tandem
