// How the matrix unit's products hold the blocks of a GGUF file: weights as bytes, or as four bits that are widened on the way.
//
// A weight is unit * w + minimum, with one unit for an output and a byte w. Blocks of more than four bits are held as such bytes,
// rounded to nearest, with -128 units for a minimum. Those of four bits stay so, w = q * S / 16 rounded down, where S, a byte, is
// the block's scale; its minimum takes up the mean of what is lost.
//
// A held tile of 16 outputs is their units [16] float, and a record for each pair of steps, as many inputs as a tile register
// takes; half a pair that is not there is zeros. A record is
//   kInt4   S [step][16] byte · minimum in units [step][16] half · [step][4][64] pairs of nibbles
//   kInt8   [step][8][64] bytes
// in the order of blocks.h, but that of the inputs of nibbles each two have changed places.
#pragma once
#include <vector>

#include "pack.h"
#include "product.h"

static inline int64_t held_kind(int64_t kind) { return kind == kInt4 || kind == kInt4K ? kInt4 : kInt8; }

constexpr int64_t kMinima = 2 * kTile, kNibbles = kMinima + 4 * kTile, kNibblePair = kNibbles + 512;  // bytes within a record
constexpr int64_t kBytePair = 1024;
constexpr int64_t kMostInputs = 1 << 16;  // sums of so many products of bytes have 31 bits

static constexpr int64_t pair_bytes(int64_t held) { return held == kInt4 ? kNibblePair : kBytePair; }

static inline int64_t held_bytes(int64_t held, int64_t inputs) {
  return (kLine + Cut::pairs(inputs / kStep) * pair_bytes(held) + kLine - 1) / kLine * kLine;
}

// The weights of a pair of steps as the matrix unit reads them.
struct alignas(64) Plane {
  Bits parts[16];
};

// What is fetched while a pair is widened, to the first-level cache and to the second. Few lines at a time: many at once would
// hold up both what is multiplied and each other. Always inlined, as GCC drops calls of functions that do nothing but prefetch.
template <int64_t kHeld>
struct Coming {
  static constexpr int kPieces = 8;
  const uint8_t *soon, *later;

  OUTRIDER_INLINE_MEMBER void fetch(int piece) const {
    constexpr int64_t kLines = (pair_bytes(kHeld) + kLine - 1) / kLine;
    for (int64_t line = kLines * piece / kPieces; line < kLines * (piece + 1) / kPieces; line++) {
      _mm_prefetch(later + kLine * line, _MM_HINT_T1);
      _mm_prefetch(soon + kLine * line, _MM_HINT_T0);
    }
  }
  OUTRIDER_INLINE_MEMBER void fetch() const {
#pragma GCC unroll 8
    for (int piece = 0; piece < kPieces; piece++) fetch(piece);
  }
};

// A tile of so many pairs; `skipped` bytes lie between its last record and the first of the tile that is multiplied next.
template <int64_t kHeld>
class Held {
 public:
  Held(const uint8_t* tile, int64_t pairs, int64_t skipped) : tile_(tile), pairs_(pairs), skipped_(skipped) {}

  Floats units() const { return load(reinterpret_cast<const float*>(tile_)); }
  Floats minimum(int64_t pair, int64_t step) const { return halves(record(pair) + kMinima + 32 * step); }
  const Plane& bytes(int64_t pair) const { return *reinterpret_cast<const Plane*>(record(pair)); }  // of kInt8

  OUTRIDER_INLINE_MEMBER Coming<kHeld> coming(int64_t pair) const {
    // small models, whose tiles are short, gain from more bytes ahead, as a shared cache holds them; large ones from fewer
    constexpr int64_t kSoon = 2, kShort = 16;  // pairs
    const int64_t later = (pairs_ < kShort ? 8192 : 4096) / pair_bytes(kHeld);
    return {next(pair + kSoon), next(pair + later)};
  }

  // The plane of a pair, of kInt4, while something is fetched.
  template <typename Fetched>
  OUTRIDER_INLINE_MEMBER void expand(int64_t pair, Plane& plane, const Fetched& fetched) const {
    const uint8_t* from = record(pair);
    expand_step(from, from + kNibbles, plane.parts, fetched, 0);
    expand_step(from + kTile, from + kNibbles + 256, plane.parts + 8, fetched, 4);
  }

 private:
  const uint8_t* tile_;
  int64_t pairs_, skipped_;

  const uint8_t* record(int64_t pair) const { return tile_ + kLine + pair * pair_bytes(kHeld); }
  const uint8_t* next(int64_t pair) const { return record(pair) + (pair < pairs_ ? 0 : skipped_); }

  // Two products of a nibble and S at once in each half of a lane, their upper bytes put side by side.
  template <typename Fetched>
  OUTRIDER_INLINE_MEMBER static void expand_step(const uint8_t* scales, const uint8_t* nibbles, Bits* to, const Fetched& fetched,
                                                 int first) {
    const __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales)));
    const __m512i scale = _mm512_or_si512(wide, _mm512_slli_epi32(wide, 16)), shifted = _mm512_slli_epi16(scale, 4);
    const auto both = [](__m512i upper, __m512i lower) {  // the upper byte of one, the lower of the other
      return (Bits)_mm512_ternarylogic_epi32(upper, lower, _mm512_set1_epi16(short(0xff00)), 0xe4);
    };
#pragma GCC unroll 4
    for (int part = 0; part < 4; part++) {
      fetched.fetch(first + part);
      const __m512i four = _mm512_loadu_si512(nibbles + 64 * part);
      const auto nibble = [&](int mask) { return _mm512_and_si512(four, _mm512_set1_epi16(short(mask))); };
      to[part] = both(_mm512_mullo_epi16(nibble(0x000f), shifted), _mm512_mulhi_epu16(nibble(0x0f00), shifted));
      to[part + 4] = both(_mm512_mullo_epi16(nibble(0x00f0), scale), _mm512_mulhi_epu16(nibble(0xf000), scale));
    }
  }
};

// Input `place` of a part of sixteen outputs, as a number.
template <int64_t kKind>
static Floats number_at(Bits part, int place) {
  const Ints number = (Ints)(part << (24 - 8 * place)) >> 24;
  return __builtin_convertvector(kKind == kInt6K ? number - 32 : number, Floats);
}

static Floats size_of(Floats values) { return (Floats)((Ints)values & 0x7fffffff); }

// From a tile of blocks to the form that is held. A number of a block that is not finite makes the unit, and so each result of
// the output, NaN.
template <int64_t kKind>
static void hold(const uint8_t* blocks, int64_t in, uint8_t* to) {
  const Blocks<kKind> tile(blocks);
  Bits parts[8];
  const auto scale_of = [](const Factors& factors, int part) { return kKind == kInt6K && part >= 4 ? factors.high : factors.low; };
  Floats units = {};
  for (int64_t step = 0; step < in / kStep; step++) {
    const Factors factors = tile.factors(step);
    if (has_minimum<kKind>()) {
      units = larger(size_of(factors.low) * (16.0f / 255), units);
      units = larger(size_of(factors.high) / 60000.0f, units);  // what a half holds
    } else {
      expand<kKind>(tile.integers(step), parts);
      for (int part = 0; part < 8; part++)
        for (int place = 0; place < 4; place++)
          units = larger(size_of(number_at<kKind>(parts[part], place) * scale_of(factors, part)) / 127.0f, units);
    }
    units += (factors.low + factors.high) * 0.0f;
  }
  store(reinterpret_cast<float*>(to), units);
  const Floats inverse = select(units > 0.0f, all(1) / units, Floats{});
  for (int64_t step = 0; step < in / kStep; step++) {
    const Factors factors = tile.factors(step);
    expand<kKind>(tile.integers(step), parts);
    uint8_t* record = to + kLine + step / 2 * pair_bytes(held_kind(kKind));
    Bits held[8] = {};
    if constexpr (has_minimum<kKind>()) {
      const Floats scale = factors.low * inverse;
      const Ints factor = rounded(size_of(scale) * 16.0f), turned = scale < 0.0f;  // these are counted from the other end
      Floats lost = {};
      for (int part = 0; part < 8; part++)
        for (int place = 0; place < 4; place++) {
          const Bits number = parts[part] >> (8 * place) & 15u, nibble = number ^ ((Bits)turned & 15u);
          held[part % 4] |= nibble << (8 * (place ^ 1) + part / 4 * 4);
          lost += scale * __builtin_convertvector(number, Floats);
          lost -= __builtin_convertvector((Ints)nibble * factor >> 4, Floats);
        }
      memcpy(record + kNibbles + step % 2 * 256, held, 256);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(record + step % 2 * kTile), _mm512_cvtepi32_epi8((__m512i)factor));
      const Floats minimum = factors.high * inverse + lost * (1.0f / kStep);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(record + kMinima + step % 2 * 32), _mm512_cvtps_ph((__m512)minimum, 0));
    } else {
      for (int part = 0; part < 8; part++)
        for (int place = 0; place < 4; place++) {
          const Floats number = number_at<kKind>(parts[part], place) * scale_of(factors, part) * inverse;
          held[part] |= ((Bits)(rounded(number) + 128) & 255u) << (8 * place);
        }
      memcpy(record + step % 2 * 512, held, 512);
    }
  }
}

// Rows of blocks [out, row bytes] become a held tile.
static inline void hold_tile(int64_t type, const uint8_t* blocks, int64_t num_rows, int64_t in, uint8_t* to) {
  std::vector<uint8_t> tile(size_t(tile_bytes(kind_of(type), in)));
  pack_tile(type, blocks, num_rows, in, tile.data());
  memset(to, 0, size_t(held_bytes(held_kind(kind_of(type)), in)));
  switch (kind_of(type)) {
    case kInt4: return hold<kInt4>(tile.data(), in, to);
    case kInt4K: return hold<kInt4K>(tile.data(), in, to);
    case kInt8: return hold<kInt8>(tile.data(), in, to);
    default: return hold<kInt6K>(tile.data(), in, to);
  }
}
