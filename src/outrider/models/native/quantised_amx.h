// Products with blocks by the matrix unit: see quantised.h.
//
// A block is expanded to bfloat16, multiplied as a tile of its own, and its result scaled and added, block after block.
// These steps of neighbouring blocks overlap: block i + 2 is expanded while i is multiplied, the result of i - 1 stored
// and that of i - 3 added. The buffers lie so that no step reads a place which shares its lowest twelve bits of address
// with a place that another step writes: the processor would take the one for the other and wait.
#pragma once
#include <type_traits>

#include "blocks.h"

constexpr int kRing = 8;   // expanded blocks that are held
constexpr int kLead = 2;   // blocks expanded ahead
constexpr int kParts = 4;  // results of single blocks that are held, one for each result tile

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

// The integers of a block as bfloat16 weights of a tile product: [16 pairs][16][2]; with 16 inputs a half stays as it is.
template <int64_t kKind>
static inline void expand(const uint8_t* integers, int64_t index, uint16_t* to) {
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
    uint16_t* first = to + (index % 2 ? 8 * 32 : 0);
    for (int pair = 0; pair < 8; pair++) {
      const __m256i packed = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(integers + 32 * pair));
      const __m512i row = _mm512_permutex2var_epi16(negative, _mm512_cvtepu8_epi16(packed), positive);
      _mm512_store_si512(first + 32 * pair, row);
    }
  } else {
    for (int pair = 0; pair < 16; pair++) {
      const __m512bh row = pair_of(integers + 32 * pair);
      memcpy(to + 32 * pair, &row, 64);
    }
  }
}

struct alignas(4096) Ring {
  uint16_t weights[kRing][512];
  float parts[kParts][16][16];
  Floats scale[kRing], minimum[kRing];
};

// Expands block `index` of a tile into its place.
template <int64_t kKind>
static inline void expand_block(const uint8_t* tile, int64_t index, Ring& ring) {
  constexpr int size = block_inputs<kKind>() * kTile / (has_minimum<kKind>() ? 2 : 1);
  const Block at = block_at<kKind>(tile, index);
  for (int line = 0; line < size / 64 + 1; line++)
    _mm_prefetch(reinterpret_cast<const char*>(at.integers) + 4096 + 64 * line, _MM_HINT_T0);
  expand<kKind>(at.integers, index, ring.weights[index % kRing]);
  ring.scale[index % kRing] = at.scale;
  if constexpr (has_minimum<kKind>()) ring.minimum[index % kRing] = at.minimum;
}

// total += the products of `kRows` rows with blocks [first, last), scaled, in order. With `kExpand` the blocks are expanded
// on the way (those before first + kLead are already), else all are.
template <int64_t kKind, int kRows, bool kExpand>
static inline void run_blocks(const uint16_t* rows, int64_t stride, const float* sums, int64_t num_sums, const uint8_t* tile,
                              int64_t first, int64_t last, Ring& ring, float* result) {
  constexpr int size = block_inputs<kKind>();
  Floats total[kRows];
#pragma GCC unroll 16
  for (int row = 0; row < kRows; row++) total[row] = load(result + row * kPanel);
  const auto add = [&](int64_t block, const float(*part)[16]) {
    const Floats scale = ring.scale[block % kRing];
#pragma GCC unroll 16
    for (int row = 0; row < kRows; row++) total[row] += scale * load(part[row]);
    if constexpr (has_minimum<kKind>()) {
      const Floats minimum = ring.minimum[block % kRing];
#pragma GCC unroll 16
      for (int row = 0; row < kRows; row++) total[row] += minimum * sums[row * num_sums + block];
    }
  };
#define OUTRIDER_STEP(now, before, rows_tile, weights_tile)                                          \
  if (block >= last + 3) break;                                                                      \
  if (block > first && block <= last) _tile_stored(before, ring.parts[before], 64);                  \
  if (block < last) {                                                                                \
    _tile_zero(now);                                                                                 \
    _tile_loadd(rows_tile, rows + block * size / kStep * kStep, stride * 2);                         \
    _tile_loadd(weights_tile, ring.weights[block % kRing], 64);                                      \
    _tile_dpbf16ps(now, rows_tile, weights_tile);                                                    \
  }                                                                                                  \
  if (kExpand && block + kLead < last) expand_block<kKind>(tile, block + kLead, ring);               \
  if (block >= first + 3) add(block - 3, ring.parts[(now + 1) % kParts]);                            \
  block++;
  for (int64_t block = first;;) {  // `first` is a multiple of four
    OUTRIDER_STEP(0, 3, 4, 6)
    OUTRIDER_STEP(1, 0, 5, 7)
    OUTRIDER_STEP(2, 1, 4, 6)
    OUTRIDER_STEP(3, 2, 5, 7)
  }
#undef OUTRIDER_STEP
#pragma GCC unroll 16
  for (int row = 0; row < kRows; row++) store(result + row * kPanel, total[row]);
}

// One tile for the rows of a group; `result` has a stride of a panel. Rows up to the next 16 are read, and what they
// give means nothing.
template <int64_t kKind>
static void multiply_tile(TileShapes& shapes, const uint16_t* rows, int64_t stride, int num_rows, const float* sums,
                          int64_t num_sums, const uint8_t* tile, int64_t inputs, float* result) {
  Ring ring;
  if constexpr (kKind == kInt6K) memset(ring.weights, 0, sizeof ring.weights);  // even and odd blocks fill one half each
  const int64_t num_blocks = inputs / block_inputs<kKind>();
  const int padded_rows = num_rows > 8 ? (num_rows + 15) / 16 * 16 : num_rows > 4 ? 8 : num_rows > 2 ? 4 : num_rows;
  shapes.set(padded_rows < 16 ? padded_rows : 16, padded_rows < 16 ? padded_rows : 16);
  for (int row = 0; row < padded_rows; row++) store(result + row * kPanel, Floats{});
  if (num_rows <= 16) {
    for (int64_t block = 0; block < kLead && block < num_blocks; block++) expand_block<kKind>(tile, block, ring);
    const auto run = [&](auto fixed) {
      run_blocks<kKind, decltype(fixed)::value, true>(rows, stride, sums, num_sums, tile, 0, num_blocks, ring, result);
    };
    switch (padded_rows) {
      case 1: return run(std::integral_constant<int, 1>());
      case 2: return run(std::integral_constant<int, 2>());
      case 4: return run(std::integral_constant<int, 4>());
      case 8: return run(std::integral_constant<int, 8>());
      default: return run(std::integral_constant<int, 16>());
    }
  }
  for (int64_t first = 0; first < num_blocks; first += kRing) {
    const int64_t last = first + kRing < num_blocks ? first + kRing : num_blocks;
    for (int64_t block = first; block < last; block++) expand_block<kKind>(tile, block, ring);
    for (int row = 0; row < num_rows; row += 16)
      run_blocks<kKind, 16, false>(rows + row * stride, stride, sums + row * num_sums, num_sums, tile, first, last, ring,
                                   result + row * kPanel);
  }
}
