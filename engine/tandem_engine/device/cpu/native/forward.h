// The whole forward pass of a decoder in one call, or one stage of it: what ranks that share a
// model compute between two collectives.
//
// Workers wait between kernels where one reads the results of another. That takes well under a
// microsecond; a call from Python that wakes the threads takes several.

#pragma once

#include <algorithm>
#include <memory>

#include "attention.h"
#include "linear_int8.h"
#include "quantize.h"

namespace tandem {

// These structures are filled by `forward.py`, field by field; every field has 8 bytes.

// A linear layer in float or in 8 bits; the other field is all zeros. Layers of one model may
// differ.
template <class E>
struct Linear {
  Weight<E> in_float;
  Int8Weight in_int8;

  bool is_int8() const { return in_int8.panels != nullptr; }
};

// E is the type of weights, and of the cache unless that is in 8 bits.
template <class E>
struct Layer {
  using T = Computed<E>;

  const T* attention_norm;
  Linear<E> qkv;
  const T* q_norm;  // or null
  const T* k_norm;  // or null
  Linear<E> output;
  const T* mlp_norm;
  Linear<E> gate_up;
  Linear<E> down;

  bool has_int8() const {
    return qkv.is_int8() || output.is_int8() || gate_up.is_int8() || down.is_int8();
  }
};

template <class E>
struct Model {
  using T = Computed<E>;

  int64_t num_layers, hidden, intermediate, heads, kv_heads, head_dim;
  double eps, scale;
  const T* rope;            // [positions, head_dim]
  const E* embedding;       // [vocabulary, hidden], or null: the rows of `head`
  const T* norm;            // null where another rank computes logits
  Linear<E> head;           // all zeros there
  const Layer<E>* layers;
  // Of a rank: the tokens whose embeddings are here, from `first_token`; others give zeros.
  int64_t first_token, num_tokens;

  int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_dim; }
  int64_t attention_width() const { return heads * head_dim; }
  bool has_head() const { return norm != nullptr; }
  bool has_int8() const {
    return head.is_int8() ||
           std::any_of(layers, layers + num_layers, [](const auto& each) { return each.has_int8(); });
  }
};

template <class T>
struct Step {
  TokenSlots<T> slots;  // its rope is unused
  Rows rows;
  const int64_t* token_ids;
  const int64_t* logits_rows;  // [num_logits_rows] tokens of which the logits are asked for
  int64_t num_logits_rows;
  void* cache;  // [layers, 2, num_blocks, kv_heads, page]: see LayerCache
  int64_t num_blocks, block_size;
  int64_t is_cache_int8;  // or else of the weights' type
  int64_t num_rows;  // of hidden states: tokens, and more where ranks share them evenly
  T* activations;  // as many as `Activations::count` says of these rows
  float* logits;   // [num_logits_rows, vocabulary]
};

// The activations of a step. Those of attention and of the feed-forward layer never live at the
// same time and share their memory.
template <class T>
struct Activations {
  T *residual, *x, *qkv, *attended, *gate_up, *gated;

  template <class E>
  static int64_t widest(const Model<E>& model) {
    return std::max(model.qkv_width() + model.attention_width(), 3 * model.intermediate);
  }

  template <class E>
  static int64_t count(const Model<E>& model, int64_t tokens) {
    return tokens * (2 * model.hidden + widest(model));
  }

  template <class E>
  Activations(const Model<E>& model, int64_t tokens, T* memory)
      : residual(memory),
        x(residual + tokens * model.hidden),
        qkv(x + tokens * model.hidden),
        attended(qkv + tokens * model.qkv_width()),
        gate_up(qkv),
        gated(gate_up + tokens * 2 * model.intermediate) {}
};

// The inputs of linear layers in 8 bits: bytes, and a scale a row. A model without any has none.
struct Quantized {
  std::unique_ptr<uint8_t[]> bytes;
  std::unique_ptr<float[]> scales;

  template <class E>
  Quantized(const Model<E>& model, int64_t tokens) {
    if (!model.has_int8()) return;
    const int64_t widest = std::max({model.hidden, model.attention_width(), model.intermediate});
    bytes.reset(new uint8_t[tokens * widest]);
    scales.reset(new float[tokens]);
  }
};

// One call into a forward pass that is computed stage by stage.
struct Stage {
  enum Kind : int64_t { kEmbed, kAttentionNorm, kAttention, kMlpNorm, kMlp, kLeave, kLogits };

  int64_t kind, layer;
  int64_t is_normed;         // of kAttention and kMlp: x is the norm already
  int64_t has_residual;      // or else x is its first part
  // Of kAttentionNorm, kMlpNorm, kLeave and, among the rows of the logits, kLogits; of others, all.
  int64_t first_row, rows;
};

template <class E>
class Forward {
  using T = Computed<E>;

 public:
  Forward(const Model<E>& model, const Step<T>& step, int threads)
      : model_(model),
        step_(step),
        memory_(model, step.num_rows, step.activations),
        quantized_(model, step.slots.tokens),
        plan_(step.rows, model.kv_heads, model.heads / model.kv_heads, threads),
        partials_(plan_.num_partials * model.heads / model.kv_heads * (model.head_dim + 2)) {
    slots_ = step.slots;
    slots_.rope = model.rope;
    rows_ = slots_.tokens;
  }

  // Operations of one layer or the head, to choose the number of workers by.
  int64_t operations_of(const Stage& stage) const {
    const int64_t tokens = slots_.tokens;
    switch (stage.kind) {
      case Stage::kAttention:
        return tokens * model_.hidden * (model_.qkv_width() + model_.attention_width());
      case Stage::kMlp:
        return tokens * model_.hidden * 3 * model_.intermediate;
      case Stage::kLogits:
        return stage.rows * model_.hidden * model_.num_tokens;
      default:
        return tokens * model_.hidden;
    }
  }

  // One stage. Between two of them, `residual` is the sum of all results so far but the last, and
  // `x` the last one, which the ranks have added up meanwhile. Call `done` after it, once.
  void run(WorkerContext& worker, const Stage& stage) {
    const Layer<E>& layer = model_.layers[stage.layer];
    switch (stage.kind) {
      case Stage::kEmbed:
        return embed(worker, memory_.x);
      case Stage::kAttentionNorm:
        return norm_rows(worker, stage, layer.attention_norm);
      case Stage::kMlpNorm:
        return norm_rows(worker, stage, layer.mlp_norm);
      case Stage::kLeave:
        return add(worker, stage.has_residual, stage.first_row, stage.rows, memory_.x);
      case Stage::kAttention:
        enter(worker, stage, layer.attention_norm, layer.qkv, 0, slots_.tokens);
        attention_of_any(worker, layer, stage.layer);
        if (cuts(stage)) keep_logits_rows(worker);
        return project(worker, layer, rows_after(stage), kNone, memory_.x);
      case Stage::kMlp:
        enter(worker, stage, layer.mlp_norm, layer.gate_up, 0, rows_);
        return feed_forward(worker, layer, rows_, kNone, memory_.x);
      case Stage::kLogits:
        enter(worker, stage, model_.norm, model_.head, stage.first_row, stage.rows);
        return product(worker, memory_.x + stage.first_row * model_.hidden, stage.rows, model_.head,
                       kNone, step_.logits);
    }
  }

  // Takes note of a stage that all workers have computed.
  void done(const Stage& stage) { rows_ = rows_after(stage); }

  void operator()(WorkerContext& worker) {
    embed(worker, memory_.residual);
    int64_t rows = slots_.tokens;
    norm_for(worker, model_.layers[0].attention_norm, model_.layers[0].qkv, 0, rows);
    for (int64_t number = 0; number < model_.num_layers; ++number) {
      const Layer<E>& layer = model_.layers[number];
      const bool is_last = number + 1 == model_.num_layers;
      attention_of_any(worker, layer, number);
      if (is_last) {
        // K and V are written; from here on only the rows of the logits are computed.
        rows = step_.num_logits_rows;
        if (rows == 0) return;
        keep_logits_rows(worker);
      }
      project(worker, layer, rows, memory_.residual, memory_.residual);
      norm_for(worker, layer.mlp_norm, layer.gate_up, 0, rows);
      feed_forward(worker, layer, rows, memory_.residual, memory_.residual);
      if (is_last) break;
      const Layer<E>& next = model_.layers[number + 1];
      norm_for(worker, next.attention_norm, next.qkv, 0, rows);
    }
    norm_for(worker, model_.norm, model_.head, 0, rows);
    product(worker, memory_.x, rows, model_.head, kNone, step_.logits);
  }

 private:
  static constexpr const T* kNone = nullptr;

  const Model<E>& model_;
  const Step<T>& step_;
  TokenSlots<T> slots_;
  Activations<T> memory_;
  Quantized quantized_;
  Plan plan_;
  std::vector<float> partials_;
  int64_t rows_;  // of the next stage: those of the logits at the end

  bool cuts(const Stage& stage) const {
    return stage.kind == Stage::kAttention && model_.has_head() &&
           stage.layer + 1 == model_.num_layers;
  }

  int64_t rows_after(const Stage& stage) const {
    return cuts(stage) ? step_.num_logits_rows : rows_;
  }

  // residual += x, or = x where it has none; the sum goes to `out`, too, if that is another.
  void add(WorkerContext& worker, bool has_residual, int64_t first, int64_t rows, T* out) const {
    const int64_t width = model_.hidden;
    for (const int64_t row : worker.each_in_runs(rows)) {
      const int64_t at = (first + row) * width;
      T* residual = memory_.residual + at;
      const T* x = memory_.x + at;
      if (!has_residual) {
        copy_row(x, width, residual);
        continue;
      }
      each(
          width, [&](int64_t i) { store(residual + i, load(residual + i) + load(x + i)); },
          [&](int64_t i, int64_t left) {
            store_some(residual + i, load_some(residual + i, left) + load_some(x + i, left), left);
          });
      if (out != memory_.residual) copy_row(residual, width, out + at);
    }
  }

  // x = norm of some rows, for other ranks to read.
  void norm_rows(WorkerContext& worker, const Stage& stage, const T* weight) const {
    const int64_t width = model_.hidden, at = stage.first_row * width;
    add(worker, stage.has_residual, stage.first_row, stage.rows, memory_.residual);
    rms_norm(worker, memory_.residual + at, width, weight, stage.rows, width,
             static_cast<float>(model_.eps), memory_.x + at);
  }

  // Prepares what `reader` reads.
  void enter(WorkerContext& worker, const Stage& stage, const T* weight, const Linear<E>& reader,
             int64_t first, int64_t rows) const {
    if (!stage.is_normed) {
      add(worker, stage.has_residual, first, rows, memory_.residual);
      norm_for(worker, weight, reader, first, rows);
    } else if (reader.is_int8()) {
      quantize(worker, memory_.x, rows, model_.hidden, reader.in_int8.input,
               quantized_.bytes.get(), quantized_.scales.get());
    }
  }

  // out = attended by the output projection + residual, if there is one.
  void project(WorkerContext& worker, const Layer<E>& layer, int64_t rows, const T* residual,
               T* out) const {
    if (layer.output.is_int8()) {
      quantize(worker, memory_.attended, rows, model_.attention_width(),
               layer.output.in_int8.input, quantized_.bytes.get(), quantized_.scales.get());
    }
    product(worker, memory_.attended, rows, layer.output, residual, out);
  }

  void embed(WorkerContext& worker, T* hidden) const {
    for (const int64_t token : worker.each_in_runs(slots_.tokens)) {
      T* to = hidden + token * model_.hidden;
      const int64_t id = step_.token_ids[token] - model_.first_token;
      if (id < 0 || id >= model_.num_tokens) {
        std::memset(to, 0, model_.hidden * sizeof(T));
      } else if (model_.embedding) {
        copy_row(model_.embedding + id * model_.hidden, model_.hidden, to);
      } else {
        unpack_row(model_.head.in_float, id, to);
      }
    }
  }

  // Writes the norm of some rows of the residual in the form that `reader` reads: bytes from the
  // front, whichever rows they are of.
  void norm_for(WorkerContext& worker, const T* weight, const Linear<E>& reader, int64_t first,
                int64_t rows) const {
    const float eps = static_cast<float>(model_.eps);
    const int64_t width = model_.hidden, at = first * width;
    if (reader.is_int8()) {
      quantize_norm(worker, memory_.residual + at, weight, rows, width, eps, reader.in_int8.input,
                    quantized_.bytes.get(), quantized_.scales.get());
    } else {
      rms_norm(worker, memory_.residual + at, width, weight, rows, width, eps, memory_.x + at);
    }
  }

  // out = x @ weight.T + residual, if there is one. In 8 bits, x is the last result of
  // quantisation.
  template <class Out>
  void product(WorkerContext& worker, const T* x, int64_t rows, const Linear<E>& linear,
               const T* residual, Out* out) const {
    if (linear.is_int8()) {
      const Int8Weight& weight = linear.in_int8;
      multiply(worker, quantized_.bytes.get(), rows, weight,
               Rescaled<Out, T>(out, residual, quantized_.scales.get(), weight));
    } else {
      multiply(worker, x, rows, linear.in_float, Product<Out, T>(out, residual, linear.in_float));
    }
  }

  // K and V of a layer.
  template <class C>
  LayerCache<C> cache_of(int64_t number) const {
    LayerCache<C> cache{static_cast<C*>(step_.cache), nullptr, model_.kv_heads, step_.block_size,
                        model_.head_dim};
    const int64_t size = step_.num_blocks * model_.kv_heads * cache.page();
    cache.keys += 2 * number * size;
    cache.values = cache.keys + size;
    return cache;
  }

  void attention_of_any(WorkerContext& worker, const Layer<E>& layer, int64_t number) {
    if (step_.is_cache_int8) {
      attention<int8_t>(worker, layer, number);
    } else {
      attention<E>(worker, layer, number);
    }
  }

  template <class C>
  void attention(WorkerContext& worker, const Layer<E>& layer, int64_t number) {
    const int64_t stride = model_.qkv_width();
    const LayerCache<C> cache = cache_of<C>(number);
    product(worker, memory_.x, slots_.tokens, layer.qkv, kNone, memory_.qkv);
    prepare_attention(worker, memory_.qkv, stride, model_.heads, layer.q_norm, layer.k_norm,
                      static_cast<float>(model_.eps), slots_, cache);
    attend(worker, plan_,
           Attention<T, C>{memory_.qkv, stride, model_.heads, cache, step_.rows,
                           static_cast<float>(model_.scale) * kLog2E, memory_.attended,
                           partials_.data()});
  }

  void feed_forward(WorkerContext& worker, const Layer<E>& layer, int64_t rows, const T* residual,
                    T* out) const {
    product(worker, memory_.x, rows, layer.gate_up, kNone, memory_.gate_up);
    if (layer.down.is_int8()) {
      quantize_gated(worker, memory_.gate_up, rows, model_.intermediate, layer.down.in_int8.input,
                     quantized_.bytes.get(), quantized_.scales.get());
    } else {
      silu_mul(worker, memory_.gate_up, rows, model_.intermediate, memory_.gated);
    }
    product(worker, memory_.gated, rows, layer.down, residual, out);
  }

  // Moves the rows of the logits to the front, through memory that is free: their order is free.
  void keep_logits_rows(WorkerContext& worker) {
    T* residual = memory_.x;
    T* attended = memory_.qkv;
    const int64_t hidden = model_.hidden, width = model_.attention_width();
    for (const int64_t row : worker.each_in_runs(step_.num_logits_rows)) {
      const int64_t token = step_.logits_rows[row];
      std::memcpy(residual + row * hidden, memory_.residual + token * hidden, hidden * sizeof(T));
      std::memcpy(attended + row * width, memory_.attended + token * width, width * sizeof(T));
    }
    for (const int64_t row : worker.each_in_runs(step_.num_logits_rows)) {
      std::memcpy(memory_.residual + row * hidden, residual + row * hidden, hidden * sizeof(T));
      std::memcpy(memory_.attended + row * width, attended + row * width, width * sizeof(T));
    }
  }
};

}  // namespace tandem
