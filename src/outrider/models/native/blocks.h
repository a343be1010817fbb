// Matrices in the blocks of a GGUF file: small integers with a scale, and a minimum, for 16 or 32 inputs.
//
// A weight is scale * q, plus the minimum where there is one. A packed matrix is a row of panels of two tiles of 16 outputs;
// a tile is a row of records, read from front to back. Four inputs j of sixteen outputs n are 64 bytes [n][j], as products
// of bytes read them; eight of these are a step of 32 inputs. Nibbles of step 0 to 3 lie below those of 4 to 7.
//   kInt4   32 inputs: [4][64] pairs of nibbles · scale [16] half · minimum [16] half
//   kInt4K  256 inputs: scale [16] half · minimum [16] half · 8 x ([4][64] pairs of nibbles · scale [16] byte · minimum [16] byte)
//   kInt8   32 inputs: [8][64] signed bytes · scale [16] half
//   kInt6K  256 inputs: scale [16] half · 16 x ([2][64] pairs of nibbles · [64] four pairs of upper bits · scale [16] signed
//           byte), 16 inputs each, numbers 32 too large
#pragma once
#include "rows.h"

enum Kind : int64_t { kBfloat16 = 0, kInt4 = 1, kInt4K = 2, kInt8 = 3, kInt6K = 4 };

constexpr int kTile = 16;        // outputs of a tile
constexpr int kSuperblock = 256;  // inputs of a record with scales of scales

static constexpr int64_t record_inputs(int64_t kind) { return kind == kInt4 || kind == kInt8 ? 32 : kSuperblock; }
static constexpr int64_t record_bytes(int64_t kind) {
  switch (kind) {
    case kInt4: return 256 + 64;
    case kInt4K: return 64 + 8 * (256 + 32);
    case kInt8: return 512 + 32;
    default: return 32 + 16 * (192 + 16);
  }
}

static inline int64_t tile_bytes(int64_t kind, int64_t inputs) { return inputs / record_inputs(kind) * record_bytes(kind); }

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

template <int64_t kKind>
constexpr bool has_minimum() { return kKind == kInt4 || kKind == kInt4K; }

// Where the integers of a step of a tile are.
template <int64_t kKind>
static inline const uint8_t* block_at(const uint8_t* tile, int64_t step) {
  switch (kKind) {
    case kInt4K: return tile + step / 8 * record_bytes(kKind) + 64 + step % 8 * 288;
    case kInt6K: return tile + step / 8 * record_bytes(kKind) + 32 + step % 8 * 416;
    default: return tile + step * record_bytes(kKind);
  }
}

// The scales of a step's outputs, and their minima; of kInt6K the scales of the first and of the last 16 inputs.
struct Factors {
  Floats low, high;
};

template <int64_t kKind>
static inline Factors factors_at(const uint8_t* tile, int64_t step) {
  const uint8_t* block = block_at<kKind>(tile, step);
  const uint8_t* record = tile + step / 8 * record_bytes(kKind);  // of a superblock
  switch (kKind) {
    case kInt4: return {halves(block + 256), halves(block + 288)};
    case kInt4K: return {halves(record) * bytes<false>(block + 256), halves(record + 32) * bytes<false>(block + 272)};
    case kInt8: return {halves(block + 512), Floats{}};
    default: return {halves(record) * bytes<true>(block + 192), halves(record) * bytes<true>(block + 400)};
  }
}

// The integers of a step, as bytes that are too large by what the kind says.
template <int64_t kKind>
static inline void expand(const uint8_t* block, Bits* to) {
  const auto word_at = [&](int64_t place) { return *reinterpret_cast<const Bits*>(block + place); };
  constexpr uint32_t kNibble = 0x0f0f0f0fu, kUpper = 0x30303030u;
  if constexpr (has_minimum<kKind>()) {
    for (int part = 0; part < 4; part++) {
      const Bits pairs = word_at(64 * part);
      to[part] = pairs & kNibble;
      to[part + 4] = pairs >> 4 & kNibble;
    }
  } else if constexpr (kKind == kInt6K) {
    for (int half = 0; half < 2; half++, block += 208, to += 4) {
      const Bits one = word_at(0), other = word_at(64), upper = word_at(128);
      to[0] = (one & kNibble) | (upper << 4 & kUpper);
      to[1] = (other & kNibble) | (upper << 2 & kUpper);
      to[2] = (one >> 4 & kNibble) | (upper & kUpper);
      to[3] = (other >> 4 & kNibble) | (upper >> 2 & kUpper);
    }
  } else {
    for (int part = 0; part < 8; part++) to[part] = word_at(64 * part);
  }
}

// Fetches what will be read some steps later, and from memory what comes behind that.
template <int64_t kKind>
static inline void prefetch(const uint8_t* block) {
  constexpr int64_t kBytes = record_bytes(kKind) / (record_inputs(kKind) / 32);
  for (int64_t line = 0; line < kBytes; line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(block) + 4096 + line, _MM_HINT_T1);
    _mm_prefetch(reinterpret_cast<const char*>(block) + 2048 + line, _MM_HINT_T0);
  }
}
