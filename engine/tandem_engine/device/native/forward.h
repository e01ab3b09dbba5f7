// The whole forward pass of a decoder in one call.
//
// Between kernels members wait where one reads what another wrote; that costs well under a
// microsecond, where a call from Python and waking the others cost several.

#pragma once

#include <memory>

#include "attention.h"
#include "linear_int8.h"
#include "quantize.h"

namespace tandem {

// These structures are filled by `forward.py`, field by field; every field has 8 bytes.

// W is the weights of linear layers: Weight<T>, or Int8Weight. The head is always the former.
template <class T, class W>
struct Layer {
  const T* attention_norm;
  W qkv;
  const T* q_norm;  // or null
  const T* k_norm;  // or null
  W output;
  const T* mlp_norm;
  W gate_up;
  W down;
};

template <class T, class W>
struct Model {
  int64_t num_layers, hidden, intermediate, heads, kv_heads, head_dim;
  double eps, scale;
  const T* rope;            // [positions, head_dim]
  const T* embedding;       // [vocabulary, hidden], or null: the rows of `head`
  const T* norm;
  Weight<T> head;
  const Layer<T, W>* layers;

  int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_dim; }
  int64_t mixed_width() const { return heads * head_dim; }
};

template <class T>
struct Step {
  Places<T> places;  // its rope is unused
  Rows rows;
  const int64_t* token_ids;
  const int64_t* wanted;  // [num_wanted] tokens of which the logits are asked for
  int64_t num_wanted;
  void* cache;  // [layers, 2, num_blocks, kv_heads, page]: see LayerCache
  int64_t num_blocks, block_size;
  int64_t is_cache_int8;  // or else of type T
  T* activations;  // as many as `Activations::count` says
  float* logits;   // [num_wanted, vocabulary]
};

// Where the activations of a step lie. Those of attention and of the feed-forward layer are never
// there at the same time and share their memory.
template <class T>
struct Activations {
  T *residual, *x, *qkv, *mixed, *gate_up, *gated;

  template <class W>
  static int64_t widest(const Model<T, W>& model) {
    return std::max(model.qkv_width() + model.mixed_width(), 3 * model.intermediate);
  }

  template <class W>
  static int64_t count(const Model<T, W>& model, int64_t tokens) {
    return tokens * (2 * model.hidden + widest(model));
  }

  template <class W>
  Activations(const Model<T, W>& model, int64_t tokens, T* memory)
      : residual(memory),
        x(residual + tokens * model.hidden),
        qkv(x + tokens * model.hidden),
        mixed(qkv + tokens * model.qkv_width()),
        gate_up(qkv),
        gated(gate_up + tokens * 2 * model.intermediate) {}
};

// What a linear layer in 8 bits reads: bytes, and a scale a row. A layer in float has none.
struct Quantized {
  std::unique_ptr<uint8_t[]> bytes;
  std::unique_ptr<float[]> scales;

  template <class Model>
  Quantized(const Model& model, int64_t tokens)
      : bytes(new uint8_t[tokens * std::max({model.hidden, model.mixed_width(),
                                             model.intermediate})]),
        scales(new float[tokens]) {}
};
struct Nothing {
  template <class Model>
  Nothing(const Model&, int64_t) {}
};

template <class T, class W>
class Forward {
 public:
  Forward(const Model<T, W>& model, const Step<T>& step, int threads)
      : model_(model),
        step_(step),
        memory_(model, step.places.tokens, step.activations),
        quantized_(model, step.places.tokens),
        plan_(step.rows, model.kv_heads, model.heads / model.kv_heads, threads),
        partials_(plan_.num_partials * model.heads / model.kv_heads * (model.head_dim + 2)) {
    places_ = step.places;
    places_.rope = model.rope;
  }

  void operator()(Team& team) {
    embed(team);
    int64_t rows = places_.tokens;
    norm_for_layer(team, model_.layers[0].attention_norm, rows);
    for (int64_t number = 0; number < model_.num_layers; ++number) {
      const Layer<T, W>& layer = model_.layers[number];
      const bool is_last = number + 1 == model_.num_layers;
      if (step_.is_cache_int8) {
        attention<int8_t>(team, layer, number);
      } else {
        attention<T>(team, layer, number);
      }
      if (is_last) {
        // K and V are written; what follows matters for the wanted rows alone.
        rows = step_.num_wanted;
        if (rows == 0) return;
        keep_wanted(team);
      }
      if constexpr (kInt8) {
        quantize(team, memory_.mixed, rows, model_.mixed_width(), quantized_.bytes.get(),
                 quantized_.scales.get());
      }
      product(team, memory_.mixed, rows, layer.output, memory_.residual);
      norm_for_layer(team, layer.mlp_norm, rows);
      feed_forward(team, layer, rows);
      if (!is_last) norm_for_layer(team, model_.layers[number + 1].attention_norm, rows);
    }
    norm(team, model_.norm, rows);
    multiply(team, memory_.x, rows, model_.head,
             Product<float, T>(step_.logits, nullptr, model_.head));
  }

 private:
  static constexpr bool kInt8 = std::is_same_v<W, Int8Weight>;

  const Model<T, W>& model_;
  const Step<T>& step_;
  Places<T> places_;
  Activations<T> memory_;
  std::conditional_t<kInt8, Quantized, Nothing> quantized_;
  Plan plan_;
  std::vector<float> partials_;

  void embed(Team& team) const {
    for (const int64_t token : team.share(places_.tokens)) {
      T* to = memory_.residual + token * model_.hidden;
      const int64_t id = step_.token_ids[token];
      if (model_.embedding) {
        std::memcpy(to, model_.embedding + id * model_.hidden, model_.hidden * sizeof(T));
      } else {
        unpack_row(model_.head, id, to);
      }
    }
  }

  void norm(Team& team, const T* weight, int64_t rows) const {
    rms_norm(team, memory_.residual, model_.hidden, weight, rows, model_.hidden,
             static_cast<float>(model_.eps), memory_.x);
  }

  // Norms what a linear layer reads.
  void norm_for_layer(Team& team, const T* weight, int64_t rows) const {
    if constexpr (kInt8) {
      quantize_norm(team, memory_.residual, weight, rows, model_.hidden,
                    static_cast<float>(model_.eps), quantized_.bytes.get(),
                    quantized_.scales.get());
    } else {
      norm(team, weight, rows);
    }
  }

  // Adds x @ weight.T to the residual, or puts it elsewhere. In 8 bits, x is what was quantised.
  void product(Team& team, const T* x, int64_t rows, const W& weight,
               T* out) const {
    const T* residual = out == memory_.residual ? out : nullptr;
    if constexpr (kInt8) {
      multiply(team, quantized_.bytes.get(), rows, weight,
               Rescaled<T>(out, residual, quantized_.scales.get(), weight));
    } else {
      multiply(team, x, rows, weight, Product<T, T>(out, residual, weight));
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

  template <class C>
  void attention(Team& team, const Layer<T, W>& layer, int64_t number) {
    const int64_t stride = model_.qkv_width();
    const LayerCache<C> cache = cache_of<C>(number);
    product(team, memory_.x, places_.tokens, layer.qkv, memory_.qkv);
    prepare_attention(team, memory_.qkv, stride, model_.heads, layer.q_norm, layer.k_norm,
                      static_cast<float>(model_.eps), places_, cache);
    attend(team, plan_,
           Attention<T, C>{memory_.qkv, stride, model_.heads, cache, step_.rows,
                        static_cast<float>(model_.scale) * kLog2E, memory_.mixed, partials_.data()});
  }

  void feed_forward(Team& team, const Layer<T, W>& layer, int64_t rows) const {
    product(team, memory_.x, rows, layer.gate_up, memory_.gate_up);
    if constexpr (kInt8) {
      quantize_gated(team, memory_.gate_up, rows, model_.intermediate, quantized_.bytes.get(),
                     quantized_.scales.get());
    } else {
      silu_mul(team, memory_.gate_up, rows, model_.intermediate, memory_.gated);
    }
    product(team, memory_.gated, rows, layer.down, memory_.residual);
  }

  // Moves the wanted rows to the front, by way of memory that is free: they may come in any order.
  void keep_wanted(Team& team) {
    T* residual = memory_.x;
    T* mixed = memory_.qkv;
    const int64_t hidden = model_.hidden, width = model_.mixed_width();
    for (const int64_t row : team.share(step_.num_wanted)) {
      const int64_t token = step_.wanted[row];
      std::memcpy(residual + row * hidden, memory_.residual + token * hidden, hidden * sizeof(T));
      std::memcpy(mixed + row * width, memory_.mixed + token * width, width * sizeof(T));
    }
    for (const int64_t row : team.share(step_.num_wanted)) {
      std::memcpy(memory_.residual + row * hidden, residual + row * hidden, hidden * sizeof(T));
      std::memcpy(memory_.mixed + row * width, mixed + row * width, width * sizeof(T));
    }
  }
};

}  // namespace tandem
