// Products with matrices in the blocks of a GGUF file: small integers with a scale, and a minimum, for 16 or 32 inputs.
//
// y[n] = sum over blocks of scale[n] * (sum of q[n][k] * x[k]) + minimum[n] * (sum of x[k]). The integers are exact in
// bfloat16 and the scales stay as the file has them, so a product loses nothing but its rows' own rounding.
//
// A packed matrix is a row of tiles of 16 outputs; a tile is a row of records, read from front to back:
//   kInt4   32 inputs: [4][32 words of 4 nibbles] · scale [16] half · minimum [16] half
//   kInt4K  256 inputs: scale [16] half · minimum [16] half · 8 x ([4][32 words] · scale [16] byte · minimum [16] byte)
//   kInt8   32 inputs: [16 pairs][16 outputs][2] bytes · scale [16] half
//   kInt8K  256 inputs: scale [16] half · 16 x ([8 pairs][16 outputs][2] bytes · scale [16] signed byte)
// Word [r][n][j] of four nibbles holds the inputs 8 r + j, + 2, + 4 and + 6 of output n, lowest bits first.
//
// Invariant: as in product.h, a number of the result sums its blocks in one order, whatever the number of rows.
#pragma once
#include <immintrin.h>

#include "product.h"

enum Kind : int64_t { kBfloat16 = 0, kInt4 = 1, kInt4K = 2, kInt8 = 3, kInt8K = 4 };

constexpr int kTile = 16;        // outputs of a tile
constexpr int kSuperblock = 256;  // inputs of a record with scales of scales

static inline int64_t record_inputs(int64_t kind) { return kind == kInt4 || kind == kInt8 ? 32 : kSuperblock; }
static inline int64_t record_bytes(int64_t kind) {
  switch (kind) {
    case kInt4: return 256 + 64;
    case kInt4K: return 64 + 8 * (256 + 32);
    case kInt8: return 512 + 32;
    default: return 32 + 16 * (256 + 16);
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

typedef uint8_t Bytes __attribute__((vector_size(16), aligned(1), may_alias));
typedef int8_t SignedBytes __attribute__((vector_size(16), aligned(1), may_alias));
static inline Floats unsigned_bytes(const uint8_t* from) {
  return __builtin_convertvector(__builtin_convertvector(*reinterpret_cast<const Bytes*>(from), Ints), Floats);
}
static inline Floats signed_bytes(const uint8_t* from) {
  return __builtin_convertvector(__builtin_convertvector(*reinterpret_cast<const SignedBytes*>(from), Ints), Floats);
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
    return {block, halves(record) * unsigned_bytes(block + 256), halves(record + 32) * unsigned_bytes(block + 272)};
  } else if constexpr (kKind == kInt8) {
    const uint8_t* record = tile + index * record_bytes(kInt8);
    return {record, halves(record + 512), Floats{}};
  } else {
    const uint8_t* record = tile + index / 16 * record_bytes(kInt8K);
    const uint8_t* block = record + 32 + index % 16 * 272;
    return {block, halves(record) * signed_bytes(block + 256), Floats{}};
  }
}

template <int64_t kKind>
constexpr int block_inputs() { return kKind == kInt8K ? 16 : 32; }
template <int64_t kKind>
constexpr bool has_minimum() { return kKind == kInt4 || kKind == kInt4K; }

#ifdef __AMX_BF16__
constexpr int kAhead = 4;  // blocks in flight

static inline __m512bh pair_of(const uint8_t* from) {
  const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16))));
  return _mm512_cvtne2ps_pbh(high, low);
}

// The integers of a block as bfloat16 weights of a tile product: [16 pairs][16][2]; with 16 inputs a half stays as it is.
template <int64_t kKind>
static inline void expand(const uint8_t* integers, int64_t index, uint16_t* to) {
  if constexpr (has_minimum<kKind>()) {
    alignas(64) static const uint16_t kNumbers[32] = {
        0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170,
        0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170};
    const __m512i numbers = _mm512_load_si512(kNumbers);  // 0 to 15 twice: the fifth bit of an index is the next nibble's
    for (int part = 0; part < 4; part++) {
      const __m512i words = _mm512_loadu_si512(integers + 64 * part);
      uint16_t* row = to + part * 4 * 32;
      _mm512_store_si512(row, _mm512_permutexvar_epi16(words, numbers));
      _mm512_store_si512(row + 32, _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4), numbers));
      _mm512_store_si512(row + 64, _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 8), numbers));
      _mm512_store_si512(row + 96, _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 12), numbers));
    }
  } else {
    constexpr int pairs = block_inputs<kKind>() / 2;
    uint16_t* first = to + (kKind == kInt8K && index % 2 ? 8 * 32 : 0);
    for (int pair = 0; pair < pairs; pair++) {
      const __m512bh row = pair_of(integers + 32 * pair);
      memcpy(first + 32 * pair, &row, 64);
    }
  }
}

// One tile for 1 to 32 rows; `result` has a stride of a panel. Rows up to the next 16 are read, and ignored.
template <int64_t kKind>
static void multiply_tile(TileShapes& shapes, const uint16_t* rows, int64_t stride, int num_rows, const float* sums,
                          int64_t num_sums, const uint8_t* tile, int64_t inputs, float* result) {
  constexpr int size = block_inputs<kKind>();
  alignas(64) uint16_t weights[kAhead][512];
  alignas(64) float part[kAhead][16][16];
  alignas(64) float total[kGroup][16];
  if constexpr (kKind == kInt8K) memset(weights, 0, sizeof weights);  // halves of zeros; even and odd places alternate
  for (int row = 0; row < num_rows; row++) store(total[row], Floats{});
  const int64_t num_blocks = inputs / size;
  shapes.set(num_rows < 16 ? num_rows : 16, num_rows < 16 ? num_rows : 16);
  for (int64_t block = 0; block < num_blocks; block += kAhead) {
    const int count = int(num_blocks - block < kAhead ? num_blocks - block : kAhead);
    Floats scale[kAhead], minimum[kAhead];
    for (int index = 0; index < count; index++) {
      const Block at = block_at<kKind>(tile, block + index);
      for (int line = 0; line < size * 16 * (has_minimum<kKind>() ? 1 : 2) / 128 + 1; line++)
        _mm_prefetch(reinterpret_cast<const char*>(at.integers) + 2560 + 64 * line, _MM_HINT_T0);
      expand<kKind>(at.integers, block + index, weights[index]);
      scale[index] = at.scale, minimum[index] = at.minimum;
    }
    for (int first = 0; first < num_rows; first += 16) {
      const uint16_t* from = rows + first * stride;
      const auto at = [&](int index) { return from + (block + index) * size / 32 * 32; };
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      _tile_loadd(4, at(0), stride * 2);
      _tile_loadd(6, weights[0], 64);
      _tile_dpbf16ps(0, 4, 6);
      if (count > 1) {
        _tile_loadd(5, at(1), stride * 2);
        _tile_loadd(7, weights[1], 64);
        _tile_dpbf16ps(1, 5, 7);
      }
      if (count > 2) {
        _tile_loadd(4, at(2), stride * 2);
        _tile_loadd(6, weights[2], 64);
        _tile_dpbf16ps(2, 4, 6);
      }
      if (count > 3) {
        _tile_loadd(5, at(3), stride * 2);
        _tile_loadd(7, weights[3], 64);
        _tile_dpbf16ps(3, 5, 7);
      }
      _tile_stored(0, part[0], 64);
      _tile_stored(1, part[1], 64);
      _tile_stored(2, part[2], 64);
      _tile_stored(3, part[3], 64);
      for (int row = first; row < num_rows && row < first + 16; row++) {
        Floats sum = load(total[row]);
        for (int index = 0; index < count; index++) {
          sum += scale[index] * load(part[index][row - first]);
          if constexpr (has_minimum<kKind>()) sum += minimum[index] * sums[row * num_sums + block + index];
        }
        store(total[row], sum);
      }
    }
  }
  for (int row = 0; row < num_rows; row++) store(result + row * kPanel, load(total[row]));
}
#else
// The integers of a block as numbers, [inputs][16].
template <int64_t kKind>
static inline void expand(const uint8_t* integers, float (*to)[kTile]) {
  for (int input = 0; input < block_inputs<kKind>(); input++) {
    if constexpr (has_minimum<kKind>()) {
      const Bits words = *reinterpret_cast<const Bits*>(integers + input / 8 * 64);
      store(to[input], __builtin_convertvector((Ints)((words >> (16 * (input % 2) + 4 * (input % 8 / 2))) & 15u), Floats));
    } else {
      Floats values;
      for (int output = 0; output < kTile; output++) values[output] = float(int8_t(integers[(input / 2 * kTile + output) * 2 + input % 2]));
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
#endif

// One panel of two tiles for 1 to 32 rows.
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
      default: multiply_tile<kInt8K>(shapes, rows, stride, num_rows, sums, num_sums, tile, inputs, to); break;
    }
  }
}

// The sums of each row's blocks of 32 inputs: [rows, inputs / 32].
static void block_sums(const uint16_t* rows, int64_t stride, int64_t num_rows, int64_t inputs, float* sums) {
  for (int64_t row = 0; row < num_rows; row++)
    for (int64_t block = 0; block < inputs / 32; block++) {
      const uint16_t* from = rows + row * stride + block * 32;
      sums[row * (inputs / 32) + block] = sum(from_bfloat16(from) + from_bfloat16(from + 16));
    }
}
