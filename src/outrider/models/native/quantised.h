// Products of rows of bytes with matrices in the blocks of a GGUF file; blocks.h says how these are packed.
//
// For each step of 32 inputs the products of integers are summed, which is exact in whatever order, and then in float32,
// step by step, total += factor of the row * (scale of the block * sum + minimum of the block * sum of the row's bytes).
// With a matrix unit, fixed.h takes this one's place.
//
// Invariant: a number of the result depends on its row and its output only. Loops over rows are folds of constants, so that
// the rows' totals stay in registers.
#pragma once
#include <algorithm>
#include <utility>

#include "pack.h"
#include "product.h"

constexpr int64_t kMostInputs = INT64_MAX;

// How tiles of the kind are held; here as they come.
static inline int64_t held_kind(int64_t kind) { return kind; }
static inline int64_t held_bytes(int64_t kind, int64_t inputs) { return tile_bytes(kind, inputs); }
static inline void hold_tile(int64_t type, const uint8_t* blocks, int64_t num_rows, int64_t in, uint8_t* to) {
  pack_tile(type, blocks, num_rows, in, to);
}

template <int kCount>
using Numbers = std::make_integer_sequence<int, kCount>;

// total + one row's part of a step. `low` is the sum of products; of kInt6K that of the first 16 inputs and `high` of the rest.
template <int64_t kKind>
OUTRIDER_INLINE Floats added(Floats total, const Scale& row, const Factors& factors, Ints low, Ints high) {
  Floats value;
  if constexpr (kKind == kInt6K) {
    value = fused(factors.high, __builtin_convertvector(high, Floats), factors.low * __builtin_convertvector(low, Floats));
  } else if constexpr (has_minimum<kKind>()) {
    value = fused(factors.low, __builtin_convertvector(low, Floats), factors.high * row.sum);
  } else {
    value = factors.low * __builtin_convertvector(low, Floats);
  }
  return fused(all(row.factor), value, total);
}

// total + the products of four bytes of a row with those of sixteen outputs.
template <int64_t kKind>
OUTRIDER_INLINE Ints dot(Ints total, Bits weights, int32_t row) {
#ifdef __AVX512VNNI__
  return (Ints)_mm512_dpbusd_epi32((__m512i)total, (__m512i)weights, _mm512_set1_epi32(row));
#else
  Ints result;
  const __m256i bytes = _mm256_set1_epi32(row), ones = _mm256_set1_epi16(1);
  for (int half = 0; half < 2; half++) {
    const __m256i part = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(&weights) + half);
    const __m256i sums = kKind == kInt8 ? _mm256_maddubs_epi16(_mm256_abs_epi8(part), _mm256_sign_epi8(bytes, part))
                                        : _mm256_maddubs_epi16(part, bytes);  // at most 32,512: nothing is cut off
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(&result) + half, _mm256_madd_epi16(sums, ones));
  }
  return total + result;
#endif
}

// What `dot` takes a number of a block to be, less the number.
template <int64_t kKind>
constexpr int32_t dot_offset() {
#ifdef __AVX512VNNI__
  if (kKind == kInt8) return 128;  // its weights have no sign
#endif
  return kKind == kInt6K ? 32 : 0;
}

// The sum of products of parts `kFirst`, `kFirst` + 1, ... of a step of a row whose bytes there have the sum `sum`.
template <int64_t kKind, int kFirst, int... kPart>
OUTRIDER_INLINE Ints dots(const Bits (&weights)[8], const int8_t* bytes, int32_t sum, std::integer_sequence<int, kPart...>) {
  typedef int32_t Word __attribute__((aligned(1), may_alias));
  const Word* words = reinterpret_cast<const Word*>(bytes);
  Ints total = Ints{} - dot_offset<kKind>() * sum;
  ((total = dot<kKind>(total, weights[kFirst + kPart], words[kFirst + kPart])), ...);
  return total;
}

template <int64_t kKind>
OUTRIDER_INLINE Floats multiply_row(Floats total, const Scale& row, const HalfSums& sums, const Factors& factors,
                                    const Bits (&weights)[8], const int8_t* bytes) {
  if constexpr (kKind == kInt6K) {
    const Ints low = dots<kKind, 0>(weights, bytes, sums.first, Numbers<4>());
    return added<kKind>(total, row, factors, low, dots<kKind, 4>(weights, bytes, sums.last, Numbers<4>()));
  } else {
    const int32_t sum = dot_offset<kKind>() ? sums.first + sums.last : 0;
    return added<kKind>(total, row, factors, dots<kKind, 0>(weights, bytes, sum, Numbers<8>()), Ints{});
  }
}

template <int64_t kKind, int... kRow>
OUTRIDER_INLINE void multiply_rows(Floats (&totals)[sizeof...(kRow)], const Scale* scales, const HalfSums* sums,
                                   const Factors& factors, const Bits (&weights)[8], const int8_t* bytes,
                                   std::integer_sequence<int, kRow...>) {
  ((totals[kRow] = multiply_row<kKind>(totals[kRow], scales[kRow], sums[kRow], factors, weights, bytes + kRow * kStep)), ...);
}

// One tile for `kRows` rows from `row` on.
template <int64_t kKind, int kRows>
static void multiply_few(const Rows& rows, int64_t row, const Blocks<kKind>& tile, float* result) {
  const Cut group = rows.cut.from(row / rows.height, rows.height, rows.steps());
  const int64_t place = row % rows.height;
  const int8_t* bytes = group.bytes + place * kStep;
  const Scale* scales = group.scales + place;
  const HalfSums* sums = group.sums + place;
  Floats totals[kRows] = {};
  for (int64_t step = 0; step < rows.steps(); step++) {
    tile.prefetch(step);
    Bits weights[8];
    expand<kKind>(tile.integers(step), weights);
    if (kKind == kInt8 && dot_offset<kKind>())
      for (Bits& part : weights) part ^= 0x80808080u;
    multiply_rows<kKind>(totals, scales, sums, tile.factors(step), weights, bytes, Numbers<kRows>());
    bytes += rows.step_size(), scales += rows.height, sums += rows.height;
  }
  for (int index = 0; index < kRows; index++) store(result + (row + index) * kPanel, totals[index]);
}

// One panel of two tiles for the rows of a group; `result` has a row a panel.
template <int64_t kKind>
static void multiply_blocks(const Rows& rows, const uint8_t* panel, Tile& result) {
  for (int half = 0; half < 2; half++) {
    const Blocks<kKind> tile(panel + half * tile_bytes(kKind, rows.size));
    float* to = result.values[0] + half * kTile;
    for (int64_t row = 0; row < rows.num_rows;) {  // a height is a power of two: no eight, four or two rows lie in two groups
      const int64_t left = rows.num_rows - row;
#ifdef __AVX512VNNI__
      if (left >= 8) {
        multiply_few<kKind, 8>(rows, row, tile, to), row += 8;
        continue;
      }
#endif
      if (left >= 4) multiply_few<kKind, 4>(rows, row, tile, to), row += 4;
      else if (left >= 2) multiply_few<kKind, 2>(rows, row, tile, to), row += 2;
      else multiply_few<kKind, 1>(rows, row, tile, to), row += 1;
    }
  }
}

static inline void multiply_quantised(TileShapes&, int64_t kind, const Rows& rows, const uint8_t* panel, Tile& result) {
  switch (kind) {
    case kInt4: return multiply_blocks<kInt4>(rows, panel, result);
    case kInt4K: return multiply_blocks<kInt4K>(rows, panel, result);
    case kInt8: return multiply_blocks<kInt8>(rows, panel, result);
    default: return multiply_blocks<kInt6K>(rows, panel, result);
  }
}
