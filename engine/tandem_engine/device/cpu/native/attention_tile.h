// Queries of one chunk over all keys that they see, as blocked matrix products.
//
// Some keys at a time are packed like a weight (see linear.h), so that scores are
// queries @ keys.T and outputs weights @ values in the same kernel as every other product. A row of
// a tile is one query of one head: row = query * group + head.

#pragma once

#include "attention.h"

namespace tandem {

// The operands of a tile's products: pairs of bfloat16 where the target multiplies them.
template <class T>
using Operand = std::conditional_t<kHasPairs && std::is_same_v<T, Bf16>, Bf16, float>;

template <class C>
using TileKeys = Keys<C, kTileKeys>;

// Numbers of 8 bits are exact in bfloat16: two of them side by side, as pairs.
inline Words pairs_of(const int8_t* p, int64_t pairs) {
  uint16_t bytes[kLanes] = {};
  std::memcpy(bytes, p, pairs * sizeof(uint16_t));
  Halves halves;
  std::memcpy(&halves, bytes, sizeof(halves));
  const Ints both = same_bits<Ints>(widened(halves));
  const Floats even = __builtin_convertvector(both << 24 >> 24, Floats);
  const Floats odd = __builtin_convertvector(both << 16 >> 24, Floats);
  return same_bits<Words>(even) >> 16 | same_bits<Words>(odd);
}

template <class P, class C>
inline Words unit_words(const C* p, int64_t units) {
  if constexpr (std::is_same_v<C, int8_t> && kUnit<P> == 2) {
    return pairs_of(p, units);
  } else if constexpr (std::is_same_v<P, C>) {
    Words words = {};
    if (units == kLanes) {
      std::memcpy(&words, p, sizeof(words));
    } else {
      std::memcpy(&words, p, units * sizeof(uint32_t));
    }
    return words;
  } else {
    return same_bits<Words>(load_up_to(p, units));
  }
}

template <int kStep>
inline void exchange(Words* rows) {
  Words keep, take;
  for (int lane = 0; lane < kLanes; ++lane) {
    keep[lane] = lane & kStep ? lane - kStep + kLanes : lane;
    take[lane] = lane & kStep ? lane + kLanes : lane + kStep;
  }
  for (int row = 0; row < kLanes; ++row) {
    if (row & kStep) continue;
    const Words a = rows[row], b = rows[row + kStep];
    rows[row] = __builtin_shuffle(a, b, keep);
    rows[row + kStep] = __builtin_shuffle(a, b, take);
  }
}

// A square of words: rows become columns.
inline void transpose(Words* rows) {
  if constexpr (kLanes > 8) exchange<8>(rows);
  if constexpr (kLanes > 4) exchange<4>(rows);
  exchange<2>(rows);
  exchange<1>(rows);
}

// [kTileKeys / kPanel][units][kPanel] words; missing keys are 0.
template <class P, class C>
inline void pack_keys(const TileKeys<C>& keys, int64_t dim, P* packed) {
  const int64_t units = dim / kUnit<P>;
  uint32_t* to = reinterpret_cast<uint32_t*>(packed);
  for (int first = 0; first < round_up(keys.count, kPanel); first += kLanes) {
    uint32_t* half = to + first / kPanel * units * kPanel + first % kPanel;
    for (int64_t unit = 0; unit < units; unit += kLanes) {
      const int64_t count = std::min<int64_t>(kLanes, units - unit);
      Words rows[kLanes] = {};
      for (int lane = 0; lane < kLanes && first + lane < keys.count; ++lane) {
        rows[lane] = unit_words<P>(keys.k[first + lane] + unit * kUnit<P>, count);
      }
      transpose(rows);
      for (int64_t at = 0; at < count; ++at) {
        std::memcpy(half + (unit + at) * kPanel, &rows[at], sizeof(Words));
      }
    }
  }
}

// A vector of words: of one key's values, or of two keys' side by side.
template <class P, class C>
inline Words value_words(const TileKeys<C>& keys, int key, int64_t at, int64_t count) {
  const Words first = same_bits<Words>(load_up_to(keys.v[key] + at, count));
  if constexpr (kUnit<P> == 1) return first;
  // A bfloat16 is the upper half of its float, and so is a number of 8 bits.
  if (key + 1 >= keys.count) return first >> 16;
  return first >> 16 | same_bits<Words>(load_up_to(keys.v[key + 1] + at, count));
}

// [dim / kPanel][kTileKeys / kUnit][kPanel] words; 0 behind the keys and behind dim.
template <class P, class C>
inline void pack_values(const TileKeys<C>& keys, int64_t dim, P* packed) {
  constexpr int64_t kUnits = kTileKeys / kUnit<P>;
  uint32_t* to = reinterpret_cast<uint32_t*>(packed);
  for (int64_t at = 0; at < round_up(dim, kPanel); at += kLanes) {
    uint32_t* half = to + at / kPanel * kUnits * kPanel + at % kPanel;
    const int64_t count = std::clamp<int64_t>(dim - at, 0, kLanes);
    for (int64_t unit = 0; unit * kUnit<P> < keys.count; ++unit) {
      Words words = {};
      if (count > 0) words = value_words<P>(keys, int(unit * kUnit<P>), at, count);
      std::memcpy(half + unit * kPanel, &words, sizeof(words));
    }
  }
}

// The memory of one tile: a few hundred KB, in a core's second-level cache.
template <class P>
struct TileMemory {
  int64_t dim, padded_dim;
  float* scores;   // [rows, kTileKeys]
  float* accumulator;  // [rows, padded_dim]
  Softmax* state;  // [rows]
  float* factors;  // [rows]
  P* queries;      // [rows, dim]
  P* weights;      // [rows, kTileKeys]
  P* keys;
  P* values;

  explicit TileMemory(int64_t head_dim, int64_t rows)
      : dim(head_dim), padded_dim(round_up(head_dim, kPanel)) {
    // Counted in floats; an operand is at most as wide as one.
    const int64_t sizes[] = {rows * kTileKeys, rows * padded_dim,  rows * 2,           rows,
                             rows * dim,   rows * kTileKeys,       kTileKeys * padded_dim, kTileKeys * padded_dim};
    int64_t total = 0;
    for (const int64_t size : sizes) total += round_up(size, 16);
    float* memory = scratch_of_thread(total);
    float* parts[8];
    for (int part = 0; part < 8; ++part) {
      parts[part] = memory;
      memory += round_up(sizes[part], 16);
    }
    scores = parts[0];
    accumulator = parts[1];
    state = reinterpret_cast<Softmax*>(parts[2]);
    factors = parts[3];
    queries = reinterpret_cast<P*>(parts[4]);
    weights = reinterpret_cast<P*>(parts[5]);
    keys = reinterpret_cast<P*>(parts[6]);
    values = reinterpret_cast<P*>(parts[7]);
    std::fill_n(accumulator, rows * padded_dim, 0.0f);
    std::fill_n(state, rows, Softmax{});
  }
};

template <class P, class T, class C>
inline void copy_queries(const Attention<T, C>& attention, const Task& task, P* queries) {
  const int64_t width = attention.group() * attention.cache.head_dim;
  for (int64_t query = 0; query < task.queries; ++query) {
    const T* from = attention.query(task.token + query, task.kv_head);
    P* to = queries + query * width;
    each(
        width, [&](int64_t at) { store(to + at, load(from + at)); },
        [&](int64_t at, int64_t left) { store_some(to + at, load_some(from + at, left), left); });
  }
}

// Panels outside and strips inside: a panel is read once into the first-level cache.
template <class P>
inline void score_tile(const TileMemory<P>& memory, int64_t rows, int64_t num_keys) {
  for (int64_t first = 0; first < num_keys; first += kPanel) {
    each_strip(rows, [&](auto height, int64_t row) {
      const auto tile = multiply_tile<height.value>(memory.queries + row * memory.dim, memory.dim,
                                                    memory.keys + first * memory.dim, memory.dim);
      for (int at = 0; at < height.value; ++at) {
        float* to = memory.scores + (row + at) * kTileKeys + first;
        store(to, tile.sums[at][0]);
        store(to + kLanes, tile.sums[at][1]);
      }
    });
  }
}

// Scores of keys that a row does not see become -inf; then all become weights.
template <class P, class C>
inline void softmax_tile(const TileMemory<P>& memory, const TileKeys<C>& keys, const Task& task,
                         int64_t first, int64_t group, float scale) {
  const int64_t num_keys = round_up(keys.count, kPanel);
  for (int64_t row = 0; row < task.queries * group; ++row) {
    const int64_t sees = std::clamp<int64_t>(task.sees(row / group) - first, 0, num_keys);
    float* scores = memory.scores + row * kTileKeys;
    P* weights = memory.weights + row * kTileKeys;
    if (sees == 0) {
      std::memset(weights, 0, num_keys * sizeof(P));
      memory.factors[row] = 1.0f;
      continue;
    }
    keys.scales.scale(scores, num_keys);
    for (int64_t key = sees; key < num_keys; ++key) scores[key] = -__builtin_inff();
    memory.factors[row] = memory.state[row].update(scores, num_keys, scale, keys.scales, weights);
  }
}

template <class P>
inline void accumulate_tile(const TileMemory<P>& memory, int64_t rows, int64_t num_keys) {
  for (int64_t at = 0; at < memory.padded_dim; at += kPanel) {
    each_strip(rows, [&](auto height, int64_t row) {
      const auto tile = multiply_tile<height.value>(memory.weights + row * kTileKeys, kTileKeys,
                                                    memory.values + at * kTileKeys, num_keys);
      for (int line = 0; line < height.value; ++line) {
        float* to = memory.accumulator + (row + line) * memory.padded_dim + at;
        const float factor = memory.factors[row + line];
        store(to, load(to) * factor + tile.sums[line][0]);
        store(to + kLanes, load(to + kLanes) * factor + tile.sums[line][1]);
      }
    });
  }
}

template <class T, class C>
inline void attend_tile(const Attention<T, C>& attention, const Task& task) {
  using P = Operand<T>;
  const int64_t dim = attention.cache.head_dim, group = attention.group();
  const int64_t rows = task.queries * group;
  const TileMemory<P> memory(dim, rows);
  copy_queries(attention, task, memory.queries);
  for (int64_t first = 0; first < task.last_key; first += kTileKeys) {
    const TileKeys<C> keys(attention, task, first);
    pack_keys(keys, dim, memory.keys);
    score_tile(memory, rows, round_up(keys.count, kPanel));  // those behind the last are 0
    softmax_tile(memory, keys, task, first, group, attention.scale);
    pack_values(keys, dim, memory.values);
    accumulate_tile(memory, rows, round_up(keys.count, kUnit<P>));
  }
  for (int64_t row = 0; row < rows; ++row) {
    T* out = attention.output(task.token + row / group, task.kv_head) + row % group * dim;
    store_head(memory.accumulator + row * memory.padded_dim, 1.0f / memory.state[row].sum, dim,
               out);
  }
}

}  // namespace tandem
