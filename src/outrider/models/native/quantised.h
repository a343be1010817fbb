// Products with matrices in the blocks of a GGUF file: small integers with a scale, and a minimum, for 16 or 32 inputs.
//
// y[n] = sum over blocks of scale[n] * (sum of q[n][k] * x[k]) + minimum[n] * (sum of x[k]). The integers are exact in
// bfloat16 and the scales stay as the file has them, so a product loses nothing but its rows' own rounding.
//
// A packed matrix is a row of tiles of 16 outputs; a tile is a row of records, read from front to back:
//   kInt4   32 inputs: [4][32 words of 4 nibbles] · scale [16] half · minimum [16] half
//   kInt4K  256 inputs: scale [16] half · minimum [16] half · 8 x ([4][32 words] · scale [16] byte · minimum [16] byte)
//   kInt8   32 inputs: [16 pairs][16 outputs][2] bytes · scale [16] half
//   kInt6K  256 inputs: scale [16] half · 16 x ([8 pairs][16 outputs][2] bytes, 32 too large · scale [16] signed byte)
// Word [r][n][j] of four nibbles holds the inputs 8 r + j, + 2, + 4 and + 6 of output n, lowest bits first.
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
    const uint8_t* block = record + 32 + index % 16 * 272;
    return {block, halves(record) * bytes<true>(block + 256), Floats{}};
  }
}

template <int64_t kKind>
constexpr int block_inputs() { return kKind == kInt6K ? 16 : 32; }
template <int64_t kKind>
constexpr bool has_minimum() { return kKind == kInt4 || kKind == kInt4K; }

#ifdef __AMX_BF16__
constexpr int kAhead = 4;  // blocks in flight

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

// Blocks that are multiplied together, made ready while those before them are being multiplied.
struct Ready {
  alignas(64) uint16_t weights[kAhead][512];
  Floats scale[kAhead], minimum[kAhead];
};

template <int64_t kKind>
static inline void make_ready(const uint8_t* tile, int64_t first, int count, Ready& ready) {
  constexpr int size = block_inputs<kKind>() * kTile / (has_minimum<kKind>() ? 2 : 1);
  for (int index = 0; index < count; index++) {
    const Block at = block_at<kKind>(tile, first + index);
    for (int line = 0; line < size / 64 + 1; line++)
      _mm_prefetch(reinterpret_cast<const char*>(at.integers) + 4096 + 64 * line, _MM_HINT_T0);
    expand<kKind>(at.integers, first + index, ready.weights[index]);
    ready.scale[index] = at.scale;
    ready.minimum[index] = at.minimum;
  }
}

// Products of up to four blocks with up to 16 rows: one result tile each.
template <int kSize>
static inline void multiply_blocks(const uint16_t* rows, int64_t stride, int64_t block, int count, const Ready& ready,
                                   float (*part)[16][16]) {
  const auto at = [&](int index) { return rows + (block + index) * kSize / kStep * kStep; };
  _tile_zero(0);
  _tile_loadd(4, at(0), stride * 2);
  _tile_loadd(6, ready.weights[0], 64);
  _tile_dpbf16ps(0, 4, 6);
  if (count > 1) {
    _tile_zero(1);
    _tile_loadd(5, at(1), stride * 2);
    _tile_loadd(7, ready.weights[1], 64);
    _tile_dpbf16ps(1, 5, 7);
  }
  if (count > 2) {
    _tile_zero(2);
    _tile_loadd(4, at(2), stride * 2);
    _tile_loadd(6, ready.weights[2], 64);
    _tile_dpbf16ps(2, 4, 6);
  }
  if (count > 3) {
    _tile_zero(3);
    _tile_loadd(5, at(3), stride * 2);
    _tile_loadd(7, ready.weights[3], 64);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, part[0], 64);
  if (count > 1) _tile_stored(1, part[1], 64);
  if (count > 2) _tile_stored(2, part[2], 64);
  if (count > 3) _tile_stored(3, part[3], 64);
}

// Adds the blocks' products to the totals, scaled, block after block.
template <int64_t kKind, int kCount>
static inline void add_blocks(const Ready& ready, const float (*part)[kAhead][16][16], const float* sums, int64_t num_sums,
                              int num_rows, float (*total)[16]) {
  for (int row = 0; row < num_rows; row++) {
    Floats sum = load(total[row]);
#pragma GCC unroll 4
    for (int index = 0; index < kCount; index++) {
      sum += ready.scale[index] * load(part[row / 16][index][row % 16]);
      if constexpr (has_minimum<kKind>()) sum += ready.minimum[index] * sums[row * num_sums + index];
    }
    store(total[row], sum);
  }
}

// One tile for 1 to 32 rows; `result` has a stride of a panel. Rows up to the next 16 are read, and ignored.
template <int64_t kKind>
static void multiply_tile(TileShapes& shapes, const uint16_t* rows, int64_t stride, int num_rows, const float* sums,
                          int64_t num_sums, const uint8_t* tile, int64_t inputs, float* result) {
  constexpr int size = block_inputs<kKind>();
  Ready ready[2];
  alignas(64) float part[2][kAhead][16][16], total[kGroup][16];
  if constexpr (kKind == kInt6K)  // halves of zeros; even and odd places alternate
    for (Ready& one : ready) memset(one.weights, 0, sizeof one.weights);
  for (int row = 0; row < num_rows; row++) store(total[row], Floats{});
  const int64_t num_blocks = inputs / size;
  const auto count_at = [&](int64_t block) { return int(num_blocks - block < kAhead ? num_blocks - block : kAhead); };
  shapes.set(num_rows < 16 ? num_rows : 16, num_rows < 16 ? num_rows : 16);
  make_ready<kKind>(tile, 0, count_at(0), ready[0]);
  for (int64_t block = 0, turn = 0; block < num_blocks; block += kAhead, turn ^= 1) {
    const int count = count_at(block);
    const Ready& now = ready[turn];
    for (int half = 0; half * 16 < num_rows; half++)
      multiply_blocks<size>(rows + half * 16 * stride, stride, block, count, now, part[half]);
    if (block + kAhead < num_blocks) make_ready<kKind>(tile, block + kAhead, count_at(block + kAhead), ready[turn ^ 1]);
    switch (count) {
      case 1: add_blocks<kKind, 1>(now, part, sums + block, num_sums, num_rows, total); break;
      case 2: add_blocks<kKind, 2>(now, part, sums + block, num_sums, num_rows, total); break;
      case 3: add_blocks<kKind, 3>(now, part, sums + block, num_sums, num_rows, total); break;
      default: add_blocks<kKind, 4>(now, part, sums + block, num_sums, num_rows, total);
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
      default: multiply_tile<kInt6K>(shapes, rows, stride, num_rows, sums, num_sums, tile, inputs, to); break;
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
