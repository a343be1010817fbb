// Products with matrices in the blocks of a GGUF file: small integers with a scale, and a minimum, for 16 or 32 inputs.
//
// y[n] = sum over blocks of scale[n] * (sum of q[n][k] * x[k]) + minimum[n] * (sum of x[k]). The integers are exact in
// bfloat16 and the scales stay as the file has them, so a product loses nothing but its rows' own rounding.
//
// A packed matrix is a row of tiles of 16 outputs; a tile is a row of records, read from front to back:
//   kInt4   32 inputs: [4][32 words of 4 nibbles] · scale [16] half · minimum [16] half
//   kInt4K  256 inputs: scale [16] half · minimum [16] half · 8 x ([4][32 words] · scale [16] byte · minimum [16] byte)
//   kInt8   32 inputs: [16 pairs][16 outputs][2] bytes · scale [16] half
//   kInt6K  256 inputs: scale [16] half · 16 x ([2][32 words of 4 nibbles] · [32 words of 8 pairs of bits] · scale [16]
//           signed byte), numbers 32 too large
// Word [r][n][j] of four nibbles holds the inputs 8 r + j, + 2, + 4 and + 6 of output n, lowest bits first; a word of
// pairs of bits the upper two of inputs j, j + 2, ... + 14 of a block of 16.
//
// Invariant: as in product.h, a number of the result sums its blocks in one order, whatever the number of rows.
#pragma once
#include <immintrin.h>

#include "product.h"

enum Kind : int64_t { kBfloat16 = 0, kInt4 = 1, kInt4K = 2, kInt8 = 3, kInt6K = 4 };

constexpr int kTile = 16;        // outputs of a tile
constexpr int kSuperblock = 256;  // inputs of a record with scales of scales

static inline int64_t record_inputs(int64_t kind) { return kind == kInt4 || kind == kInt8 ? 32 : kSuperblock; }
static inline int64_t record_bytes(int64_t kind) {
  switch (kind) {
    case kInt4: return 256 + 64;
    case kInt4K: return 64 + 8 * (256 + 32);
    case kInt8: return 512 + 32;
    default: return 32 + 16 * (192 + 16);
  }
}

// Sixteen numbers of half precision.
static inline Floats halves(const uint8_t* from) {
  const __m128i* parts = reinterpret_cast<const __m128i*>(from);
#ifdef __AVX512F__
  return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(parts)));
#else
  Floats values;
  _mm256_storeu_ps(reinterpret_cast<float*>(&values), _mm256_cvtph_ps(_mm_loadu_si128(parts)));
  _mm256_storeu_ps(reinterpret_cast<float*>(&values) + 8, _mm256_cvtph_ps(_mm_loadu_si128(parts + 1)));
  return values;
#endif
}

// Sixteen bytes as numbers.
template <bool kSigned>
static inline Floats bytes(const uint8_t* from) {
  const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
#ifdef __AVX512F__
  return (Floats)_mm512_cvtepi32_ps(kSigned ? _mm512_cvtepi8_epi32(packed) : _mm512_cvtepu8_epi32(packed));
#else
  const __m128i behind = _mm_srli_si128(packed, 8);
  Floats values;
  float* to = reinterpret_cast<float*>(&values);
  _mm256_storeu_ps(to, _mm256_cvtepi32_ps(kSigned ? _mm256_cvtepi8_epi32(packed) : _mm256_cvtepu8_epi32(packed)));
  _mm256_storeu_ps(to + 8, _mm256_cvtepi32_ps(kSigned ? _mm256_cvtepi8_epi32(behind) : _mm256_cvtepu8_epi32(behind)));
  return values;
#endif
}

// A block of one tile: where its integers are, its scales and minima.
struct Block {
  const uint8_t* integers;
  Floats scale, minimum;
};

template <int64_t kKind>
static inline Block block_at(const uint8_t* tile, int64_t index) {
  if constexpr (kKind == kInt4) {
    const uint8_t* record = tile + index * record_bytes(kInt4);
    return {record, halves(record + 256), halves(record + 288)};
  } else if constexpr (kKind == kInt4K) {
    const uint8_t* record = tile + index / 8 * record_bytes(kInt4K);
    const uint8_t* block = record + 64 + index % 8 * 288;
    return {block, halves(record) * bytes<false>(block + 256), halves(record + 32) * bytes<false>(block + 272)};
  } else if constexpr (kKind == kInt8) {
    const uint8_t* record = tile + index * record_bytes(kInt8);
    return {record, halves(record + 512), Floats{}};
  } else {
    const uint8_t* record = tile + index / 16 * record_bytes(kInt6K);
    const uint8_t* block = record + 32 + index % 16 * 208;
    return {block, halves(record) * bytes<true>(block + 192), Floats{}};
  }
}

template <int64_t kKind>
constexpr int block_inputs() { return kKind == kInt6K ? 16 : 32; }
template <int64_t kKind>
constexpr int integer_bytes() { return kKind == kInt8 ? 512 : kKind == kInt6K ? 192 : 256; }
template <int64_t kKind>
constexpr bool has_minimum() { return kKind == kInt4 || kKind == kInt4K; }
