// Operands of the library's kernels, made of random numbers: for kernels.cpp, which compares their
// results with plain loops, and kernel_calls.cpp, whose instructions are counted.

#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "attention.h"
#include "linear_int8.h"

namespace tandem {

// The exports of the library that are called here; see kernels.cpp of the kernels.
#define TANDEM_DECLARED(T, kind)                                                                  \
  void tandem_linear_int8_##kind(const uint8_t*, const float*, int64_t, const Int8Weight*,        \
                                 const T*, T*);                                                   \
  void tandem_attend_kv8_##kind(const T*, int64_t, int64_t, const LayerCache<int8_t>*,            \
                                const Rows*, float, T*);                                          \
  void tandem_quantize_##kind(const T*, int64_t, int64_t, const Input*, uint8_t*, float*);
#define TANDEM_WEIGHT_DECLARED(E, kind)                                                           \
  void tandem_linear_##kind(const Computed<E>*, int64_t, const Weight<E>*, const Computed<E>*,    \
                            Computed<E>*);                                                        \
  void tandem_pack_##kind(const E*, int64_t, int64_t, int64_t, E*);                               \
  void tandem_attend_##kind(const Computed<E>*, int64_t, int64_t, const LayerCache<E>*,           \
                            const Rows*, float, Computed<E>*);
extern "C" {
int64_t tandem_panel();
void tandem_set_threads(int64_t, const int64_t*, int64_t, int64_t);
void tandem_pack_int8(const int8_t*, int64_t, int64_t, int64_t, int8_t*, int32_t*);
TANDEM_DECLARED(float, f32)
TANDEM_DECLARED(Bf16, bf16)
TANDEM_WEIGHT_DECLARED(float, f32)
TANDEM_WEIGHT_DECLARED(Bf16, bf16)
TANDEM_WEIGHT_DECLARED(F16, f16)
}

// The exports by the type of their arguments.
#define TANDEM_BY_TYPE(T, kind)                                                                   \
  inline void call_linear_int8(const uint8_t* x, const float* scales, int64_t rows,               \
                               const Int8Weight& weight, const T* residual, T* out) {             \
    tandem_linear_int8_##kind(x, scales, rows, &weight, residual, out);                           \
  }                                                                                               \
  inline void call_attend(const T* q, int64_t stride, int64_t heads,                              \
                          const LayerCache<int8_t>& cache, const Rows& rows, float scale,         \
                          T* out) {                                                               \
    tandem_attend_kv8_##kind(q, stride, heads, &cache, &rows, scale, out);                        \
  }                                                                                               \
  inline void call_quantize(const T* x, int64_t rows, int64_t width, const Input& input,          \
                            uint8_t* out, float* scales) {                                        \
    tandem_quantize_##kind(x, rows, width, &input, out, scales);                                  \
  }
#define TANDEM_WEIGHT_BY_TYPE(E, kind)                                                            \
  inline void call_linear(const Computed<E>* x, int64_t rows, const Weight<E>& weight,            \
                          const Computed<E>* residual, Computed<E>* out) {                        \
    tandem_linear_##kind(x, rows, &weight, residual, out);                                        \
  }                                                                                               \
  inline void call_pack(const E* rows, int64_t count, int64_t inputs, E* panels) {                \
    tandem_pack_##kind(rows, 0, count, inputs, panels);                                           \
  }                                                                                               \
  inline void call_attend(const Computed<E>* q, int64_t stride, int64_t heads,                    \
                          const LayerCache<E>& cache, const Rows& rows, float scale,              \
                          Computed<E>* out) {                                                     \
    tandem_attend_##kind(q, stride, heads, &cache, &rows, scale, out);                            \
  }
TANDEM_BY_TYPE(float, f32)
TANDEM_BY_TYPE(Bf16, bf16)
TANDEM_WEIGHT_BY_TYPE(float, f32)
TANDEM_WEIGHT_BY_TYPE(Bf16, bf16)
TANDEM_WEIGHT_BY_TYPE(F16, f16)

inline std::mt19937& generator() {
  static std::mt19937 it;
  return it;
}

inline void use_threads(int threads) { tandem_set_threads(threads, nullptr, 0, 0); }

// As the kernels round, which kernels.cpp checks by itself.
template <class T>
inline void fill(std::vector<T>& values, float spread) {
  std::normal_distribution<float> normal(0.0f, spread);
  for (T& value : values) {
    T lanes[kLanes];
    store(lanes, splat(normal(generator())));
    value = lanes[0];
  }
}

template <class Byte>
inline void fill_bytes(std::vector<Byte>& values) {
  for (Byte& value : values) value = static_cast<Byte>(generator()() >> 24);
}

template <class T>
inline std::vector<T> random_values(int64_t count, float spread = 1.0f) {
  std::vector<T> values(count);
  fill(values, spread);
  return values;
}

// x [rows, inputs] by a weight [outputs, inputs] of E, with a bias and a residual or without.
template <class E>
struct LinearCase {
  using T = Computed<E>;
  int64_t rows, inputs, outputs;
  bool is_plain;
  std::vector<T> x, bias, residual;
  std::vector<E> values, panels;

  LinearCase(int64_t num_rows, int64_t num_inputs, int64_t num_outputs, bool plain)
      : rows(num_rows), inputs(num_inputs), outputs(num_outputs), is_plain(plain),
        x(random_values<T>(rows * inputs)), bias(random_values<T>(outputs)),
        residual(random_values<T>(rows * outputs)), values(random_values<E>(outputs * inputs)),
        panels(round_up(outputs, tandem_panel()) * inputs) {
    call_pack(values.data(), outputs, inputs, panels.data());
  }

  // Rows [first, first + count) of the result.
  std::vector<T> run(int64_t first, int64_t count) const {
    const Weight<E> weight{panels.data(), is_plain ? nullptr : bias.data(), inputs, outputs};
    std::vector<T> out(count * outputs);
    call_linear(x.data() + first * inputs, count, weight,
                is_plain ? nullptr : residual.data() + first * outputs, out.data());
    return out;
  }
};

// The same in 8 bits. Scales are powers of 2 and the rest multiples of them, so nothing is rounded
// in float.
template <class T>
struct Int8Case {
  int64_t rows, inputs, outputs, zero;
  std::vector<uint8_t> x;
  std::vector<int8_t> values, panels;
  std::vector<int32_t> sums;
  std::vector<float> scales, x_scales, bias;

  Int8Case(int64_t num_rows, int64_t num_inputs, int64_t num_outputs, int64_t zero_point)
      : rows(num_rows), inputs(num_inputs), outputs(num_outputs), zero(zero_point),
        x(rows * inputs), values(outputs * inputs),
        panels(round_up(outputs, tandem_panel()) * inputs), sums(outputs), scales(outputs),
        x_scales(rows), bias(outputs) {
    fill_bytes(x);
    fill_bytes(values);
    for (float& scale : scales) scale = std::ldexp(1.0f, -int(generator()() % 4));
    for (float& scale : x_scales) scale = std::ldexp(1.0f, -int(generator()() % 4));
    for (float& value : bias) value = float(generator()() % 1000);
    tandem_pack_int8(values.data(), 0, outputs, inputs, panels.data(), sums.data());
  }

  std::vector<T> run(int64_t first, int64_t count) const {
    const Int8Weight weight{panels.data(), scales.data(), sums.data(), bias.data(),
                            inputs,        outputs,       {0.0, zero}};
    std::vector<T> out(count * outputs);
    call_linear_int8(x.data() + first * inputs, x_scales.data() + first, count, weight,
                     static_cast<const T*>(nullptr), out.data());
    return out;
  }
};

// One row of `queries` tokens at the end of a context, whose blocks lie in any order.
template <class T, class C>
struct AttentionCase {
  static constexpr int64_t kBlockSize = 16;
  int64_t queries, context, heads, kv_heads, dim;
  std::vector<T> q;
  std::vector<C> keys, values;
  std::vector<int32_t> blocks;

  AttentionCase(int64_t num_queries, int64_t keys_seen, int64_t group, int64_t head_dim)
      : queries(num_queries), context(keys_seen), heads(2 * group), kv_heads(2), dim(head_dim),
        q(random_values<T>(queries * heads * dim)),
        blocks((context + kBlockSize - 1) / kBlockSize) {
    for (size_t at = 0; at < blocks.size(); ++at) blocks[at] = int32_t(at);
    std::shuffle(blocks.begin(), blocks.end(), generator());
    for (std::vector<C>* pages : {&keys, &values}) {
      pages->resize(int64_t(blocks.size()) * kv_heads * cache().page());
      fill_pages(*pages);
    }
  }

  LayerCache<C> cache() {
    return {keys.data(), values.data(), kv_heads, kBlockSize, dim};
  }
  float scale() const { return 1.0f / std::sqrt(float(dim)); }

  std::vector<T> run() {
    const int32_t starts[] = {0, int32_t(queries)}, contexts[] = {int32_t(context)};
    const int32_t first_block[] = {0, int32_t(blocks.size())};
    const Rows rows{starts, contexts, first_block, blocks.data(), 1};
    std::vector<T> out(queries * heads * dim);
    call_attend(q.data(), heads * dim, heads, cache(), rows, scale(), out.data());
    return out;
  }

 private:
  void fill_pages(std::vector<C>& pages) {
    if constexpr (std::is_same_v<C, int8_t>) {
      fill_bytes(pages);
      for (int64_t page = 0; page < int64_t(blocks.size()) * kv_heads; ++page) {
        for (int64_t slot = 0; slot < kBlockSize; ++slot) {
          const float scale = 0.01f + 0.0001f * float(generator()() % 100);
          std::memcpy(pages.data() + cache().scale_offset(page / kv_heads, page % kv_heads, slot),
                      &scale, sizeof scale);
        }
      }
    } else {
      fill(pages, 1.0f);
    }
  }
};

}  // namespace tandem
