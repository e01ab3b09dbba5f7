// One query of a KV split: all heads that share a KV head.

#pragma once

#include "quantize_row.h"
#include "units.h"

namespace tandem {

// Queries as they are.
template <class T>
struct PlainQueries {
  const T* q;
  int64_t dim;

  static int64_t floats(int64_t, int64_t) { return 0; }
  PlainQueries(const T* first, int64_t, int64_t head_dim, float*) : q(first), dim(head_dim) {}
  PlainQueries from(int64_t head) const { return {q + head * dim, 0, dim, nullptr}; }
};

#if defined(__AVX512VNNI__) || defined(__ARM_FEATURE_DOTPROD)
constexpr int64_t kQuad = 4 * kLanes;  // bytes of a vector

#if defined(__AVX512VNNI__)
using KeyBytes = Words;
constexpr uint32_t kKeyShift = 128;
inline uint32_t sum_of(Ints x) {
  return static_cast<uint32_t>(_mm512_reduce_add_epi32(same_bits<__m512i>(x)));
}
#else
using KeyBytes = Ints;  // with their sign
constexpr uint32_t kKeyShift = 0;
inline uint32_t sum_of(Ints x) {
  return static_cast<uint32_t>(vaddvq_s32(same_bits<int32x4_t>(x)));
}
#endif

// For K in 8 bits and queries in bfloat16: q is a number of 16 bits times a scale, 256 times finer
// than its own type asks for, and 256 * high + low, so that q . k is two products of bytes. Where
// one operand has no sign, that is K:
//
//     sum of (k + 128) * q = sum of k * q + 128 * sum of q
//
// Widening K to floats instead takes almost three times as many instructions.
class TwoByteQueries {
 public:
  static int64_t floats(int64_t heads, int64_t dim) {
    return heads * (2 * round_up(dim, kQuad) / int64_t{sizeof(float)} + 2) + 16;
  }

  TwoByteQueries(const Bf16* q, int64_t heads, int64_t dim, float* memory)
      : width_(round_up(dim, kQuad)), scales_(memory) {
    shifts_ = reinterpret_cast<uint32_t*>(scales_ + heads);
    parts_ = reinterpret_cast<int8_t*>(shifts_ + heads);
    for (int64_t head = 0; head < heads; ++head) quantize(q + head * dim, dim, head);
  }

  TwoByteQueries from(int64_t head) const {
    TwoByteQueries those = *this;
    those.scales_ += head;
    those.shifts_ += head;
    those.parts_ += head * 2 * width_;
    return those;
  }

  const int8_t* high(int64_t head) const { return parts_ + head * 2 * width_; }
  const int8_t* low(int64_t head) const { return high(head) + width_; }

  // Some values of K plus the shift; lanes behind the last meet zeros of the queries.
  static KeyBytes shifted(const int8_t* k, int64_t left) {
    KeyBytes words = {};
    if (left >= kQuad) {
      std::memcpy(&words, k, kQuad);
    } else {
      std::memcpy(&words, k, left);
    }
    return kKeyShift ? words ^ 0x80808080u : words;
  }

  // Partial sums may overflow; the result fits for heads of up to 512.
  float score(int64_t head, Ints sums) const {
    return static_cast<float>(static_cast<int32_t>(sum_of(sums) - shifts_[head])) * scales_[head];
  }

 private:
  static constexpr float kLargest = 32512.0f;  // 127 * 256: both parts stay within a byte

  int64_t width_;
  float* scales_;
  uint32_t* shifts_;
  int8_t* parts_;

  void quantize(const Bf16* q, int64_t dim, int64_t head) {
    Range range;
    each(
        dim, [&](int64_t at) { range.add(load(q + at)); },
        [&](int64_t at, int64_t left) { range.add(load_some(q + at, left)); });
    const float largest = range.largest();
    const float scale = largest == 0 ? 1.0f : largest / kLargest;
    Ints sums = {};
    for (int64_t at = 0; at < width_; at += kLanes) {
      const int64_t count = std::max<int64_t>(0, std::min<int64_t>(kLanes, dim - at));
      const Floats x = count ? load_up_to(q + at, count) : Floats{};
      const Ints whole = __builtin_convertvector(rounded(x / scale), Ints);
      const Ints upper = (whole + 128) >> 8;
      sums += whole;
      put(high_of(head) + at, upper);
      put(high_of(head) + width_ + at, whole - (upper << 8));
    }
    scales_[head] = scale;
    shifts_[head] = kKeyShift * sum_of(sums);
  }

  int8_t* high_of(int64_t head) { return parts_ + head * 2 * width_; }

  static void put(int8_t* to, Ints x) {
#if defined(__AVX512VNNI__)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(same_bits<__m512i>(x)));
#else
    for (int lane = 0; lane < kLanes; ++lane) to[lane] = static_cast<int8_t>(x[lane]);
#endif
  }
};
#endif

template <class T, class C>
struct QueriesOf {
  using Type = PlainQueries<T>;
};
#if defined(__AVX512VNNI__) || defined(__ARM_FEATURE_DOTPROD)
template <>
struct QueriesOf<Bf16, int8_t> {
  using Type = TwoByteQueries;
};
#endif
template <class T, class C>
using QueriesFor = typename QueriesOf<T, C>::Type;

}  // namespace tandem
