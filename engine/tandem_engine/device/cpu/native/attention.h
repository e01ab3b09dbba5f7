// Causal attention of the rows of one step, straight from the blocks of the KV cache.
//
// The work is divided into tasks of one KV head each, so that all query heads that share it share
// each load of K and V (Ainslie et al., "GQA", 2023):
//
// - a *KV split*: one query, or the few of a row that verifies drafts, over a range of keys. A long
//   context is cut into several, whose results are combined afterwards (Dao et al.,
//   "Flash-Decoding", 2023), so that one sequence alone keeps all cores busy;
// - a *tile*: queries of one chunk over all keys that the last of them sees.
//
// Both go through the keys once, some at a time, with a running softmax (Milakov and Gimelshein,
// "Online normalizer calculation for softmax", 2018).

#pragma once

#include <algorithm>
#include <vector>

#include "elementwise.h"
#include "linear.h"

namespace tandem {

constexpr int kSplitBlock = 64;  // keys at a time: their K and V fit the first-level cache
constexpr int kTileKeys = 128;  // packed, in the second-level cache
static_assert(kTileKeys % kPanel == 0);
constexpr int kTileRows = 16 * kStrip;  // queries times heads of one tile, at most
constexpr int64_t kFewQueries = 8;     // with so few, packing keys for tiles does not pay
constexpr int64_t kShortestSplit = 256;  // keys; combining shorter ones costs more than it saves

// Rows of a step: see `AttentionMetadata`.
struct Rows {
  const int32_t* starts;       // [rows + 1] first token of each row
  const int32_t* contexts;     // [rows] tokens of each row in the cache
  const int32_t* first_block;  // [rows + 1] into blocks
  const int32_t* blocks;       // ids, row by row
  int64_t count;
};

struct Task {
  int32_t row, kv_head;
  int32_t token, queries;       // of the flat batch
  int32_t first_key, last_key;  // of the row; last_key is behind the last one
  int32_t unseen;               // keys before last_key that the first query does not see
  int32_t partial, splits;      // index of the first query's result among those to combine, or -1;
                                // the next query's is `splits` behind it

  // Behind the last key that a query of the task sees.
  int64_t sees(int64_t query) const { return last_key - std::max<int64_t>(0, unseen - query); }
};

// The splits of one query and KV head.
struct SplitGroup {
  int32_t token, kv_head, partial, count;
};

struct Plan {
  std::vector<Task> tasks;
  std::vector<SplitGroup> split_groups;
  int64_t num_partials = 0;

  Plan(const Rows& rows, int64_t kv_heads, int64_t group, int threads) {
    const int64_t fair = fair_split(rows, kv_heads, threads);
    for (int32_t row = 0; row < rows.count; ++row) {
      const int32_t queries = rows.starts[row + 1] - rows.starts[row];
      for (int32_t head = 0; head < kv_heads; ++head) {
        if (queries <= kFewQueries) {
          add_splits(rows, row, head, fair);
        } else {
          add_tiles(rows, row, head, group);
        }
      }
    }
    // Long ones first, so that all workers end together.
    std::sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) {
      return cost(a) != cost(b) ? cost(a) > cost(b)
                                : (a.token != b.token ? a.token < b.token : a.kv_head < b.kv_head);
    });
  }

  static int64_t cost(const Task& task) {
    return int64_t{task.queries} * (task.last_key - task.first_key);
  }

 private:
  // Keys of one split, so that there are a few splits for each thread.
  static int64_t fair_split(const Rows& rows, int64_t kv_heads, int threads) {
    int64_t keys = 0;
    for (int64_t row = 0; row < rows.count; ++row) keys += rows.contexts[row];
    const int64_t all = threads > 1 ? keys * kv_heads / (4 * threads) + 1 : INT32_MAX;
    return std::max(all, kShortestSplit);
  }

  void add_splits(const Rows& rows, int32_t row, int32_t head, int64_t fair) {
    const int32_t token = rows.starts[row], queries = rows.starts[row + 1] - token;
    const int32_t keys = rows.contexts[row];
    const int32_t splits = int32_t((keys + fair - 1) / fair);
    const bool is_cut = splits > 1;
    const int32_t partial = is_cut ? int32_t(num_partials) : -1;
    for (int32_t number = 0; number < splits; ++number) {
      const int32_t unseen = number == splits - 1 ? queries - 1 : 0;
      tasks.push_back({row, head, token, queries, int32_t(int64_t{keys} * number / splits),
                       int32_t(int64_t{keys} * (number + 1) / splits), unseen,
                       is_cut ? partial + number : -1, splits});
    }
    if (!is_cut) return;
    for (int32_t query = 0; query < queries; ++query) {
      split_groups.push_back({token + query, head, int32_t(num_partials), splits});
      num_partials += splits;
    }
  }

  void add_tiles(const Rows& rows, int32_t row, int32_t head, int64_t group) {
    const int32_t begin = rows.starts[row], end = rows.starts[row + 1];
    const int32_t most = int32_t(std::max<int64_t>(1, kTileRows / group));
    for (int32_t token = begin; token < end; token += most) {
      const int32_t queries = std::min(most, end - token);
      const int32_t keys = rows.contexts[row] - (end - token - queries);
      tasks.push_back({row, head, token, queries, 0, keys, queries - 1, -1, 1});
    }
  }
};

// C is the type of the cache: T, float16 with T float, or int8_t with scales.
template <class T, class C>
struct Attention {
  const T* q;        // [tokens, heads * head_dim], `stride` from token to token
  int64_t stride;
  int64_t heads;
  LayerCache<C> cache;
  Rows rows;
  float scale;       // of the scores, times log2 e
  T* out;            // [tokens, heads * head_dim], contiguous
  float* partials;   // [partials, group, head_dim + 2]: sums, then largest score and sum of weights

  int64_t group() const { return heads / cache.kv_heads; }
  int64_t partial_size() const { return cache.head_dim + 2; }
  const T* query(int64_t token, int64_t kv_head) const {
    return q + token * stride + kv_head * group() * cache.head_dim;
  }
  T* output(int64_t token, int64_t kv_head) const {
    return out + (token * heads + kv_head * group()) * cache.head_dim;
  }
};

// The scales of some keys. Scores and weights are multiplied by them, not the many values of K and
// V. A cache in float has none.
template <class C, int kMost>
struct Scales {
  void take(const LayerCache<C>&, int, int64_t, int64_t, int64_t) {}
  void finish(int) {}
  void scale(float*, int64_t) const {}
  Floats scale_weights(int64_t, Floats weights) const { return weights; }
};

template <int kMost>
struct Scales<int8_t, kMost> {
  float k[kMost];
  float v[kMost];

  void take(const LayerCache<int8_t>& cache, int key, int64_t block, int64_t head, int64_t offset) {
    const int64_t at = cache.scale_offset(block, head, offset);
    std::memcpy(k + key, cache.keys + at, sizeof(float));
    std::memcpy(v + key, cache.values + at, sizeof(float));
  }
  // Behind the last key they meet scores of -inf, which must stay so.
  void finish(int count) {
    for (int key = count; key < kMost; ++key) k[key] = v[key] = 1.0f;
  }
  void scale(float* scores, int64_t padded) const {
    for (int64_t at = 0; at < padded; at += kLanes) {
      store(scores + at, load(scores + at) * load(k + at));
    }
  }
  Floats scale_weights(int64_t at, Floats weights) const { return weights * load(v + at); }
};

// Pointers to K and V of some keys.
template <class C, int kMost>
struct Keys {
  const C* k[kMost];
  const C* v[kMost];
  Scales<C, kMost> scales;
  int count = 0;

  Keys() = default;

  template <class T>
  Keys(const Attention<T, C>& attention, const Task& task, int64_t first) {
    const LayerCache<C>& cache = attention.cache;
    const int32_t* table = attention.rows.blocks + attention.rows.first_block[task.row];
    int64_t block = first / cache.block_size, offset = first % cache.block_size;
    for (int64_t key = first; key < task.last_key && count < kMost; ++key, ++count) {
      const int64_t slot = cache.offset(table[block], task.kv_head, offset);
      k[count] = cache.keys + slot;
      v[count] = cache.values + slot;
      scales.take(cache, count, table[block], task.kv_head, offset);
      if (++offset == cache.block_size) {
        offset = 0;
        ++block;
      }
    }
    scales.finish(count);
  }
};

// The running softmax of one query: the weights so far are 2^(score - largest), where scores are
// scaled by log2 e besides, since powers of 2 are cheaper.
struct Softmax {
  float largest = -__builtin_inff();
  float sum = 0;

  // Turns scores, padded with -inf to whole vectors, into weights of values as they are stored;
  // returns the factor of the earlier weights. Weights are padded with 0.
  template <class P, class AnyScales>
  float update(const float* scores, int64_t padded, float scale, const AnyScales& scales,
               P* weights) {
    constexpr int kDegree = sizeof(P) == 2 ? 4 : 6;
    Floats most = splat(-__builtin_inff());
    for (int64_t at = 0; at < padded; at += kLanes) most = larger(load(scores + at), most);
    const float now = std::max(largest, largest_of(most) * scale);
    Floats sums = {};
    for (int64_t at = 0; at < padded; at += kLanes) {
      const Floats weight = exp2_of<kDegree>(load(scores + at) * scale - now);
      sums += weight;
      store(weights + at, scales.scale_weights(at, weight));
    }
    // After the first keys the largest score seldom changes.
    const float factor = largest == now ? 1.0f : exp2_of<6>(splat(largest - now))[0];
    largest = now;
    sum = sum * factor + sum_of(sums);
    return factor;
  }
};

// Memory of one thread, kept from call to call.
inline float* scratch_of_thread(int64_t floats) {
  constexpr int64_t kAlign = 64;
  static thread_local std::vector<float> memory;
  if (static_cast<int64_t>(memory.size()) < floats + kAlign) memory.resize(floats + kAlign);
  const uintptr_t address = reinterpret_cast<uintptr_t>(memory.data());
  return reinterpret_cast<float*>((address + kAlign - 1) / kAlign * kAlign);
}

}  // namespace tandem

#include "attention_split.h"
#include "attention_tile.h"

namespace tandem {

// The writes to the cache must be visible to all workers; any may read `out` afterwards.
template <class T, class C>
inline void attend(WorkerContext& worker, const Plan& plan, const Attention<T, C>& attention) {
  const int64_t tasks = static_cast<int64_t>(plan.tasks.size());
  for (const int64_t number : worker.each(tasks)) {
    const Task& task = plan.tasks[number];
    if (task.queries > kFewQueries) {
      attend_tile(attention, task);
    } else {
      attend_split(attention, task);
    }
  }
  if (plan.split_groups.empty()) return;
  for (const int64_t number : worker.each_in_runs(static_cast<int64_t>(plan.split_groups.size()))) {
    combine_splits(attention, plan.split_groups[number]);
  }
}

}  // namespace tandem
