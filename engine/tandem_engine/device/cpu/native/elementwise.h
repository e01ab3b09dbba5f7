// Norms, rotary embedding with the write into the KV cache, and the gate of the feed-forward layer.
//
// All compute in float32 inside. Workers share the rows.

#pragma once

#include "quantize_row.h"
#include "worker_context.h"
#include "vectors.h"

namespace tandem {

// The factor that makes the root mean square of a row 1.
template <class T>
inline float norm_factor(const T* x, int64_t width, float eps) {
  Floats squares = {};
  each(
      width, [&](int64_t at) { squares += load(x + at) * load(x + at); },
      [&](int64_t at, int64_t left) {
        const Floats some = load_some(x + at, left);
        squares += some * some;
      });
  return 1.0f / __builtin_sqrtf(sum_of(squares) / static_cast<float>(width) + eps);
}

template <class T>
inline void scale_row(const T* x, const T* weight, int64_t width, float factor, T* out) {
  each(
      width, [&](int64_t at) { store(out + at, load(x + at) * factor * load(weight + at)); },
      [&](int64_t at, int64_t left) {
        const Floats some = load_some(x + at, left) * factor * load_some(weight + at, left);
        store_some(out + at, some, left);
      });
}

// out = rms_norm(x): rows of `width`, `stride` apart; out is contiguous.
template <class T>
inline void rms_norm(WorkerContext& worker, const T* x, int64_t stride, const T* weight,
                     int64_t rows, int64_t width, float eps, T* out) {
  for (const int64_t row : worker.each_in_runs(rows)) {
    const T* from = x + row * stride;
    scale_row(from, weight, width, norm_factor(from, width, eps), out + row * width);
  }
}

// sum = x + residual, out = rms_norm(sum); all contiguous. `sum` may be x or residual itself.
template <class T>
inline void add_rms_norm(WorkerContext& worker, const T* x, const T* residual, const T* weight,
                         int64_t rows, int64_t width, float eps, T* sum, T* out) {
  for (const int64_t row : worker.each_in_runs(rows)) {
    const T *a = x + row * width, *b = residual + row * width;
    T* to = sum + row * width;
    each(
        width, [&](int64_t at) { store(to + at, load(a + at) + load(b + at)); },
        [&](int64_t at, int64_t left) {
          store_some(to + at, load_some(a + at, left) + load_some(b + at, left), left);
        });
    scale_row(to, weight, width, norm_factor(to, width, eps), out + row * width);
  }
}

inline Floats gated(Floats gate, Floats up) { return gate / (1.0f + exp_of(-gate)) * up; }

// out = silu(gate) * up for rows of `width` gates and then `width` ups.
template <class T>
inline void silu_mul(WorkerContext& worker, const T* gate_up, int64_t rows, int64_t width, T* out) {
  // Pieces of a row, so that one row alone can be shared out too.
  constexpr int64_t kPiece = 16 * kLanes;
  const int64_t pieces = (width + kPiece - 1) / kPiece;
  for (const int64_t piece : worker.each_in_runs(rows * pieces)) {
    const int64_t row = piece / pieces, begin = piece % pieces * kPiece;
    const T *gate = gate_up + row * 2 * width + begin, *up = gate + width;
    T* to = out + row * width + begin;
    each(
        begin + kPiece < width ? kPiece : width - begin,
        [&](int64_t at) { store(to + at, gated(load(gate + at), load(up + at))); },
        [&](int64_t at, int64_t left) {
          store_some(to + at, gated(load_some(gate + at, left), load_some(up + at, left)), left);
        });
  }
}

// Rotates the pairs (i, i + half) of one head by the angles of its token, after its norm if any.
template <class T>
struct HeadRotation {
  const T* weight;  // [2 * half] of the norm, or null
  const T* cos;     // [half]
  const T* sin;     // [half]
  int64_t half;
  float eps;

  void operator()(const T* x, T* out) const {
    const float factor = weight ? norm_factor(x, 2 * half, eps) : 1.0f;
    each(
        half, [&](int64_t at) { rotate(x, out, at, kLanes, factor); },
        [&](int64_t at, int64_t left) { rotate(x, out, at, left, factor); });
  }

 private:
  void rotate(const T* x, T* out, int64_t at, int64_t count, float factor) const {
    Floats first = load_up_to(x + at, count), second = load_up_to(x + half + at, count);
    if (weight) {
      first = first * factor * load_up_to(weight + at, count);
      second = second * factor * load_up_to(weight + half + at, count);
    }
    const Floats c = load_up_to(cos + at, count), s = load_up_to(sin + at, count);
    store_up_to(out + at, first * c - second * s, count);
    store_up_to(out + half + at, second * c + first * s, count);
  }
};

// One layer's K and V: [num_blocks, kv_heads, page] each, contiguous. A page is what one block
// holds of one head, [block_size, head_dim] of type C; where that is int8, a scale a token follows,
// float [block_size], so that a copy of a block has its scales.
template <class C>
struct LayerCache {
  static constexpr int64_t kScaleBytes = std::is_same_v<C, int8_t> ? sizeof(float) : 0;

  C* keys;
  C* values;
  int64_t kv_heads, block_size, head_dim;

  int64_t page() const { return block_size * (head_dim + kScaleBytes); }
  int64_t offset(int64_t block, int64_t head, int64_t offset) const {
    return (block * kv_heads + head) * page() + offset * head_dim;
  }
  // Of a cache in int8, counted in its elements as well.
  int64_t scale_offset(int64_t block, int64_t head, int64_t offset) const {
    return (block * kv_heads + head) * page() + block_size * head_dim + offset * kScaleBytes;
  }
};

// The slots of a step's tokens in the KV cache, and their positions; the same for every layer.
template <class T>
struct TokenSlots {
  const T* rope;             // [positions, head_dim]: half of cosines, then half of sines
  const int64_t* positions;  // [tokens]
  const int64_t* blocks;     // [tokens]: block of each token's slot
  const int64_t* offsets;    // [tokens]: offset in the block
  int64_t tokens;
};

// Writes one head of one token to its slot in `pages`, which are the keys or the values.
template <class T, class C>
inline void put_row(const T* x, const LayerCache<C>& cache, C* pages, int64_t block, int64_t head,
                    int64_t offset) {
  C* to = pages + cache.offset(block, head, offset);
  if constexpr (!std::is_same_v<C, int8_t>) {
    copy_row(x, cache.head_dim, to);
  } else {
    const auto values = [&](int64_t at, int64_t count) { return load_up_to(x + at, count); };
    const float scale = quantize_row(values, cache.head_dim, to);
    std::memcpy(pages + cache.scale_offset(block, head, offset), &scale, sizeof(scale));
  }
}

// From [tokens, (heads + 2 * kv_heads) * head_dim] of Q, K and V: norms and rotates the heads of Q
// in place, and those of K into the cache; copies V there.
template <class T, class C>
inline void prepare_attention(WorkerContext& worker, T* qkv, int64_t stride, int64_t heads,
                              const T* q_norm, const T* k_norm, float eps,
                              const TokenSlots<T>& slots, const LayerCache<C>& cache) {
  const int64_t dim = cache.head_dim, half = dim / 2, all = heads + 2 * cache.kv_heads;
  for (const int64_t item : worker.each_in_runs(slots.tokens * all)) {
    const int64_t token = item / all, head = item % all;
    const T* angles = slots.rope + slots.positions[token] * dim;
    T* x = qkv + token * stride + head * dim;
    if (head < heads) {
      HeadRotation<T>{q_norm, angles, angles + half, half, eps}(x, x);
      continue;
    }
    const int64_t kv_head = (head - heads) % cache.kv_heads;
    const bool is_key = head < heads + cache.kv_heads;
    if (is_key) HeadRotation<T>{k_norm, angles, angles + half, half, eps}(x, x);
    put_row(x, cache, is_key ? cache.keys : cache.values, slots.blocks[token], kv_head,
            slots.offsets[token]);
  }
}

}  // namespace tandem
