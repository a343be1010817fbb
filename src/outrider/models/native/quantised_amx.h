// Products with blocks by the matrix unit: see quantised.h.
//
// Four blocks at a time are expanded to bfloat16 and multiplied, each into a result of its own, which is scaled and added
// to the rows' totals. The buffers of four blocks are used over and over: larger ones are slower.
#pragma once
#include <algorithm>
#include <type_traits>

#include "blocks.h"

constexpr int kAhead = 4;  // blocks that are expanded and multiplied together, one for each result tile

static inline __m512bh pair_of(const uint8_t* from) {
  const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16))));
  return _mm512_cvtne2ps_pbh(high, low);
}

// 0 to 15 as bfloat16, twice: the fifth bit of an index is the next nibble's. And -32 to 31.
alignas(64) static const uint16_t kNibbles[32] = {
        0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170,
        0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170};
alignas(64) static const uint16_t kSixBits[64] = {
        0xc200, 0xc1f8, 0xc1f0, 0xc1e8, 0xc1e0, 0xc1d8, 0xc1d0, 0xc1c8, 0xc1c0, 0xc1b8, 0xc1b0, 0xc1a8, 0xc1a0, 0xc198, 0xc190, 0xc188,
        0xc180, 0xc170, 0xc160, 0xc150, 0xc140, 0xc130, 0xc120, 0xc110, 0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,
        0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170,
        0x4180, 0x4188, 0x4190, 0x4198, 0x41a0, 0x41a8, 0x41b0, 0x41b8, 0x41c0, 0x41c8, 0x41d0, 0x41d8, 0x41e0, 0x41e8, 0x41f0, 0x41f8};

// The integers of a block as bfloat16 weights of a tile product: [pairs][16][2].
template <int64_t kKind>
static inline void expand(const uint8_t* integers, uint16_t* to) {
  if constexpr (has_minimum<kKind>()) {
    const __m512i numbers = _mm512_load_si512(kNibbles);
    for (int part = 0; part < 4; part++) {
      const __m512i words = _mm512_loadu_si512(integers + 64 * part);
      uint16_t* row = to + part * 4 * 32;
      _mm512_store_si512(row, _mm512_permutexvar_epi16(words, numbers));
      _mm512_store_si512(row + 32, _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4), numbers));
      _mm512_store_si512(row + 64, _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 8), numbers));
      _mm512_store_si512(row + 96, _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 12), numbers));
    }
  } else if constexpr (kKind == kInt6K) {
    const __m512i negative = _mm512_load_si512(kSixBits), positive = _mm512_load_si512(kSixBits + 32);
    const __m512i low_bits = _mm512_set1_epi16(15), upper = _mm512_loadu_si512(integers + 128);
    for (int pair = 0; pair < 8; pair++) {
      const __m512i lower = _mm512_srli_epi16(_mm512_loadu_si512(integers + pair / 4 * 64), unsigned(4 * (pair % 4)));
      const __m512i bits = pair < 2 ? _mm512_slli_epi16(upper, unsigned(4 - 2 * pair)) : _mm512_srli_epi16(upper, unsigned(2 * pair - 4));
      const __m512i number = _mm512_ternarylogic_epi64(low_bits, lower, bits, 0xca);  // six bits; those above do not count
      _mm512_store_si512(to + 32 * pair, _mm512_permutex2var_epi16(negative, number, positive));
    }
  } else {
    for (int pair = 0; pair < 16; pair++) {
      const __m512bh row = pair_of(integers + 32 * pair);
      memcpy(to + 32 * pair, &row, 64);
    }
  }
}

struct alignas(4096) Ring {
  uint16_t weights[kAhead][512];
  float parts[kAhead][16][16];
  Floats scale[2 * kAhead], minimum[2 * kAhead];  // the next four blocks are expanded before these are added
};

// Expands block `index` of a tile into its place.
template <int64_t kKind>
static inline void expand_block(const uint8_t* tile, int64_t index, Ring& ring) {
  const Block at = block_at<kKind>(tile, index);
  for (int line = 0; line < integer_bytes<kKind>() / 64 + 1; line++)
    _mm_prefetch(reinterpret_cast<const char*>(at.integers) + 4096 + 64 * line, _MM_HINT_T1);
  expand<kKind>(at.integers, ring.weights[index % kAhead]);
  ring.scale[index % (2 * kAhead)] = at.scale;
  if constexpr (has_minimum<kKind>()) ring.minimum[index % (2 * kAhead)] = at.minimum;
}

// result += the products of `kRows` rows with blocks [first, last), scaled, in order. With `kExpand` the blocks behind the
// first four are expanded on the way; else [first, last) are at most four, and the same places `ahead` numbers further on
// are fetched, which are multiplied next.
template <int64_t kKind, int kRows, bool kExpand>
static inline void run_blocks(const uint16_t* rows, const float* sums, const uint8_t* tile, int64_t first, int64_t last,
                              Ring& ring, float* result, int64_t ahead = 0) {
  constexpr int size = block_inputs<kKind>();
  Floats total[kRows];
#pragma GCC unroll 16
  for (int row = 0; row < kRows; row++) total[row] = load(result + row * kPanel);
  const auto add = [&](int64_t block, const float(*part)[16]) {
    const Floats scale = ring.scale[block % (2 * kAhead)];
#pragma GCC unroll 16
    for (int row = 0; row < kRows; row++) total[row] += scale * load(part[row]);
    if constexpr (has_minimum<kKind>()) {
      const Floats minimum = ring.minimum[block % (2 * kAhead)];
#pragma GCC unroll 16
      for (int row = 0; row < kRows; row++) total[row] += minimum * sums[block * kRows + row];
    }
  };
  const auto rows_at = [&](int64_t block) { return rows + block * size / kStep * (kRows * kStep) + block * size % kStep; };
  for (int64_t block = first; block < last; block += kAhead) {  // `first` is a multiple of kAhead
    const int64_t count = std::min<int64_t>(kAhead, last - block);
#define OUTRIDER_MULTIPLY(index, rows_tile, weights_tile)                                              \
  if (index < count) {                                                                                 \
    _tile_zero(index);                                                                                 \
    _tile_loadd(rows_tile, rows_at(block + index), 64);                                                 \
    _tile_loadd(weights_tile, ring.weights[index], 64);                                                \
    _tile_dpbf16ps(index, rows_tile, weights_tile);                                                    \
  }
    OUTRIDER_MULTIPLY(0, 4, 6)
    OUTRIDER_MULTIPLY(1, 5, 7)
    OUTRIDER_MULTIPLY(2, 4, 6)
    OUTRIDER_MULTIPLY(3, 5, 7)
#undef OUTRIDER_MULTIPLY
    if (!kExpand)  // the next group's rows of these blocks
      for (int64_t line = 0; line < count * size / kStep * 16; line++)
        _mm_prefetch(reinterpret_cast<const char*>(rows_at(block) + ahead) + 64 * line, _MM_HINT_T0);
    _tile_stored(0, ring.parts[0], 64);
    if (count > 1) _tile_stored(1, ring.parts[1], 64);
    if (count > 2) _tile_stored(2, ring.parts[2], 64);
    if (count > 3) _tile_stored(3, ring.parts[3], 64);
    if (kExpand)
      for (int64_t next = block + kAhead; next < std::min(block + 2 * kAhead, last); next++)
        expand_block<kKind>(tile, next, ring);
    for (int64_t index = 0; index < count; index++) add(block + index, ring.parts[index]);
  }
#pragma GCC unroll 16
  for (int row = 0; row < kRows; row++) store(result + row * kPanel, total[row]);
}

// One tile for the rows of a group; `result` has a stride of a panel. All rows of a tile of rows are read; those that are
// not there give numbers that mean nothing.
template <int64_t kKind>
static void multiply_tile(const Rows& rows, const uint8_t* tile, int64_t inputs, Ring& ring, float* result) {
  const int64_t num_blocks = inputs / block_inputs<kKind>();
  const auto expand = [&](int64_t first) {
    for (int64_t block = first; block < std::min(first + kAhead, num_blocks); block++) expand_block<kKind>(tile, block, ring);
  };
  if (rows.num_rows > 16) {
    for (int64_t first = 0; first < num_blocks; first += kAhead) {
      expand(first);
      for (int64_t group = 0; group < rows.groups(); group++)
        run_blocks<kKind, 16, false>(rows.values + group * rows.group_size(), rows.sums + group * rows.sums_size(), tile,
                                     first, std::min(first + kAhead, num_blocks), ring, result + group * 16 * kPanel,
                                     group + 1 < rows.groups() ? rows.group_size() : 4 * 512 - group * rows.group_size());
    }
    return;
  }
  expand(0);
  const auto run = [&](auto fixed) {
    run_blocks<kKind, decltype(fixed)::value, true>(rows.values, rows.sums, tile, 0, num_blocks, ring, result);
  };
  switch (rows.height) {
    case 1: return run(std::integral_constant<int, 1>());
    case 2: return run(std::integral_constant<int, 2>());
    case 4: return run(std::integral_constant<int, 4>());
    case 8: return run(std::integral_constant<int, 8>());
    default: return run(std::integral_constant<int, 16>());
  }
}

// One panel of two tiles for the rows of a group.
template <int64_t kKind>
static void multiply_panel(TileShapes& shapes, const Rows& rows, const uint8_t* panel, int64_t inputs, Tile& result) {
  Ring ring;
  shapes.set(int(rows.height), block_inputs<kKind>());
  memset(result.values, 0, size_t(rows.groups() * rows.height) * sizeof result.values[0]);
  const int64_t size = inputs / record_inputs(kKind) * record_bytes(kKind);
  for (int half = 0; half < 2; half++)
    multiply_tile<kKind>(rows, panel + half * size, inputs, ring, result.values[0] + half * kTile);
}
