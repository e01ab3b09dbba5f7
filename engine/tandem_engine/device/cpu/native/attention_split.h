// A KV split: one query, or the few of a row that verifies drafts, over a range of keys. Reading K
// and V takes nearly all of the time, so that all queries go through some keys before the next are
// read. A line is one query of one head: line = query * group + head.

#pragma once

#include <array>
#include <optional>

#include "attention.h"
#include "attention_query.h"

namespace tandem {

constexpr int kHeadsTogether = 4;             // query heads that share a load of K or V
constexpr int kSlice = kLanes == 16 ? 4 : 2;  // vectors of the accumulator that stay in registers

template <class C>
using SplitKeys = Keys<C, kSplitBlock>;

// Prefetches a row into the second-level cache: in the first it would evict what is in use.
template <class T>
inline void prefetch(const T* row, int64_t dim) {
  constexpr int64_t kLine = 64 / sizeof(T);
  for (int64_t at = 0; at < dim; at += kLine) __builtin_prefetch(row + at, 0, 2);
}

// scores[head][key] = q[head] . k[key]; prefetches the values, which are needed next.
template <int kHeads, class T>
inline void score(const PlainQueries<T>& queries, const SplitKeys<T>& keys, int64_t dim,
                  float* scores) {
  const T* q = queries.q;
  constexpr int64_t kWide = kLanes * kUnit<T>;
  for (int key = 0; key < keys.count; ++key) {
    prefetch(keys.v[key], dim);
    Floats sums[kHeads] = {};
    int64_t at = 0;
    for (; at + kWide <= dim; at += kWide) {
      const auto k = load_units(keys.k[key] + at);
      for (int head = 0; head < kHeads; ++head) {
        sums[head] = multiply_add(sums[head], load_units(q + head * dim + at), k);
      }
    }
    if (at < dim) {
      const auto k = load_some_units(keys.k[key] + at, dim - at);
      for (int head = 0; head < kHeads; ++head) {
        const auto some = load_some_units(q + head * dim + at, dim - at);
        sums[head] = multiply_add(sums[head], some, k);
      }
    }
    for (int head = 0; head < kHeads; ++head) scores[head * kSplitBlock + key] = sum_of(sums[head]);
  }
}

// The same with K of another type, which is widened; one in 8 bits is not yet multiplied by its
// scales.
template <int kHeads, class T, class C>
inline void score(const PlainQueries<T>& queries, const SplitKeys<C>& keys, int64_t dim,
                  float* scores) {
  for (int key = 0; key < keys.count; ++key) {
    prefetch(keys.v[key], dim);
    Floats sums[kHeads] = {};
    each(
        dim,
        [&](int64_t at) {
          const Floats k = load(keys.k[key] + at);
          for (int head = 0; head < kHeads; ++head) {
            sums[head] += load(queries.q + head * dim + at) * k;
          }
        },
        [&](int64_t at, int64_t left) {
          const Floats k = load_some(keys.k[key] + at, left);
          for (int head = 0; head < kHeads; ++head) {
            sums[head] += load_some(queries.q + head * dim + at, left) * k;
          }
        });
    for (int head = 0; head < kHeads; ++head) scores[head * kSplitBlock + key] = sum_of(sums[head]);
  }
}

#if defined(__AVX512VNNI__) || defined(__ARM_FEATURE_DOTPROD)
// The same in integers; see TwoByteQueries.
template <int kHeads>
inline void score(const TwoByteQueries& queries, const SplitKeys<int8_t>& keys, int64_t dim,
                  float* scores) {
  for (int key = 0; key < keys.count; ++key) {
    prefetch(keys.v[key], dim);
    Ints high[kHeads] = {}, low[kHeads] = {};
    for (int64_t at = 0; at < dim; at += kQuad) {
      const KeyBytes k = queries.shifted(keys.k[key] + at, dim - at);
      for (int head = 0; head < kHeads; ++head) {
        high[head] = multiply_add(high[head], k, load_units(queries.high(head) + at));
        low[head] = multiply_add(low[head], k, load_units(queries.low(head) + at));
      }
    }
    for (int head = 0; head < kHeads; ++head) {
      scores[head * kSplitBlock + key] = queries.score(head, (high[head] << 8) + low[head]);
    }
  }
}
#endif

// accumulator[head] = accumulator[head] * factor[head] + sum of weight * v, for kVectors vectors of
// the head. Prefetches what the next keys hold there.
template <int kHeads, int kVectors, class C>
inline void accumulate_slice(const float* weights, const float* factors, const SplitKeys<C>& keys,
                             const SplitKeys<C>& next, int64_t at, float* accumulator,
                             int64_t stride) {
  Floats sums[kHeads][kVectors];
  for (int head = 0; head < kHeads; ++head) {
    for (int part = 0; part < kVectors; ++part) {
      sums[head][part] = load(accumulator + head * stride + at + part * kLanes) * factors[head];
    }
  }
  for (int key = 0; key < keys.count; ++key) {
    if (key < next.count) prefetch(next.k[key] + at, kVectors * kLanes);
    for (int part = 0; part < kVectors; ++part) {
      const Floats v = load(keys.v[key] + at + part * kLanes);
      for (int head = 0; head < kHeads; ++head) {
        sums[head][part] += weights[head * kSplitBlock + key] * v;
      }
    }
  }
  for (int head = 0; head < kHeads; ++head) {
    for (int part = 0; part < kVectors; ++part) {
      store(accumulator + head * stride + at + part * kLanes, sums[head][part]);
    }
  }
}

template <class C>
inline void accumulate_rest(int64_t heads, const float* weights, const float* factors,
                            const SplitKeys<C>& keys, int64_t at, int64_t left, float* accumulator,
                            int64_t stride) {
  for (int64_t head = 0; head < heads; ++head) {
    Floats sums = load(accumulator + head * stride + at) * factors[head];
    for (int key = 0; key < keys.count; ++key) {
      sums += weights[head * kSplitBlock + key] * load_some(keys.v[key] + at, left);
    }
    store(accumulator + head * stride + at, sums);
  }
}

template <int kHeads, class C>
inline void accumulate(const float* weights, const float* factors, const SplitKeys<C>& keys,
                       const SplitKeys<C>& next, int64_t dim, float* accumulator, int64_t stride) {
  int64_t at = 0;
  for (; at + kSlice * kLanes <= dim; at += kSlice * kLanes) {
    accumulate_slice<kHeads, kSlice>(weights, factors, keys, next, at, accumulator, stride);
  }
  for (; at + kLanes <= dim; at += kLanes) {
    accumulate_slice<kHeads, 1>(weights, factors, keys, next, at, accumulator, stride);
  }
  if (at < dim) accumulate_rest(kHeads, weights, factors, keys, at, dim - at, accumulator, stride);
}

// Some heads of a query that sees the first `sees` of some keys; `accumulator` and `state` are those
// of the first of the heads.
template <int kHeads, class Queries, class C>
inline void attend_heads(const Queries& queries, const SplitKeys<C>& keys, const SplitKeys<C>& next,
                         int64_t sees, int64_t dim, float scale, Softmax* state, float* accumulator,
                         int64_t stride) {
  alignas(64) float scores[kHeads * kSplitBlock];
  alignas(64) float weights[kHeads * kSplitBlock];
  float factors[kHeads];
  score<kHeads>(queries, keys, dim, scores);
  const int64_t padded = round_up(keys.count, kLanes);
  for (int head = 0; head < kHeads; ++head) {
    float* of_head = scores + head * kSplitBlock;
    keys.scales.scale(of_head, padded);
    for (int64_t key = sees; key < padded; ++key) of_head[key] = -__builtin_inff();
    factors[head] =
        state[head].update(of_head, padded, scale, keys.scales, weights + head * kSplitBlock);
  }
  accumulate<kHeads>(weights, factors, keys, next, dim, accumulator, stride);
}

template <class T>
inline void store_head(const float* accumulator, float factor, int64_t dim, T* out) {
  each(
      dim, [&](int64_t at) { store(out + at, load(accumulator + at) * factor); },
      [&](int64_t at, int64_t left) {
        store_some(out + at, load_some(accumulator + at, left) * factor, left);
      });
}

// Stores what a line has summed up: as its output, or as one of the results to be combined.
template <class T, class C>
inline void store_line(const Attention<T, C>& attention, const Task& task, int64_t line,
                       const float* accumulator, const Softmax& state) {
  const int64_t dim = attention.cache.head_dim, group = attention.group();
  const int64_t query = line / group, head = line % group;
  if (task.partial < 0) {
    T* out = attention.output(task.token + query, task.kv_head) + head * dim;
    return store_head(accumulator, 1.0f / state.sum, dim, out);
  }
  const int64_t number = (task.partial + query * task.splits) * group + head;
  float* partial = attention.partials + number * attention.partial_size();
  std::memcpy(partial, accumulator, dim * sizeof(float));
  partial[dim] = state.largest;
  partial[dim + 1] = state.sum;
}

template <class T, class C>
inline void attend_split(const Attention<T, C>& attention, const Task& task) {
  using Queries = QueriesFor<T, C>;
  const int64_t dim = attention.cache.head_dim, group = attention.group();
  const int64_t stride = round_up(dim, kLanes), lines = task.queries * group;
  const int64_t state_floats = lines * (stride + 2), query_floats = Queries::floats(group, dim);
  float* accumulator = scratch_of_thread(state_floats + task.queries * query_floats);
  std::fill_n(accumulator, lines * stride, 0.0f);
  Softmax* state = reinterpret_cast<Softmax*>(accumulator + lines * stride);
  std::fill_n(state, lines, Softmax{});
  std::array<std::optional<Queries>, kFewQueries> queries;
  for (int64_t query = 0; query < task.queries; ++query) {
    queries[query].emplace(attention.query(task.token + query, task.kv_head), group, dim,
                           accumulator + state_floats + query * query_floats);
  }
  SplitKeys<C> both[2] = {SplitKeys<C>(attention, task, task.first_key), SplitKeys<C>()};
  for (int64_t first = task.first_key; first < task.last_key; first += kSplitBlock) {
    const int now = (first - task.first_key) / kSplitBlock % 2;
    const SplitKeys<C>& keys = both[now];
    both[1 - now] = SplitKeys<C>(attention, task, first + kSplitBlock);
    for (int64_t query = 0; query < task.queries; ++query) {
      const int64_t sees = std::min<int64_t>(keys.count, task.sees(query) - first);
      if (sees <= 0) continue;
      for (int64_t head = 0; head < group; head += kHeadsTogether) {
        const int64_t heads = std::min<int64_t>(kHeadsTogether, group - head);
        const int64_t line = query * group + head;
        with_constant<kHeadsTogether>(static_cast<int>(heads), [&](auto together) {
          attend_heads<together.value>(queries[query]->from(head), keys, both[1 - now], sees, dim,
                                       attention.scale, state + line, accumulator + line * stride,
                                       stride);
        });
      }
    }
  }
  for (int64_t line = 0; line < lines; ++line) {
    store_line(attention, task, line, accumulator + line * stride, state[line]);
  }
}

// Combines splits of one context, each by its share of the softmax.
template <class T, class C>
inline void combine_splits(const Attention<T, C>& attention, const SplitGroup& splits) {
  const int64_t dim = attention.cache.head_dim, group = attention.group();
  float* accumulator = scratch_of_thread(round_up(dim, kLanes));
  for (int64_t head = 0; head < group; ++head) {
    const auto partial = [&](int64_t number) {
      return attention.partials +
             ((splits.partial + number) * group + head) * attention.partial_size();
    };
    float largest = -__builtin_inff(), sum = 0;
    for (int64_t split = 0; split < splits.count; ++split) {
      largest = std::max(largest, partial(split)[dim]);
    }
    std::fill_n(accumulator, round_up(dim, kLanes), 0.0f);
    for (int64_t split = 0; split < splits.count; ++split) {
      const float* from = partial(split);
      const float factor = exp2_of<6>(splat(from[dim] - largest))[0];
      sum += factor * from[dim + 1];
      for (int64_t at = 0; at < dim; ++at) accumulator[at] += factor * from[at];
    }
    store_head(accumulator, 1.0f / sum, dim,
               attention.output(splits.token, splits.kv_head) + head * dim);
  }
}

}  // namespace tandem
