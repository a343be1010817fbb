// Products with matrices in the blocks of a GGUF file, for the instruction set at hand; blocks.h says how they are packed.
#pragma once
#ifdef __AMX_BF16__
#include "quantised_amx.h"
#else
#include "quantised_plain.h"
#endif


// One panel of two tiles for the rows of a group.
static inline void multiply_quantised(TileShapes& shapes, int64_t kind, const Rows& rows, const uint8_t* panel,
                                      int64_t inputs, Tile& result) {
  switch (kind) {
    case kInt4: return multiply_panel<kInt4>(shapes, rows, panel, inputs, result);
    case kInt4K: return multiply_panel<kInt4K>(shapes, rows, panel, inputs, result);
    case kInt8: return multiply_panel<kInt8>(shapes, rows, panel, inputs, result);
    default: return multiply_panel<kInt6K>(shapes, rows, panel, inputs, result);
  }
}
