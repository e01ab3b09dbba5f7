// x @ weight.T for a weight that was packed once, from one row to thousands.
//
// A packed weight is cut into panels of kPanel outputs. Within a panel the inputs follow one
// another in units of 32 bits, so that the kernel reads it from front to back:
//
//     [outputs / kPanel][inputs / kUnit][kPanel][kUnit]
//
// A unit is the value that one lane multiplies at once: a float, a pair of bfloat16 where the
// target multiplies pairs, else a single bfloat16 that is widened first, as a float16 always is.
// One layout serves a single row, for which memory must be read in order and once, and many rows,
// for which a tile of kStrip rows by one panel stays in registers over all inputs.
//
// There is no prefetching by hand: at every distance that was tried it cost more than it saved.

#pragma once

#include "worker_context.h"
#include "amx.h"
#include "neon.h"
#include "units.h"
#include "vectors.h"

namespace tandem {

constexpr int kPanel = 2 * kLanes;
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kStrip = 12;  // 24 of 32 registers hold sums
#else
constexpr int kStrip = 6;  // 12 of 16
#endif

// Calls work(number) with the number as a constant, so that arrays of that size stay in registers.
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

// kRows rows by one panel: sums of each half of it.
template <int kRows, class W>
struct Tile {
  Sums<W> sums[kRows][2];
};

template <int kRows, class X, class W>
inline Tile<kRows, W> multiply_tile(const X* x, int64_t x_stride, const W* panel,
                                       int64_t inputs) {
  Tile<kRows, W> tile = {};
  if constexpr (kOnNeon<W>) {
    NeonTile<kRows, W>::multiply(x, x_stride, panel, inputs, tile.sums);
  } else {
    for (int64_t input = 0; input < inputs; input += kUnit<W>) {
      const auto low = load_units(panel);
      const auto high = load_units(panel + kLanes * kUnit<W>);
      panel += kPanel * kUnit<W>;
      for (int row = 0; row < kRows; ++row) {
        const auto value = spread(x + row * x_stride + input);
        tile.sums[row][0] = multiply_add(tile.sums[row][0], value, low);
        tile.sums[row][1] = multiply_add(tile.sums[row][1], value, high);
      }
    }
  }
  return tile;
}

// Calls work(rows, first row) for strips of nearly equal height, `most` at most.
template <class Work>
inline void each_strip(int64_t rows, int64_t most, Work&& work) {
  const int64_t strips = (rows + most - 1) / most;
  for (int64_t strip = 0; strip < strips; ++strip) {
    const int64_t first = rows * strip / strips;
    work(rows * (strip + 1) / strips - first, first);
  }
}

// The same of kStrip at most, with the number of rows as a constant.
template <class Work>
inline void each_strip(int64_t rows, Work&& work) {
  each_strip(rows, kStrip, [&](int64_t count, int64_t first) {
    with_constant<kStrip>(static_cast<int>(count), [&](auto height) { work(height, first); });
  });
}

template <class E>
struct Weight {
  using Element = E;
  const E* panels;
  const Computed<E>* bias;  // [outputs], or null
  int64_t inputs;
  int64_t outputs;

  int64_t num_panels() const { return (outputs + kPanel - 1) / kPanel; }
  const E* panel(int64_t number) const { return panels + number * kPanel * inputs; }
};

// The epilogue: out = sums + bias + residual, [rows, outputs], contiguous.
template <class Out, class T>
struct Product {
  Out* out;
  const T* residual;  // like out, or null; may be out itself
  const T* bias;      // [outputs], or null
  int64_t outputs;

  template <class E>
  Product(Out* to, const T* added, const Weight<E>& weight)
      : out(to), residual(added), bias(weight.bias), outputs(weight.outputs) {}

  // The sums of `count` outputs of a row; at most kLanes of them.
  void put(int64_t row, int64_t output, int64_t count, Floats sums) const {
    const int64_t at = row * outputs + output;
    if (bias) sums += load_up_to(bias + output, count);
    if (residual) sums += load_up_to(residual + at, count);
    store_up_to(out + at, sums, count);
  }
};

// One half of a panel; at the end there may be fewer outputs than lanes, or none.
template <class Finish, class AnySums>
inline void put_half(const Finish& finish, int64_t row, int64_t output, int64_t outputs,
                     AnySums sums) {
  const int64_t left = outputs - output;
  if (left >= kLanes) {
    finish.put(row, output, kLanes, sums);  // a constant, by which the compiler leaves out tests
  } else if (left > 0) {
    finish.put(row, output, left, sums);
  }
}

// Sums [rows, 2] of some rows, the first of which is `row`, by a panel: each half to its outputs.
template <class AnyWeight, class Finish, class AnySums>
inline void put_panel(const Finish& finish, const AnyWeight& weight, int64_t row, int64_t rows,
                      int64_t panel, const AnySums* sums) {
  const int64_t output = panel * kPanel;
  for (int64_t at = 0; at < rows; ++at) {
    put_half(finish, row + at, output, weight.outputs, sums[2 * at]);
    put_half(finish, row + at, output + kLanes, weight.outputs, sums[2 * at + 1]);
  }
}

// Rows [first, last) by one panel.
template <class X, class AnyWeight, class Finish>
inline void multiply_panel(const X* x, const AnyWeight& weight, const Finish& finish,
                           int64_t first, int64_t last, int64_t panel) {
  each_strip(last - first, [&](auto height, int64_t strip) {
    const int64_t row = first + strip;
    const auto tile = multiply_tile<height.value>(x + row * weight.inputs, weight.inputs,
                                                  weight.panel(panel), weight.inputs);
    put_panel(finish, weight, row, height.value, panel, tile.sums[0]);
  });
}

// The same on the tiles of AMX.
template <class Tiles, class X, class AnyWeight, class Finish>
inline void multiply_panel(Tiles& tiles, const X* x, const AnyWeight& weight, const Finish& finish,
                           int64_t first, int64_t last, int64_t panel) {
  Sums<typename AnyWeight::Element> sums[2 * kAmxRows][2];
  each_strip(last - first, 2 * kAmxRows, [&](int64_t count, int64_t strip) {
    const int64_t row = first + strip;
    tiles.multiply(x + row * weight.inputs, count, weight.inputs, weight.panel(panel), sums[0]);
    put_panel(finish, weight, row, count, panel, sums[0]);
  });
}

// How a product is cut into pieces that workers take one after another.
struct Cut {
  // Rows that go through all panels together stay in a core's second-level cache.
  static constexpr int64_t kBlockBytes = 400 << 10;
  // With few rows a piece mostly reads its panels, and has at least so many bytes of them.
  static constexpr int64_t kPieceBytes = 128 << 10;

  int64_t blocks, pieces_per_block, panels_per_piece;

  template <class AnyWeight>
  Cut(int64_t rows, int64_t row_bytes, const AnyWeight& weight, int strip, int workers) {
    const int64_t panel_bytes = kPanel * weight.inputs * sizeof(typename AnyWeight::Element);
    const int64_t most_rows = kBlockBytes / row_bytes / strip * strip;
    const int64_t block_rows = most_rows > 4 * strip ? most_rows : 4 * strip;
    blocks = (rows + block_rows - 1) / block_rows;
    const int64_t panels = weight.num_panels();
    const int64_t worth = rows > strip ? 1 : 1 + kPieceBytes / panel_bytes;
    const int64_t fair = 1 + panels / (8 * workers);  // so that all end at about the same time
    panels_per_piece = worth < fair ? worth : fair;
    pieces_per_block = (panels + panels_per_piece - 1) / panels_per_piece;
  }
};

// Calls work(first row, last row, panel) for all of a product, in all workers.
template <class AnyWeight, class Work>
inline void each_panel(WorkerContext& worker, int64_t rows, const Cut& cut, const AnyWeight& weight,
                       Work&& work) {
  for (const int64_t piece : worker.each(cut.blocks * cut.pieces_per_block)) {
    const int64_t block = piece / cut.pieces_per_block;
    const int64_t begin = piece % cut.pieces_per_block * cut.panels_per_piece;
    const int64_t end = std::min(begin + cut.panels_per_piece, weight.num_panels());
    for (int64_t panel = begin; panel < end; ++panel) {
      work(rows * block / cut.blocks, rows * (block + 1) / cut.blocks, panel);
    }
  }
}

// x [rows, inputs] by a packed weight; `finish` stores the sums.
template <class X, class AnyWeight, class Finish>
inline void multiply(WorkerContext& worker, const X* x, int64_t rows, const AnyWeight& weight,
                     const Finish& finish) {
  using W = typename AnyWeight::Element;
  const int64_t row_bytes = weight.inputs * sizeof(X);
  if constexpr (kOnAmx<W>) {
    if (weight.inputs % kAmxInputs<W> == 0) {
      AmxTiles tiles;
      const Cut cut(rows, row_bytes, weight, 2 * kAmxRows, worker.num_workers);
      each_panel(worker, rows, cut, weight, [&](int64_t first, int64_t last, int64_t panel) {
        multiply_panel(tiles, x, weight, finish, first, last, panel);
      });
      return;
    }
  }
  const Cut cut(rows, row_bytes, weight, kStrip, worker.num_workers);
  each_panel(worker, rows, cut, weight, [&](int64_t first, int64_t last, int64_t panel) {
    multiply_panel(x, weight, finish, first, last, panel);
  });
}

// Packs `count` rows of a [outputs, inputs] matrix, the first of which is output `first`. Lanes
// without an output are not written: memory for panels comes as zeros.
template <class T>
inline void pack(WorkerContext& worker, const T* rows, int64_t first, int64_t count, int64_t inputs,
                 T* panels) {
  const int64_t first_panel = first / kPanel, end = first + count;
  for (const int64_t at : worker.each_in_runs((end + kPanel - 1) / kPanel - first_panel)) {
    const int64_t panel = first_panel + at;
    const int64_t last = std::min(end, (panel + 1) * kPanel);
    for (int64_t output = std::max(first, panel * kPanel); output < last; ++output) {
      const T* from = rows + (output - first) * inputs;
      T* unit = panels + panel * kPanel * inputs + output % kPanel * kUnit<T>;
      for (int64_t input = 0; input < inputs; input += kUnit<T>) {
        for (int part = 0; part < kUnit<T>; ++part) unit[part] = from[input + part];
        unit += kPanel * kUnit<T>;
      }
    }
  }
}

// Row `output` of the matrix that was packed: an embedding that shares its memory with the head.
template <class E>
inline void unpack_row(const Weight<E>& weight, int64_t output, Computed<E>* to) {
  const E* unit = weight.panel(output / kPanel) + output % kPanel * kUnit<E>;
  for (int64_t input = 0; input < weight.inputs; input += kUnit<E>) {
    for (int part = 0; part < kUnit<E>; ++part) copy_value(unit[part], to[input + part]);
    unit += kPanel * kUnit<E>;
  }
}

}  // namespace tandem
