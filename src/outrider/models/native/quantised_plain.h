// Products with blocks without a matrix unit: see quantised.h.
#pragma once
#include "blocks.h"

// The integers of a block as numbers, [inputs][16].
template <int64_t kKind>
static inline void expand(const uint8_t* integers, float (*to)[kTile]) {
  for (int input = 0; input < block_inputs<kKind>(); input++) {
    if constexpr (has_minimum<kKind>()) {
      const Bits words = *reinterpret_cast<const Bits*>(integers + input / 8 * 64);
      store(to[input], __builtin_convertvector((Ints)((words >> (16 * (input % 2) + 4 * (input % 8 / 2))) & 15u), Floats));
    } else {
      Floats values;
      for (int output = 0; output < kTile; output++) {
        const uint8_t value = integers[(input / 2 * kTile + output) * 2 + input % 2];
        values[output] = kKind == kInt6K ? float(value) - 32.0f : float(int8_t(value));
      }
      store(to[input], values);
    }
  }
}

template <int64_t kKind>
static void multiply_tile(TileShapes&, const uint16_t* rows, int64_t stride, int num_rows, const float* sums,
                          int64_t num_sums, const uint8_t* tile, int64_t inputs, float* result) {
  constexpr int size = block_inputs<kKind>();
  alignas(64) float weights[size][kTile], total[kGroup][kTile];
  for (int row = 0; row < num_rows; row++) store(total[row], Floats{});
  for (int64_t block = 0; block < inputs / size; block++) {
    const Block at = block_at<kKind>(tile, block);
    expand<kKind>(at.integers, weights);
    for (int row = 0; row < num_rows; row++) {
      Floats part = {};
      for (int input = 0; input < size; input++) part += load(weights[input]) * from_bits(rows[row * stride + block * size + input]);
      Floats sum = load(total[row]) + at.scale * part;
      if constexpr (has_minimum<kKind>()) sum += at.minimum * sums[row * num_sums + block];
      store(total[row], sum);
    }
  }
  for (int row = 0; row < num_rows; row++) store(result + row * kPanel, load(total[row]));
}
