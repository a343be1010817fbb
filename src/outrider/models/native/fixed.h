// Products of rows with matrices in the blocks of a GGUF file by the matrix unit: weights as bytes (held.h), rows as fixed-point
// numbers (cut_fixed.h).
//
// A number of a row is two bytes. Two sums of products of bytes over all inputs, each exact, make a result: nothing is scaled
// between two steps, so 16 rows cost little more than one. Minimum * sum of the row's integers is added in float32, step by step.
//
// One row is multiplied by vectors, more by the matrix unit, with the same bits.
//
// Invariant: a number of the result depends on its row and its output only.
#pragma once
#include <algorithm>
#include <type_traits>
#include <utility>

#include "held.h"

constexpr int kManyPairs = 16;            // that are widened at once for many rows, or whose minima are added at once
constexpr int64_t kHalfCache = 12 << 10;  // numbers of rows, two bytes each, in half a first-level cache

// The sums of a group of rows: of the rows' high bytes and of their low ones, and of the minima.
struct alignas(64) Sums {
  int32_t high[16][16], low[16][16];
  Floats minima[16];
};

// Adds minimum * sum of the row's integers, of a pair.
template <int... kRow>
OUTRIDER_INLINE void add_minima(Floats* minima, const Held<kInt4>& tile, int64_t pair, const float* sums,
                                std::integer_sequence<int, kRow...>) {
  constexpr int kRows = sizeof...(kRow);
  const Floats first = tile.minimum(pair, 0), last = tile.minimum(pair, 1);
  ((minima[kRow] = fused(last, all(sums[kRows + kRow]), fused(first, all(sums[kRow]), minima[kRow]))), ...);
}

template <int... kRow>
OUTRIDER_INLINE void copy_sums(Floats* to, const Floats* from, std::integer_sequence<int, kRow...>) {
  ((to[kRow] = from[kRow]), ...);
}

// The results of a group of rows.
template <int64_t kHeld, int... kRow>
OUTRIDER_INLINE void put_results(const Sums& sums, const Floats* minima, Floats units, const Cut& cut, float* result,
                                 std::integer_sequence<int, kRow...>) {
  const auto put = [&](int row) {
    const auto floats = [](const int32_t* from) { return __builtin_convertvector(*reinterpret_cast<const Ints*>(from), Floats); };
    const Floats total = fused(all(256), floats(sums.high[row]), floats(sums.low[row]));
    const Floats minimum = kHeld == kInt4 ? minima[row] : all(-128 * cut.totals[row]);
    store(result + row * kPanel, (total + minimum) * units * cut.factors[row]);
  };
  (put(kRow), ...);
}

// One tile for `kRows` rows.
template <int64_t kHeld, int kRows>
static void multiply_rows(const Rows& rows, const Held<kHeld>& tile, float* result) {
  constexpr int64_t kPlane = kRows * Cut::kPair;
  constexpr int kRing = 4, kEarly = 2;  // planes in a ring, and pairs from expanding to multiplying
  constexpr auto kAll = std::make_integer_sequence<int, kRows>();
  const int64_t pairs = Cut::pairs(rows.steps());
  Plane planes[kRing];
  Sums sums;
  Floats minima[kRows] = {};
  _tile_zero(0);
  _tile_zero(1);
  if (kHeld == kInt4)
    for (int64_t pair = 0; pair < std::min<int64_t>(kEarly, pairs); pair++) tile.expand(pair, planes[pair], Nothing());
  const int8_t* from = rows.cut.bytes;
  for (int64_t pair = 0; pair < pairs; pair++, from += 2 * kPlane) {
    tile.coming(pair + kEarly).fetch();
    if (kHeld == kInt4 && pair + kEarly < pairs) tile.expand(pair + kEarly, planes[(pair + kEarly) % kRing], Nothing());
    __asm__ volatile("" ::: "memory");  // what tiles read has been written
    _tile_loadd(4, from, Cut::kPair);
    _tile_loadd(5, from + kPlane, Cut::kPair);
    _tile_loadd(6, kHeld == kInt8 ? &tile.bytes(pair) : &planes[pair % kRing], 64);
    _tile_dpbsud(0, 4, 6);
    _tile_dpbsud(1, 5, 6);
    if constexpr (kHeld == kInt4) add_minima(minima, tile, pair, rows.cut.sums + pair * 2 * kRows, kAll);
  }
  _tile_stored(0, sums.high, 64);
  _tile_stored(1, sums.low, 64);
  put_results<kHeld>(sums, minima, tile.units(), rows.cut, result, kAll);
}

// The two tiles of a panel, read at the same time.
template <int64_t kHeld>
struct Both {
  Held<kHeld> one, other;

  Both(const uint8_t* panel, int64_t pairs, int64_t size)
      : one(panel, pairs, behind(pairs, size)), other(panel + size, pairs, behind(pairs, size)) {}

  // The planes of a pair, while what lies behind it is fetched.
  OUTRIDER_INLINE_MEMBER void expand(int64_t pair, Plane (&planes)[2]) const {
    one.expand(pair, planes[0], one.coming(pair));
    other.expand(pair, planes[1], other.coming(pair));
  }
  OUTRIDER_INLINE_MEMBER void fetch(int64_t pair) const { one.coming(pair).fetch(), other.coming(pair).fetch(); }

 private:
  static int64_t behind(int64_t pairs, int64_t size) { return 2 * size - pairs * pair_bytes(kHeld); }
};

// Adds pairs [first, last) of both tiles of a panel to the sums of `kRows` rows, which begin at zero before pair 0, and puts
// the results behind the last pair: each tile of the rows is read once for both. With `kExpand` the planes of kInt4 are those of
// a pair and of the next; else those of the pairs from `first` on are there.
template <int64_t kHeld, int kRows, bool kExpand>
static void add_both(const Rows& rows, const Both<kHeld>& tiles, int64_t first, int64_t last, Plane (*planes)[2], Sums* sums,
                     float* result) {
  constexpr int64_t kPlane = kRows * Cut::kPair;
  constexpr auto kAll = std::make_integer_sequence<int, kRows>();
  const auto &one = tiles.one, &other = tiles.other;
  if (first) {
    _tile_loadd(0, sums[0].high, 64);
    _tile_loadd(1, sums[0].low, 64);
    _tile_loadd(2, sums[1].high, 64);
    _tile_loadd(3, sums[1].low, 64);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int row = 0; row < kRows; row++) sums[0].minima[row] = sums[1].minima[row] = Floats{};
  }
  if (kExpand && kHeld == kInt4) tiles.expand(first, planes[first % 2]);
  const int8_t* from = rows.cut.bytes + first * 2 * kPlane;
  for (int64_t begin = first; begin < last; begin += kManyPairs) {
    const int64_t end = std::min<int64_t>(begin + kManyPairs, last);
    for (int64_t pair = begin; pair < end; pair++, from += 2 * kPlane) {
      if (kExpand && kHeld == kInt4 && pair + 1 < last) tiles.expand(pair + 1, planes[(pair + 1) % 2]);
      else if (kExpand) tiles.fetch(pair);
      const Plane* both = planes[kExpand ? pair % 2 : pair - first];
      __asm__ volatile("" ::: "memory");  // what tiles read has been written
      _tile_loadd(4, from, Cut::kPair);
      _tile_loadd(5, from + kPlane, Cut::kPair);
      _tile_loadd(6, kHeld == kInt8 ? &one.bytes(pair) : both, 64);
      _tile_dpbsud(0, 4, 6);
      _tile_dpbsud(1, 5, 6);
      _tile_loadd(7, kHeld == kInt8 ? &other.bytes(pair) : both + 1, 64);
      _tile_dpbsud(2, 4, 7);
      _tile_dpbsud(3, 5, 7);
    }
    if constexpr (kHeld == kInt4)
      for (int half = 0; half < 2; half++) {
        Floats minima[kRows];
        copy_sums(minima, sums[half].minima, kAll);
        for (int64_t pair = begin; pair < end; pair++)
          add_minima(minima, half ? other : one, pair, rows.cut.sums + pair * 2 * kRows, kAll);
        copy_sums(sums[half].minima, minima, kAll);
      }
  }
  _tile_stored(0, sums[0].high, 64);
  _tile_stored(1, sums[0].low, 64);
  _tile_stored(2, sums[1].high, 64);
  _tile_stored(3, sums[1].low, 64);
  if (last < Cut::pairs(rows.steps())) return;
  put_results<kHeld>(sums[0], sums[0].minima, one.units(), rows.cut, result, kAll);
  put_results<kHeld>(sums[1], sums[1].minima, other.units(), rows.cut, result + kTile, kAll);
}

// One row's result, by vectors.
template <int64_t kHeld>
static void multiply_row(const Rows& rows, const Held<kHeld>& tile, float* result) {
  typedef int32_t Four __attribute__((aligned(1), may_alias));
  constexpr std::integer_sequence<int, 0> kRow;
  const Four* from = reinterpret_cast<const Four*>(rows.cut.bytes);
  __m512i high[2] = {}, low[2] = {};  // two sums of each, so that none waits for itself
  Floats minimum[1] = {};
  Sums sums;
  for (int64_t pair = 0; pair < Cut::pairs(rows.steps()); pair++, from += 32) {
    const Coming<kHeld> coming = tile.coming(pair);
    Plane plane;
    if (kHeld == kInt4) tile.expand(pair, plane, coming);
    const Plane& weights = kHeld == kInt4 ? plane : tile.bytes(pair);
#pragma GCC unroll 16
    for (int part = 0; part < 16; part++) {
      if (kHeld == kInt8 && part % 2) coming.fetch(part / 2);
      const __m512i bytes = (__m512i)weights.parts[part];
      high[part % 2] = _mm512_dpbusd_epi32(high[part % 2], bytes, _mm512_set1_epi32(from[part]));
      low[part % 2] = _mm512_dpbusd_epi32(low[part % 2], bytes, _mm512_set1_epi32(from[16 + part]));
    }
    if constexpr (kHeld == kInt4) add_minima(minimum, tile, pair, rows.cut.sums + 2 * pair, kRow);
  }
  _mm512_store_si512(sums.high, _mm512_add_epi32(high[0], high[1]));
  _mm512_store_si512(sums.low, _mm512_add_epi32(low[0], low[1]));
  put_results<kHeld>(sums, minimum, tile.units(), rows.cut, result, kRow);
}

// Both tiles of a panel for 17 rows and more: planes are widened once for all groups of rows.
template <int64_t kHeld>
static void multiply_groups(const Rows& rows, const Both<kHeld>& tiles, float* result) {
  const int64_t pairs = Cut::pairs(rows.steps());
  Plane planes[kManyPairs][2];
  Sums sums[kGroup / 16][2];
  for (int64_t first = 0; first < pairs; first += kManyPairs) {
    const int64_t last = std::min<int64_t>(first + kManyPairs, pairs);
    for (int64_t pair = first; pair < last; pair++) {
      if (kHeld == kInt4) tiles.expand(pair, planes[pair - first]);
      else tiles.fetch(pair);
    }
    for (int64_t group = 0; group < rows.groups(); group++) {
      float* to = result + 16 * group * kPanel;
      add_both<kHeld, 16, false>(rows.from(16 * group, 16), tiles, first, last, planes, sums[group], to);
    }
  }
}

// Calls `multiply` with the height of a tile of rows, as a constant.
template <typename Multiply>
static void with_height(const Rows& rows, const Multiply& multiply) {
  switch (rows.height) {
    case 2: return multiply(std::integral_constant<int, 2>());
    case 4: return multiply(std::integral_constant<int, 4>());
    case 8: return multiply(std::integral_constant<int, 8>());
    default: return multiply(std::integral_constant<int, 16>());
  }
}

// One panel for the rows of a group; `result` has a stride of a panel. All rows of a tile of rows are read; those that are not
// there give numbers that mean nothing.
template <int64_t kHeld>
static void multiply_held(const Rows& rows, const uint8_t* panel, float* result) {
  const int64_t size = held_bytes(kHeld, rows.size), pairs = Cut::pairs(rows.steps());
  if (rows.num_rows > 16) return multiply_groups(rows, Both<kHeld>(panel, pairs, size), result);
  if (rows.height > 1 && rows.height * rows.size >= kHalfCache)  // then reading the rows once more costs most
    return with_height(rows, [&](auto height) {
      Plane planes[2][2];
      Sums sums[2];
      add_both<kHeld, height, true>(rows, Both<kHeld>(panel, pairs, size), 0, pairs, planes, sums, result);
    });
  for (int half = 0; half < 2; half++) {
    const Held<kHeld> tile(panel + half * size, pairs, size - pairs * pair_bytes(kHeld));
    float* to = result + half * kTile;
    if (rows.height == 1) multiply_row(rows, tile, to);
    else with_height(rows, [&](auto height) { multiply_rows<kHeld, height>(rows, tile, to); });
  }
}

// One panel of two tiles for the rows of a group; `result` has a row a panel.
static inline void multiply_quantised(TileShapes& shapes, int64_t held, const Rows& rows, const uint8_t* panel, Tile& result) {
  shapes.set(int(rows.height));
  if (held == kInt4) multiply_held<kInt4>(rows, panel, result.values[0]);
  else multiply_held<kInt8>(rows, panel, result.values[0]);
}
