// x @ weight.T for a weight that was packed once, from one row to thousands.
//
// A packed weight is cut into panels of kPanel outputs. Within a panel the inputs follow one
// another in units of 32 bits, so that the kernel reads it from front to back:
//
//     [outputs / kPanel][inputs / kUnit][kPanel][kUnit]
//
// A unit is what one lane multiplies at once: a float, a pair of bfloat16 where the target
// multiplies pairs, else a single bfloat16 that is widened first. One layout serves one row, where
// all that counts is that memory is read in order and once, and many rows, where a tile of
// kStrip rows by one panel stays in registers over all inputs.
//
// There is no prefetching by hand: at every distance that was tried it cost more than it brought.

#pragma once

#include "team.h"
#include "vectors.h"

namespace tandem {

constexpr int kPanel = 2 * kLanes;
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kStrip = 12;  // 24 of 32 registers hold sums
#else
constexpr int kStrip = 6;  // 12 of 16
#endif

template <class T>
constexpr int kUnit = 1;
template <>
constexpr int kUnit<Bf16> = kHasPairs ? 2 : 1;

// How values are read and multiplied: one unit that all lanes share, or a unit a lane.
inline Floats spread(const float* x) { return splat(*x); }
inline Floats load_units(const float* w) { return load(w); }
inline Floats load_some_units(const float* w, int64_t count) { return load_some(w, count); }
inline Floats multiply_add(Floats sum, Floats x, Floats w) { return sum + x * w; }

#if defined(__AVX512BF16__)
typedef Ints Pairs;
inline Pairs spread(const Bf16* x) {
  int32_t pair;
  std::memcpy(&pair, x, sizeof(pair));
  return Pairs{} + pair;
}
inline Pairs load_units(const Bf16* w) {
  Pairs pairs;
  std::memcpy(&pairs, w, sizeof(pairs));
  return pairs;
}
inline Pairs load_some_units(const Bf16* w, int64_t count) {
  Pairs pairs = {};
  std::memcpy(&pairs, w, count * sizeof(Bf16));
  return pairs;
}
inline Floats multiply_add(Floats sum, Pairs x, Pairs w) {
  return _mm512_dpbf16_ps(sum, same_bits<__m512bh>(x), same_bits<__m512bh>(w));
}
#else
inline Floats spread(const Bf16* x) { return splat(to_float(*x)); }
inline Floats load_units(const Bf16* w) { return load(w); }
inline Floats load_some_units(const Bf16* w, int64_t count) { return load_some(w, count); }
#endif

// Calls work(number) with the number as a constant, so that what it counts stays in registers.
template <int kMost, class Work>
inline void with_constant(int number, Work&& work) {
  if constexpr (kMost > 0) {
    if (number == kMost) {
      work(std::integral_constant<int, kMost>{});
    } else {
      with_constant<kMost - 1>(number, work);
    }
  }
}

template <int kRows>
struct Tile {
  Floats sums[kRows][2];
};

// kRows rows by one panel.
template <int kRows, class T>
inline Tile<kRows> multiply_tile(const T* x, int64_t x_stride, const T* panel, int64_t inputs) {
  Tile<kRows> tile = {};
  for (int64_t input = 0; input < inputs; input += kUnit<T>) {
    const auto low = load_units(panel);
    const auto high = load_units(panel + kLanes * kUnit<T>);
    panel += kPanel * kUnit<T>;
    for (int row = 0; row < kRows; ++row) {
      const auto value = spread(x + row * x_stride + input);
      tile.sums[row][0] = multiply_add(tile.sums[row][0], value, low);
      tile.sums[row][1] = multiply_add(tile.sums[row][1], value, high);
    }
  }
  return tile;
}

// Calls work(rows as a constant, first row) for strips of nearly equal height.
template <class Work>
inline void each_strip(int64_t rows, Work&& work) {
  const int64_t strips = (rows + kStrip - 1) / kStrip;
  for (int64_t strip = 0; strip < strips; ++strip) {
    const int64_t first = rows * strip / strips;
    const int64_t count = rows * (strip + 1) / strips - first;
    with_constant<kStrip>(static_cast<int>(count), [&](auto height) { work(height, first); });
  }
}

template <class T>
struct Weight {
  const T* panels;
  const T* bias;  // [outputs], or null
  int64_t inputs;
  int64_t outputs;

  int64_t num_panels() const { return (outputs + kPanel - 1) / kPanel; }
  const T* panel(int64_t number) const { return panels + number * kPanel * inputs; }
};

// What a product becomes: out = x @ weight.T + bias + residual.
template <class Out, class T>
struct Product {
  Out* out;           // [rows, outputs], contiguous
  const T* residual;  // like out, or null; may be out itself
};

template <class Out, class T>
inline void store_half(const Product<Out, T>& product, const Weight<T>& weight, int64_t row,
                       int64_t output, Floats sums) {
  const int64_t left = weight.outputs - output;
  if (left <= 0) return;
  const int64_t at = row * weight.outputs + output;
  if (left >= kLanes) {
    if (weight.bias) sums += load(weight.bias + output);
    if (product.residual) sums += load(product.residual + at);
    store(product.out + at, sums);
    return;
  }
  if (weight.bias) sums += load_some(weight.bias + output, left);
  if (product.residual) sums += load_some(product.residual + at, left);
  store_some(product.out + at, sums, left);
}

// Rows [first, last) by one panel.
template <class Out, class T>
inline void multiply_panel(const T* x, const Weight<T>& weight, const Product<Out, T>& product,
                           int64_t first, int64_t last, int64_t panel) {
  each_strip(last - first, [&](auto height, int64_t strip) {
    const int64_t row = first + strip;
    const auto tile = multiply_tile<height.value>(x + row * weight.inputs, weight.inputs,
                                                  weight.panel(panel), weight.inputs);
    for (int at = 0; at < height.value; ++at) {
      store_half(product, weight, row + at, panel * kPanel, tile.sums[at][0]);
      store_half(product, weight, row + at, panel * kPanel + kLanes, tile.sums[at][1]);
    }
  });
}

// How a product is cut into pieces that members take one after another.
struct Cut {
  // Rows that go through all panels together stay in a core's second-level cache.
  static constexpr int64_t kBlockBytes = 400 << 10;
  // With few rows a piece is hardly more than reading its panels; so much is worth a ticket.
  static constexpr int64_t kPieceBytes = 128 << 10;

  int64_t blocks, pieces_per_block, panels_per_piece;

  template <class T>
  Cut(int64_t rows, const Weight<T>& weight, int members) {
    const int64_t panel_bytes = kPanel * weight.inputs * sizeof(T);
    const int64_t most_rows = kBlockBytes / (weight.inputs * sizeof(T)) / kStrip * kStrip;
    const int64_t block_rows = most_rows > 4 * kStrip ? most_rows : 4 * kStrip;
    blocks = (rows + block_rows - 1) / block_rows;
    const int64_t panels = weight.num_panels();
    const int64_t worth = rows > kStrip ? 1 : 1 + kPieceBytes / panel_bytes;
    const int64_t fair = 1 + panels / (8 * members);  // so that all end at about the same time
    panels_per_piece = worth < fair ? worth : fair;
    pieces_per_block = (panels + panels_per_piece - 1) / panels_per_piece;
  }
};

template <class Out, class T>
inline void multiply(Team team, Tickets& tickets, const T* x, int64_t rows,
                     const Weight<T>& weight, const Product<Out, T>& product) {
  const Cut cut(rows, weight, team.size);
  const int64_t panels = weight.num_panels();
  for (int64_t piece; (piece = tickets.take()) < cut.blocks * cut.pieces_per_block;) {
    const int64_t block = piece / cut.pieces_per_block;
    const int64_t begin = piece % cut.pieces_per_block * cut.panels_per_piece;
    const int64_t end = begin + cut.panels_per_piece;
    for (int64_t panel = begin; panel < end && panel < panels; ++panel) {
      multiply_panel(x, weight, product, rows * block / cut.blocks,
                     rows * (block + 1) / cut.blocks, panel);
    }
  }
}

// Packs rows of a [outputs, inputs] matrix; outputs that are no multiple of the panel end in zeros.
template <class T>
inline void pack(Team team, const T* weight, int64_t outputs, int64_t inputs, T* panels) {
  const Share share(team, (outputs + kPanel - 1) / kPanel);
  for (int64_t panel = share.begin; panel < share.end; ++panel) {
    T* to = panels + panel * kPanel * inputs;
    for (int64_t lane = 0; lane < kPanel; ++lane) {
      const int64_t output = panel * kPanel + lane;
      const T* from = weight + output * inputs;
      for (int64_t input = 0; input < inputs; input += kUnit<T>) {
        T* unit = to + (input * kPanel + lane * kUnit<T>);
        for (int part = 0; part < kUnit<T>; ++part) {
          unit[part] = output < outputs ? from[input + part] : T{};
        }
      }
    }
  }
}

// Row `output` of the matrix that was packed: an embedding that shares its memory with the head.
template <class T>
inline void unpack_row(const Weight<T>& weight, int64_t output, T* to) {
  const T* unit = weight.panel(output / kPanel) + output % kPanel * kUnit<T>;
  for (int64_t input = 0; input < weight.inputs; input += kUnit<T>) {
    for (int part = 0; part < kUnit<T>; ++part) to[input + part] = unit[part];
    unit += kPanel * kUnit<T>;
  }
}

}  // namespace tandem
