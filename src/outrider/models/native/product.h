// Products of a few rows with a packed matrix: y = x W^T, bfloat16 in, float32 out.
//
// A packed matrix is a row of panels, each 32 outputs wide: [panel][step of 32 inputs][half: 16 outputs][16 input
// pairs][16 outputs][2]. A panel is read from front to back, so a thread streams its share of the matrix.
//
// Invariant: a number of the result sums its inputs in one order, whatever the number of rows or threads.
#pragma once
#include "rows.h"
#ifdef __AMX_BF16__
#include <sys/syscall.h>
#include <unistd.h>
#endif

constexpr int kPanel = 32;                           // outputs of a panel
constexpr int kGroup = 64;                           // most rows at once
constexpr int64_t kStepSize = kPanel * kStep;        // numbers of a step

struct Matrix {
  const uint8_t* packed;
  const float* bias;  // [out, padded] or null
  int64_t out, in;    // as the model has them; the packed form is padded with zeros
  int64_t kind;       // how it is packed, see blocks.h

  int64_t steps() const { return (in + kStep - 1) / kStep; }
  int64_t panels() const { return (out + kPanel - 1) / kPanel; }
};

static inline int64_t padded(int64_t size) { return (size + kStep - 1) / kStep * kStep; }

// What is fetched meanwhile, where it is nothing.
struct Nothing {
  void fetch(int) const {}
};

struct Tile {
  alignas(64) float values[kGroup][kPanel];
};

#ifdef __AMX_BF16__
// The shapes of the eight tile registers of this thread: 0 to 3 results and 4 and 5 rows, of as many rows as there are; 6 and 7
// weights, of 16. All have 64 bytes a row.
struct TileShapes {
  int rows = -1;

  void set(int new_rows) {
    if (new_rows == rows) return;
    rows = new_rows;
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } shapes;
    for (int tile = 0; tile < 8; tile++) {
      shapes.row_bytes[tile] = 64;
      shapes.rows[tile] = uint8_t(tile < 6 ? rows : 16);
    }
    __asm__ volatile("" ::: "memory");  // what is loaded has been written
    _tile_loadconfig(&shapes);
  }
  ~TileShapes() {
    if (rows >= 0) _tile_release();
  }
};

template <bool kTwo>
static void multiply_tiles(const Rows& rows, const uint16_t* panel, int64_t steps, float* result) {
  const uint16_t *one = rows.values, *other = one + rows.group_size();
  _tile_zero(0);
  _tile_zero(1);
  if (kTwo) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t step = 0; step < steps; step++, panel += kStepSize, one += rows.step_size(), other += rows.step_size()) {
    for (int line = 0; line < 32; line++) _mm_prefetch(reinterpret_cast<const char*>(panel + 8 * kStepSize) + 64 * line, _MM_HINT_T0);
    _tile_loadd(4, one, 64);
    _tile_loadd(6, panel, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, panel + kStepSize / 2, 64);
    _tile_dpbf16ps(1, 4, 7);
    if (kTwo) {
      _tile_loadd(5, other, 64);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, result, kPanel * 4);
  _tile_stored(1, result + 16, kPanel * 4);
  if (kTwo) {
    _tile_stored(2, result + 16 * kPanel, kPanel * 4);
    _tile_stored(3, result + 16 * kPanel + 16, kPanel * 4);
  }
}

// One panel for the rows of a group.
static inline void multiply(TileShapes& shapes, const Rows& rows, const uint16_t* panel, int64_t steps, Tile& result) {
  shapes.set(int(rows.height));
  for (int64_t first = 0; first < rows.num_rows; first += 32) {
    const Rows part = rows.from(first, rows.num_rows - first);
    if (part.num_rows > 16) multiply_tiles<true>(part, panel, steps, result.values[first]);
    else multiply_tiles<false>(part, panel, steps, result.values[first]);
  }
}
#else
struct TileShapes {};

template <int kRows>
static void multiply_rows(const uint16_t* rows, int64_t step_size, const uint16_t* panel, int64_t steps, float* result) {
  Floats left[kRows] = {}, right[kRows] = {};
  for (int64_t step = 0; step < steps; step++, panel += kStepSize, rows += step_size)
    for (int pair = 0; pair < 16; pair++) {
      const Bits first = *reinterpret_cast<const Bits*>(panel + pair * 32);
      const Bits second = *reinterpret_cast<const Bits*>(panel + kStepSize / 2 + pair * 32);
      const Floats even[2] = {(Floats)(first << 16), (Floats)(second << 16)};
      const Floats odd[2] = {(Floats)(first & 0xffff0000u), (Floats)(second & 0xffff0000u)};
      for (int row = 0; row < kRows; row++) {
        uint32_t both;
        memcpy(&both, rows + row * kStep + pair * 2, sizeof both);
        const Floats one = (Floats)(Bits{} + (both << 16)), other = (Floats)(Bits{} + (both & 0xffff0000u));
        left[row] += one * even[0], right[row] += one * even[1];
        left[row] += other * odd[0], right[row] += other * odd[1];
      }
    }
  for (int row = 0; row < kRows; row++) store(result + row * kPanel, left[row]), store(result + row * kPanel + 16, right[row]);
}

static inline void multiply(TileShapes&, const Rows& rows, const uint16_t* panel, int64_t steps, Tile& result) {
  int64_t row = 0;
  for (; row + 4 <= rows.num_rows; row += 4) multiply_rows<4>(rows.at(row, 0), rows.step_size(), panel, steps, result.values[row]);
  for (; row < rows.num_rows; row++) multiply_rows<1>(rows.at(row, 0), rows.step_size(), panel, steps, result.values[row]);
}
#endif

// Ask the kernel for the tile registers; 0 where they may be used (or are not needed).
static inline int enable_tiles() {
#ifdef __AMX_BF16__
  return int(syscall(SYS_arch_prctl, 0x1023, 18));
#else
  return 0;
#endif
}
