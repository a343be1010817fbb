// Sums of products by the matrix unit: see quantised.h.
//
// A step's weights are expanded to signed bytes two steps before they are multiplied, and a step's sums are added to the
// rows' totals one step after: so nothing is read back before it has been written. The buffers are used over and over, as
// they share the first-level cache with the rows.
#pragma once

constexpr int kRing = 4, kEarly = 2, kLate = 1;  // steps in the buffers, from expanding to multiplying, from that to adding

template <int kSums>
struct alignas(64) RingOf {
  Bits weights[kRing][8];
  int32_t sums[kRing][kSums][16][16];
  Factors factors[kRing];
};

template <int64_t kKind>
using Ring = RingOf<kKind == kInt6K ? 2 : 1>;

template <int64_t kKind>
OUTRIDER_INLINE void expand_step(const Blocks<kKind>& tile, int64_t step, Ring<kKind>& ring) {
  tile.prefetch(step);
  Bits weights[8];
  expand<kKind>(tile.integers(step), weights);
#pragma GCC unroll 8
  for (int part = 0; part < 8; part++) {
    __m512i bytes = (__m512i)weights[part];
    if (kKind == kInt6K) bytes = _mm512_sub_epi8(bytes, _mm512_set1_epi8(32));
    _mm512_store_si512(&ring.weights[step % kRing][part], bytes);
  }
  ring.factors[step % kRing] = tile.factors(step);
}

// Adds a step's sums to the rows' totals.
template <int64_t kKind, int... kRow>
OUTRIDER_INLINE void add_step(Floats (&totals)[sizeof...(kRow)], const Scale* scales, const Ring<kKind>& ring, int64_t step,
                              std::integer_sequence<int, kRow...>) {
  const Factors factors = ring.factors[step % kRing];
  const auto& low = ring.sums[step % kRing][0];
  const auto& high = ring.sums[step % kRing][kKind == kInt6K];
  const auto at = [](const int32_t* from) { return *reinterpret_cast<const Ints*>(from); };
  ((totals[kRow] = added<kKind>(totals[kRow], scales[step * int(sizeof...(kRow)) + kRow], factors, at(low[kRow]), at(high[kRow]))), ...);
}

template <int... kRow>
OUTRIDER_INLINE void load_rows(Floats (&totals)[sizeof...(kRow)], const float* from, std::integer_sequence<int, kRow...>) {
  ((totals[kRow] = load(from + kRow * kPanel)), ...);
}

template <int... kRow>
OUTRIDER_INLINE void store_rows(const Floats (&totals)[sizeof...(kRow)], float* to, std::integer_sequence<int, kRow...>) {
  (store(to + kRow * kPanel, totals[kRow]), ...);
}

// result += the products of `kRows` rows with steps [first, last), in order; `first` is a multiple of kRing. With `kExpand`
// the steps behind the first kEarly are expanded on the way; else all are there.
template <int64_t kKind, int kRows, bool kExpand>
static void run_steps(const int8_t* bytes, const Scale* scales, const Blocks<kKind>& tile, int64_t first, int64_t last,
                      Ring<kKind>& ring, float* result) {
  Floats totals[kRows];
  load_rows(totals, result, Numbers<kRows>());
#define OUTRIDER_MULTIPLY(sums_tile, rows_tile, weights_tile, from, parts, to) \
  _tile_zero(sums_tile);                                                       \
  _tile_loadd(rows_tile, from, kStep);                                         \
  _tile_loadd(weights_tile, parts, 64);                                        \
  _tile_dpbssd(sums_tile, rows_tile, weights_tile);                            \
  _tile_stored(sums_tile, to, 64);
#define OUTRIDER_STEP(place, sums_tile, other_sums_tile)                                                              \
  {                                                                                                                   \
    const int64_t step = begin + place;                                                                               \
    if (kExpand && step + kEarly < last) expand_step<kKind>(tile, step + kEarly, ring);                               \
    if (step < last) {                                                                                                \
      const int8_t* from = bytes + step * kRows * kStep;                                                              \
      __asm__ volatile("" ::: "memory"); /* what tiles read has been written */                                       \
      OUTRIDER_MULTIPLY(sums_tile, 4, 6, from, ring.weights[place], ring.sums[place][0])                              \
      if (kKind == kInt6K) {                                                                                          \
        OUTRIDER_MULTIPLY(other_sums_tile, 5, 7, from + 16, ring.weights[place] + 4, ring.sums[place][1])             \
      }                                                                                                               \
    }                                                                                                                 \
    if (step - kLate >= first && step - kLate < last) add_step<kKind>(totals, scales, ring, step - kLate, Numbers<kRows>()); \
  }
  for (int64_t begin = first; begin < last + kLate; begin += kRing) {
    OUTRIDER_STEP(0, 0, 1)
    OUTRIDER_STEP(1, 2, 3)
    OUTRIDER_STEP(2, 0, 1)
    OUTRIDER_STEP(3, 2, 3)
  }
#undef OUTRIDER_STEP
#undef OUTRIDER_MULTIPLY
  store_rows(totals, result, Numbers<kRows>());
}

// One tile for the rows of a group; `result` has a stride of a panel. All rows of a tile of rows are read; those that are
// not there give numbers that mean nothing.
template <int64_t kKind>
static void multiply_many(TileShapes& shapes, const Rows& rows, const Blocks<kKind>& tile, float* result) {
  const int64_t steps = rows.size / kStep;
  Ring<kKind> ring;
  shapes.set(int(rows.height), kKind == kInt6K ? 16 : 32, kKind == kInt6K ? 4 : 8);
  for (int64_t row = 0; row < rows.groups() * rows.height; row++) store(result + row * kPanel, Floats{});
  const auto expand_steps = [&](int64_t first, int64_t count) {
    for (int64_t step = first; step < std::min(first + count, steps); step++) expand_step<kKind>(tile, step, ring);
  };
  if (rows.num_rows > 16) {
    for (int64_t first = 0; first < steps; first += kRing) {
      expand_steps(first, kRing);
      for (int64_t group = 0; group < rows.groups(); group++)
        run_steps<kKind, 16, false>(rows.bytes + group * rows.group_size(), rows.scales + group * rows.group_scales(), tile, first,
                                    std::min(first + kRing, steps), ring, result + group * 16 * kPanel);
    }
    return;
  }
  expand_steps(0, kEarly);
  if (rows.height == 8) run_steps<kKind, 8, true>(rows.bytes, rows.scales, tile, 0, steps, ring, result);
  else run_steps<kKind, 16, true>(rows.bytes, rows.scales, tile, 0, steps, ring, result);
}
