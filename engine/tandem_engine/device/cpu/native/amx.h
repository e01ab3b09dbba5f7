// Products on AMX tiles, where the target has them: 16 rows by 16 outputs, 64 bytes of inputs at a
// time.
//
// The instruction reads 16 units of inputs of a weight one below the other, which is a half panel
// of linear.h as it is stored. The sums of a row come in the same order for any number of rows.

#pragma once

#include <algorithm>

#include "units.h"

namespace tandem {

// Inputs of a tile.
template <class W>
constexpr int kAmxInputs = 64 / static_cast<int>(sizeof(W));

constexpr int kAmxRows = 16;

#if defined(__AMX_TILE__)

// True if a weight of W is multiplied on tiles.
template <class W>
constexpr bool kOnAmx = std::is_same_v<W, Bf16> || std::is_same_v<W, int8_t>;

// The tiles of the calling thread, released in the end: while some are in use, a context switch
// saves 8 KiB more.
//
// 0 to 3 have the sums, of the upper rows by each half of a panel, then of the lower ones; 4 and 5
// the rows, 6 and 7 the halves.
class AmxTiles {
 public:
  AmxTiles() = default;
  ~AmxTiles() {
    if (upper_ > 0) _tile_release();
  }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

  // The sums of up to 2 * kAmxRows rows by a panel: [rows, 2].
  template <class X, class W>
  void multiply(const X* x, int64_t rows, int64_t inputs, const W* panel, Sums<W>* sums) {
    const int64_t upper = rows > kAmxRows ? (rows + 1) / 2 : rows, lower = rows - upper;
    set(static_cast<int>(upper), static_cast<int>(lower));
    if (lower > 0) {
      add_up<true>(x, x + upper * inputs, inputs, panel, sums, sums + 2 * upper);
    } else {
      add_up<false>(x, x, inputs, panel, sums, sums);
    }
  }

 private:
  static constexpr int kPanelBytes = 128;  // of one unit of inputs
  static constexpr int kAhead = 8192;      // bytes
  static_assert(kPanelBytes == 2 * sizeof(Floats));

  int upper_ = 0, lower_ = 0;

  void set(int upper, int lower) {
    if (upper == upper_ && lower == lower_) return;
    upper_ = upper, lower_ = lower;
    struct alignas(64) {
      uint8_t palette = 1, start = 0, unused[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } config = {};
    const uint8_t heights[8] = {uint8_t(upper), uint8_t(upper), uint8_t(lower), uint8_t(lower),
                                uint8_t(upper), uint8_t(lower), kAmxRows,      kAmxRows};
    std::memcpy(config.rows, heights, sizeof heights);
    for (int tile = 0; tile < 8; ++tile) config.row_bytes[tile] = heights[tile] ? 64 : 0;
    _tile_loadconfig(&config);
  }

  // With few rows the weight's memory is the limit, and a tile load waits for each of its rows: 5
  // to 8 GB/s a core without this, 10 with it, of 12 that the memory gives.
  static void prefetch(const void* panel) {
    for (int line = 0; line < 2 * kAmxRows; ++line) {
      _mm_prefetch(static_cast<const char*>(panel) + kAhead + 64 * line, _MM_HINT_T0);
    }
  }

  template <bool kHasLower, class X, class W>
  static void add_up(const X* upper, const X* lower, int64_t inputs, const W* panel,
                     Sums<W>* upper_sums, Sums<W>* lower_sums) {
    const int64_t stride = inputs * sizeof(X);
    // The compiler does not know that tile loads read memory, and could delay earlier writes.
    asm volatile("" ::: "memory");
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (kHasLower) {
      _tile_zero(2);
      _tile_zero(3);
    }
    for (int64_t input = 0; input < inputs; input += kAmxInputs<W>) {
      const W* half = panel + input * 2 * kLanes;
      if constexpr (!kHasLower) prefetch(half);
      _tile_loadd(4, upper + input, stride);
      _tile_loadd(6, half, kPanelBytes);
      _tile_loadd(7, half + kAmxInputs<W>, kPanelBytes);
      if constexpr (kHasLower) _tile_loadd(5, lower + input, stride);
      if constexpr (std::is_same_v<W, int8_t>) {
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
        if constexpr (kHasLower) {
          _tile_dpbusd(2, 5, 6);
          _tile_dpbusd(3, 5, 7);
        }
      } else {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (kHasLower) {
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
        }
      }
    }
    _tile_stored(0, upper_sums, kPanelBytes);
    _tile_stored(1, upper_sums + 1, kPanelBytes);
    if constexpr (kHasLower) {
      _tile_stored(2, lower_sums, kPanelBytes);
      _tile_stored(3, lower_sums + 1, kPanelBytes);
    }
  }
};

#else

template <class W>
constexpr bool kOnAmx = false;

struct AmxTiles {};

#endif

}  // namespace tandem
