// One query over a range of keys: reading K and V is what takes the time.

#pragma once

#include "attention.h"
#include "attention_query.h"

namespace tandem {

constexpr int kHeadsTogether = 4;  // query heads that share a load of K or V
constexpr int kSlice = kLanes == 16 ? 4 : 2;  // vectors of an output that stay in registers

template <class C>
using LookKeys = Keys<C, kLookKeys>;

// Sends for a row, as far as the second-level cache: in the first it would drive out what is in use.
template <class T>
inline void fetch(const T* row, int64_t dim) {
  constexpr int64_t kLine = 64 / sizeof(T);
  for (int64_t at = 0; at < dim; at += kLine) __builtin_prefetch(row + at, 0, 2);
}

// scores[head][key] = q[head] . k[key]; the values are needed next, so they are sent for.
template <int kHeads, class T>
inline void score(const PlainQueries<T>& queries, const LookKeys<T>& keys, int64_t dim,
                  float* scores) {
  const T* q = queries.q;
  constexpr int64_t kWide = kLanes * kUnit<T>;
  for (int key = 0; key < keys.count; ++key) {
    fetch(keys.v[key], dim);
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
    for (int head = 0; head < kHeads; ++head) scores[head * kLookKeys + key] = sum_of(sums[head]);
  }
}

// The same with K of another type, which is widened; one in 8 bits is not yet multiplied by its
// scales.
template <int kHeads, class T, class C>
inline void score(const PlainQueries<T>& queries, const LookKeys<C>& keys, int64_t dim,
                  float* scores) {
  for (int key = 0; key < keys.count; ++key) {
    fetch(keys.v[key], dim);
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
    for (int head = 0; head < kHeads; ++head) scores[head * kLookKeys + key] = sum_of(sums[head]);
  }
}

#if defined(__AVX512VNNI__)
// The same in integers; see SplitQueries.
template <int kHeads>
inline void score(const SplitQueries& queries, const LookKeys<int8_t>& keys, int64_t dim,
                  float* scores) {
  for (int key = 0; key < keys.count; ++key) {
    fetch(keys.v[key], dim);
    Ints high[kHeads] = {}, low[kHeads] = {};
    for (int64_t at = 0; at < dim; at += kQuad) {
      const Words k = queries.shifted(keys.k[key] + at, dim - at);
      for (int head = 0; head < kHeads; ++head) {
        high[head] = multiply_add(high[head], k, load_units(queries.high(head) + at));
        low[head] = multiply_add(low[head], k, load_units(queries.low(head) + at));
      }
    }
    for (int head = 0; head < kHeads; ++head) {
      scores[head * kLookKeys + key] = queries.score(head, (high[head] << 8) + low[head]);
    }
  }
}
#endif

// mixed[head] = mixed[head] * factor[head] + sum of weight * v, for kVectors vectors of the head.
// What the next keys hold there is sent for.
template <int kHeads, int kVectors, class C>
inline void mix_slice(const float* weights, const float* factors, const LookKeys<C>& keys,
                      const LookKeys<C>& next, int64_t at, float* mixed, int64_t stride) {
  Floats sums[kHeads][kVectors];
  for (int head = 0; head < kHeads; ++head) {
    for (int part = 0; part < kVectors; ++part) {
      sums[head][part] = load(mixed + head * stride + at + part * kLanes) * factors[head];
    }
  }
  for (int key = 0; key < keys.count; ++key) {
    if (key < next.count) fetch(next.k[key] + at, kVectors * kLanes);
    for (int part = 0; part < kVectors; ++part) {
      const Floats v = load(keys.v[key] + at + part * kLanes);
      for (int head = 0; head < kHeads; ++head) sums[head][part] += weights[head * kLookKeys + key] * v;
    }
  }
  for (int head = 0; head < kHeads; ++head) {
    for (int part = 0; part < kVectors; ++part) {
      store(mixed + head * stride + at + part * kLanes, sums[head][part]);
    }
  }
}

template <class C>
inline void mix_rest(int64_t heads, const float* weights, const float* factors,
                     const LookKeys<C>& keys, int64_t at, int64_t left, float* mixed,
                     int64_t stride) {
  for (int64_t head = 0; head < heads; ++head) {
    Floats sums = load(mixed + head * stride + at) * factors[head];
    for (int key = 0; key < keys.count; ++key) {
      sums += weights[head * kLookKeys + key] * load_some(keys.v[key] + at, left);
    }
    store(mixed + head * stride + at, sums);
  }
}

template <int kHeads, class C>
inline void mix(const float* weights, const float* factors, const LookKeys<C>& keys,
                const LookKeys<C>& next, int64_t dim, float* mixed, int64_t stride) {
  int64_t at = 0;
  for (; at + kSlice * kLanes <= dim; at += kSlice * kLanes) {
    mix_slice<kHeads, kSlice>(weights, factors, keys, next, at, mixed, stride);
  }
  for (; at + kLanes <= dim; at += kLanes) {
    mix_slice<kHeads, 1>(weights, factors, keys, next, at, mixed, stride);
  }
  if (at < dim) mix_rest(kHeads, weights, factors, keys, at, dim - at, mixed, stride);
}

// Some heads over some keys; `mixed` and `state` are those of the first of the heads.
template <int kHeads, class Queries, class C>
inline void look_at(const Queries& queries, const LookKeys<C>& keys, const LookKeys<C>& next,
                    int64_t dim, float scale, Softmax* state, float* mixed, int64_t stride) {
  alignas(64) float scores[kHeads * kLookKeys];
  alignas(64) float weights[kHeads * kLookKeys];
  float factors[kHeads];
  score<kHeads>(queries, keys, dim, scores);
  const int64_t padded = round_up(keys.count, kLanes);
  for (int head = 0; head < kHeads; ++head) {
    float* of_head = scores + head * kLookKeys;
    keys.scales.scale(of_head, padded);
    for (int64_t key = keys.count; key < padded; ++key) of_head[key] = -__builtin_inff();
    factors[head] =
        state[head].update(of_head, padded, scale, keys.scales, weights + head * kLookKeys);
  }
  mix<kHeads>(weights, factors, keys, next, dim, mixed, stride);
}

template <class T>
inline void store_head(const float* mixed, float factor, int64_t dim, T* out) {
  each(
      dim, [&](int64_t at) { store(out + at, load(mixed + at) * factor); },
      [&](int64_t at, int64_t left) {
        store_some(out + at, load_some(mixed + at, left) * factor, left);
      });
}

template <class T, class C>
inline void attend_look(const Attention<T, C>& attention, const Task& task) {
  using Queries = QueriesFor<T, C>;
  const int64_t dim = attention.cache.head_dim, group = attention.group();
  const int64_t stride = round_up(dim, kLanes);
  const int64_t room = group * (stride + 2);
  float* mixed = scratch_of_thread(room + Queries::floats(group, dim));
  std::fill_n(mixed, group * stride, 0.0f);
  Softmax* state = reinterpret_cast<Softmax*>(mixed + group * stride);
  std::fill_n(state, group, Softmax{});
  const Queries queries(attention.query(task.token, task.kv_head), group, dim, mixed + room);
  LookKeys<C> both[2] = {LookKeys<C>(attention, task, task.first_key), LookKeys<C>()};
  for (int64_t first = task.first_key; first < task.last_key; first += kLookKeys) {
    const int now = (first - task.first_key) / kLookKeys % 2;
    const LookKeys<C>& keys = both[now];
    both[1 - now] = LookKeys<C>(attention, task, first + kLookKeys);
    for (int64_t head = 0; head < group; head += kHeadsTogether) {
      const int64_t heads = std::min<int64_t>(kHeadsTogether, group - head);
      with_constant<kHeadsTogether>(static_cast<int>(heads), [&](auto together) {
        look_at<together.value>(queries.from(head), keys, both[1 - now], dim, attention.scale,
                                state + head, mixed + head * stride, stride);
      });
    }
  }
  for (int64_t head = 0; head < group; ++head) {
    if (task.partial < 0) {
      T* out = attention.output(task.token, task.kv_head) + head * dim;
      store_head(mixed + head * stride, 1.0f / state[head].sum, dim, out);
      continue;
    }
    float* partial = attention.partials + (task.partial * group + head) * attention.partial_size();
    std::memcpy(partial, mixed + head * stride, dim * sizeof(float));
    partial[dim] = state[head].largest;
    partial[dim + 1] = state[head].sum;
  }
}

// Joins looks over parts of one context, each by its share of the softmax.
template <class T, class C>
inline void merge_looks(const Attention<T, C>& attention, const Merge& merge) {
  const int64_t dim = attention.cache.head_dim, group = attention.group();
  float* mixed = scratch_of_thread(round_up(dim, kLanes));
  for (int64_t head = 0; head < group; ++head) {
    const auto partial = [&](int64_t number) {
      return attention.partials +
             ((merge.partial + number) * group + head) * attention.partial_size();
    };
    float largest = -__builtin_inff(), sum = 0;
    for (int64_t look = 0; look < merge.count; ++look) {
      largest = std::max(largest, partial(look)[dim]);
    }
    std::fill_n(mixed, round_up(dim, kLanes), 0.0f);
    for (int64_t look = 0; look < merge.count; ++look) {
      const float* from = partial(look);
      const float factor = exp2_of<6>(splat(from[dim] - largest))[0];
      sum += factor * from[dim + 1];
      for (int64_t at = 0; at < dim; ++at) mixed[at] += factor * from[at];
    }
    store_head(mixed, 1.0f / sum, dim, attention.output(merge.token, merge.kv_head) + head * dim);
  }
}

}  // namespace tandem
