// Products with blocks without a matrix unit: see quantised.h.
#pragma once
#include "blocks.h"

// The integers of a block as numbers, [inputs][16].
template <int64_t kKind>
static inline void expand(const uint8_t* integers, float (*to)[kTile]) {
  for (int input = 0; input < block_inputs<kKind>(); input++) {
    const auto word_at = [&](int64_t place) { return *reinterpret_cast<const Bits*>(integers + place); };
    if constexpr (kKind == kInt8) {
      const Halves pair = *reinterpret_cast<const Halves*>(integers + input / 2 * 32);
      const Bits both = __builtin_convertvector(pair, Bits);
      store(to[input], __builtin_convertvector((Ints)(both << (input % 2 ? 16 : 24)) >> 24, Floats));
    } else {
      Bits number = (word_at(input / 8 * 64) >> (16 * (input % 2) + 4 * (input % 8 / 2))) & 15u;
      if constexpr (kKind == kInt6K) number |= ((word_at(128) >> (16 * (input % 2) + input / 2 * 2)) & 3u) << 4;
      store(to[input], __builtin_convertvector((Ints)number, Floats) - (kKind == kInt6K ? 32.0f : 0.0f));
    }
  }
}

// total[row] += scale * (rows * weights) + minimum * sums, for one block of a tile; rows and sums are those of a step.
template <int64_t kKind, int kRows>
static inline void add_rows(const Block& at, const float (*weights)[kTile], const uint16_t* rows, const float* sums, float* total) {
  Floats part[kRows] = {};
  for (int input = 0; input < block_inputs<kKind>(); input += 2)
    for (int row = 0; row < kRows; row++) {
      uint32_t both;
      memcpy(&both, rows + row * kStep + input, sizeof both);
      part[row] += load(weights[input]) * (Floats)(Bits{} + (both << 16));
      part[row] += load(weights[input + 1]) * (Floats)(Bits{} + (both & 0xffff0000u));
    }
  for (int row = 0; row < kRows; row++) {
    Floats added = load(total + row * kPanel) + at.scale * part[row];
    if constexpr (has_minimum<kKind>()) added += at.minimum * sums[row];
    store(total + row * kPanel, added);
  }
}

template <int64_t kKind>
static void multiply_tile(const Rows& rows, const uint8_t* tile, int64_t inputs, float* result) {
  constexpr int size = block_inputs<kKind>();
  alignas(64) float weights[size][kTile];
  for (int64_t row = 0; row < rows.num_rows; row++) store(result + row * kPanel, Floats{});
  for (int64_t block = 0; block < inputs / size; block++) {
    const Block at = block_at<kKind>(tile, block);
    expand<kKind>(at.integers, weights);
    const int64_t step = block * size / kStep;
    const auto from = [&](int64_t row) { return rows.at(row, step * kStep) + block * size % kStep; };
    const auto sums = [&](int64_t row) {
      return rows.sums + row / rows.height * rows.sums_size() + step * rows.height + row % rows.height;
    };
    int64_t row = 0;
    for (; row + 4 <= rows.num_rows; row += 4) add_rows<kKind, 4>(at, weights, from(row), sums(row), result + row * kPanel);
    for (; row < rows.num_rows; row++) add_rows<kKind, 1>(at, weights, from(row), sums(row), result + row * kPanel);
  }
}

// One panel of two tiles for the rows of a group.
template <int64_t kKind>
static void multiply_panel(TileShapes&, const Rows& rows, const uint8_t* panel, int64_t inputs, Tile& result) {
  const int64_t size = inputs / record_inputs(kKind) * record_bytes(kKind);
  for (int half = 0; half < 2; half++) multiply_tile<kKind>(rows, panel + half * size, inputs, result.values[0] + half * kTile);
}
