// Matrices in the blocks of a GGUF file: small integers with a scale, and a minimum, for 16 or 32 inputs.
//
// A weight is scale * q, plus the minimum where there is one. A packed matrix is a row of panels of two tiles of 16 outputs;
// a tile is a row of records, read from front to back. A record has what belongs to its steps of 32 inputs and then their
// integers, both beginning at a cache line. Four inputs j of sixteen outputs n are 64 bytes [n][j], as products of bytes read
// them; eight of these are a step. Nibbles of parts 0 to 3 lie below those of 4 to 7.
//   kInt4   1 step: scale and minimum [2][16] half; [4][64] pairs of nibbles
//   kInt4K  8 steps: scale and minimum [2][16] half · [step] scale and minimum [2][16] byte; [step][4][64] pairs of nibbles
//   kInt8   2 steps: [step] scale [16] half; [step][8][64] signed bytes
//   kInt6K  8 steps: scale [16] half · [step] scales [2: of 16 inputs][16] signed byte; [step][2]([2][64] pairs of nibbles ·
//           [64] four pairs of upper bits), numbers 32 too large
#pragma once
#include "rows.h"

enum Kind : int64_t { kBfloat16 = 0, kInt4 = 1, kInt4K = 2, kInt8 = 3, kInt6K = 4 };

constexpr int kTile = 16;         // outputs of a tile
constexpr int kSuperblock = 256;  // inputs of a block with scales of scales
constexpr int64_t kLine = 64;     // bytes of a cache line

// Inputs of a block of the file.
static constexpr int64_t block_inputs(int64_t kind) { return kind == kInt4 || kind == kInt8 ? 32 : kSuperblock; }

template <int64_t kKind>
constexpr bool has_minimum() { return kKind == kInt4 || kKind == kInt4K; }

// A record: its steps, and the bytes of what they share, of what each has, and of the integers of each.
struct Record {
  int64_t steps, shared, own, integers;

  constexpr int64_t header() const { return (shared + steps * own + kLine - 1) / kLine * kLine; }
  constexpr int64_t bytes() const { return header() + steps * integers; }
  // where a tile has what the steps of a record share, what belongs to a step, and its integers
  constexpr int64_t shared_at(int64_t step) const { return step / steps * bytes(); }
  constexpr int64_t own_at(int64_t step) const { return shared_at(step) + shared + step % steps * own; }
  constexpr int64_t integers_at(int64_t step) const { return shared_at(step) + header() + step % steps * integers; }
};

static constexpr Record record_of(int64_t kind) {
  switch (kind) {
    case kInt4: return {1, 0, 64, 256};
    case kInt4K: return {8, 64, 32, 256};
    case kInt8: return {2, 0, 32, 512};
    default: return {8, 32, 32, 384};
  }
}

static constexpr int64_t tile_bytes(int64_t kind, int64_t inputs) {
  const Record record = record_of(kind);
  const int64_t steps = inputs / kStep, rest = steps % record.steps;  // the last record may be shorter
  return steps / record.steps * record.bytes() + (rest ? record.header() + rest * record.integers : 0);
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

// The scales of a step's outputs, and their minima; of kInt6K the scales of the first and of the last 16 inputs.
struct Factors {
  Floats low, high;
};

// Sixteen outputs of a matrix.
template <int64_t kKind>
class Blocks {
 public:
  explicit Blocks(const uint8_t* tile) : tile_(tile) {}

  const uint8_t* integers(int64_t step) const { return tile_ + kRecord.integers_at(step); }

  Factors factors(int64_t step) const {
    const uint8_t *shared = tile_ + kRecord.shared_at(step), *own = tile_ + kRecord.own_at(step);
    switch (kKind) {
      case kInt4: return {halves(own), halves(own + 32)};
      case kInt4K: return {halves(shared) * bytes<false>(own), halves(shared + 32) * bytes<false>(own + 16)};
      case kInt8: return {halves(own), Floats{}};
      default: return {halves(shared) * bytes<true>(own), halves(shared) * bytes<true>(own + 16)};
    }
  }

  // Fetches what will be read some steps later, and from memory what comes behind that.
  void prefetch(int64_t step) const {
    constexpr int64_t kBytes = kRecord.bytes() / kRecord.steps;
    const char* from = reinterpret_cast<const char*>(tile_) + step * kBytes;
#pragma GCC unroll 9
    for (int64_t line = 0; line < kBytes; line += kLine) {
      _mm_prefetch(from + 4096 + line, _MM_HINT_T1);
      _mm_prefetch(from + 2048 + line, _MM_HINT_T0);
    }
  }

 private:
  static constexpr Record kRecord = record_of(kKind);
  const uint8_t* tile_;
};

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
    for (int half = 0; half < 2; half++, block += 192, to += 4) {
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
