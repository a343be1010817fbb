// Products with matrices in the blocks of a GGUF file, for the instruction set at hand; blocks.h says how they are packed.
#pragma once
#ifdef __AMX_BF16__
#include "quantised_amx.h"
#else
#include "quantised_plain.h"
#endif


// One panel of two tiles for the rows of a group.
static inline void multiply_quantised(TileShapes& shapes, int64_t kind, const uint16_t* rows, int64_t stride, int num_rows,
                                      const float* sums, int64_t num_sums, const uint8_t* panel, int64_t inputs, Tile& result) {
  const int64_t size = inputs / record_inputs(kind) * record_bytes(kind);
  for (int half = 0; half < 2; half++) {
    const uint8_t* tile = panel + half * size;
    float* to = result.values[0] + half * kTile;
    switch (kind) {
      case kInt4: multiply_tile<kInt4>(shapes, rows, stride, num_rows, sums, num_sums, tile, inputs, to); break;
      case kInt4K: multiply_tile<kInt4K>(shapes, rows, stride, num_rows, sums, num_sums, tile, inputs, to); break;
      case kInt8: multiply_tile<kInt8>(shapes, rows, stride, num_rows, sums, num_sums, tile, inputs, to); break;
      default: multiply_tile<kInt6K>(shapes, rows, stride, num_rows, sums, num_sums, tile, inputs, to); break;
    }
  }
}
