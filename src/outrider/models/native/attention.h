// Attention of the rows of a pass over the slots of a cache, in bfloat16 with float32 sums.
//
// Each item of work.h is done by itself. A span is 512 positions, counted from the beginning of the text; its result is a
// maximum, a sum and a weighted sum of values, and `combine` puts the spans of a query together in order.
//
// Invariant: what a query gets depends on its own keys in the order of its own positions only. Spans and blocks begin at
// fixed positions, keys that a query does not see add exact zeros, and the nodes of a tree read copies of their own
// path's keys, in its order.
#pragma once

#include <algorithm>
#include <vector>

#include "product.h"
#include "work.h"

constexpr int kBlock = 32;     // keys of one product with the values
constexpr int kMostDim = 256;  // numbers of a head

// Fetches keys and values in groups of 16 rows, one group while another is read: to the first-level cache what this item reads
// soon, and to the second what the next item will read. A group comes in sixteen pieces, as many lines at once would hold up the
// work between them. `fetch` is always inlined, as GCC drops calls of functions that do nothing but prefetch.
class Ahead {
 public:
  // Where keys and values of so many groups begin.
  struct Groups {
    const uint16_t *keys, *values;
    int64_t count;
  };

  void begin(const Groups& own, const Groups& next, int64_t head_dim) {
    own_ = own, next_ = next, size_ = kGroupRows * head_dim, at_ = 0;
  }
  void step() {
    const int64_t soon = at_ + 3;
    soon_ = soon < 2 * own_.count ? place(own_, soon) : place(next_, soon - 2 * own_.count);
    later_ = at_ < 2 * next_.count ? place(next_, at_) : soon_;
    at_++;
  }
  OUTRIDER_INLINE_MEMBER void fetch(int piece) const {
    const int64_t numbers = size_ / kPieces;
    for (int64_t number = piece * numbers; number < (piece + 1) * numbers; number += kLineNumbers) {
      __builtin_prefetch(later_ + number, 0, 2);
      __builtin_prefetch(soon_ + number, 0, 3);
    }
  }

 private:
  static constexpr int64_t kLineNumbers = 32, kGroupRows = 16;
  static constexpr int kPieces = 16;
  Groups own_, next_;
  int64_t size_ = 0, at_ = 0;
  const uint16_t *soon_ = nullptr, *later_ = nullptr;

  const uint16_t* place(const Groups& groups, int64_t index) const {
    return index < groups.count ? groups.keys + index * size_ : groups.values + (index - groups.count) * size_;
  }
};

// A thread's buffers for one item.
struct Scratch {
  alignas(64) float scores[kQueries][kSpan];
  alignas(64) uint16_t queries[8 * kStep * kQueries];           // [head dim / 32][pair][query][2]
  alignas(64) uint16_t weights[kQueries][kSpan + kStep] = {};   // the scores' exponentials
  alignas(64) float result[kQueries * (kMostDim + 2)];          // of queries with one span
  alignas(64) uint16_t member_weights[kQueries][kBlock] = {};   // those of one path for one block
  std::vector<uint16_t> line_keys, line_values;                // the own keys and values of a path, in its order
  TileShapes shapes;
  Ahead ahead;
};

// products[key][query] = key . query for 16 keys that lie one behind the other.
static inline void multiply_keys(const uint16_t* queries, const uint16_t* keys, int64_t head_dim, float (*products)[16]) {
#ifdef __AMX_BF16__
  _tile_zero(0);
  for (int64_t step = 0; step < head_dim / kStep; step++) {
    _tile_loadd(4, keys + step * kStep, head_dim * 2);
    _tile_loadd(6, queries + step * kStep * kQueries, 64);
    _tile_dpbf16ps(0, 4, 6);
  }
  _tile_stored(0, products[0], kQueries * 4);
#else
  for (int key = 0; key < 16; key++) {
    Floats total = {};
    for (int64_t pair = 0; pair < head_dim / 2; pair++) {
      uint32_t both;
      memcpy(&both, keys + key * head_dim + pair * 2, sizeof both);
      const Bits query = *reinterpret_cast<const Bits*>(queries + pair * 2 * kQueries);
      total += (Floats)(Bits{} + (both << 16)) * (Floats)(query << 16);
      total += (Floats)(Bits{} + (both & 0xffff0000u)) * (Floats)(query & 0xffff0000u);
    }
    store(products[key], total);
  }
#endif
}

// Turns a square of 16 x 16 numbers on its diagonal, while the sixteen pieces of a group are fetched.
template <typename Fetched>
static inline void transpose(const float (*from)[16], float (*to)[16], const Fetched& ahead) {
#ifdef __AVX512F__
  __m512 rows[16], pairs[16];
#pragma GCC unroll 16
  for (int row = 0; row < 16; row++) {
    rows[row] = _mm512_load_ps(from[row]);
    if (row % 2) ahead.fetch(row / 2);
  }
  for (int row = 0; row < 16; row += 2) {
    pairs[row] = _mm512_unpacklo_ps(rows[row], rows[row + 1]);
    pairs[row + 1] = _mm512_unpackhi_ps(rows[row], rows[row + 1]);
  }
  for (int row = 0; row < 16; row += 4)
    for (int half = 0; half < 2; half++) {
      const __m512d low = _mm512_castps_pd(pairs[row + half]), high = _mm512_castps_pd(pairs[row + 2 + half]);
      rows[row + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
      rows[row + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
    }
  for (int row = 0; row < 4; row++) {
    pairs[row] = _mm512_shuffle_f32x4(rows[row], rows[row + 4], 0x88);
    pairs[row + 4] = _mm512_shuffle_f32x4(rows[row], rows[row + 4], 0xdd);
    pairs[row + 8] = _mm512_shuffle_f32x4(rows[row + 8], rows[row + 12], 0x88);
    pairs[row + 12] = _mm512_shuffle_f32x4(rows[row + 8], rows[row + 12], 0xdd);
  }
#pragma GCC unroll 8
  for (int row = 0; row < 8; row++) {
    ahead.fetch(8 + row);
    _mm512_store_ps(to[row], _mm512_shuffle_f32x4(pairs[row], pairs[row + 8], 0x88));
    _mm512_store_ps(to[row + 8], _mm512_shuffle_f32x4(pairs[row], pairs[row + 8], 0xdd));
  }
#else
  for (int row = 0; row < 16; row++) {
    ahead.fetch(row);
    for (int column = 0; column < 16; column++) to[column][row] = from[row][column];
  }
#endif
}

// Scores of `count` keys (a multiple of 16) from `first` on, for the queries of `member` (a bit each).
static void score_keys(Scratch& scratch, const uint16_t* keys, int64_t head_dim, int64_t first, int64_t count, int64_t num_queries,
                       uint32_t member) {
  alignas(64) float products[2][16][16], turned[16][16];
  if (count > 0) multiply_keys(scratch.queries, keys, head_dim, products[0]);
  for (int64_t key = 0; key < count; key += 16) {  // a product is read after the next one has been begun
    scratch.ahead.step();
    if (key + 16 < count) multiply_keys(scratch.queries, keys + (key + 16) * head_dim, head_dim, products[(key / 16 + 1) % 2]);
    transpose(products[key / 16 % 2], turned, scratch.ahead);
    for (int64_t query = 0; query < num_queries; query++)
      if (member >> query & 1) store(scratch.scores[query] + first + key, load(turned[query]));
  }
}

// The weighted values of an item's queries, [query][head dim]: those of 64 numbers of a head at a time.
class WeightedValues {
 public:
  static constexpr int64_t kWidth = 64;

  WeightedValues(float* sums, int64_t head_dim, int64_t num_queries, int64_t column)
      : sums_(sums + column),
        head_dim_(head_dim),
        num_queries_(num_queries),
        column_(column),
        parts_(std::min(kWidth, head_dim - column) / 16) {
#ifdef __AMX_BF16__
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
#else
    for (int64_t query = 0; query < num_queries; query++) memset(sums_ + query * head_dim, 0, size_t(parts_) * 16 * 4);
#endif
  }

  // Adds weights of `count` keys, of which a query has `stride`, times their values.
  void add(Ahead& ahead, const uint16_t* weights, int64_t stride, const uint16_t* values, int64_t count) {
#ifdef __AMX_BF16__
    alignas(64) Pairs pairs[2];
    if (count > 0) interleave(pairs[0], values, ahead);
    for (int64_t key = 0; key < count; key += kBlock) {  // pairs are read after the next ones have been written
      if (key + kBlock < count) interleave(pairs[(key / kBlock + 1) % 2], values + (key + kBlock) * head_dim_, ahead);
      const Pairs& read = pairs[key / kBlock % 2];
      __asm__ volatile("" ::: "memory");  // what tiles read has been written
      _tile_loadd(4, weights + key, size_t(stride) * 2);
      _tile_loadd(6, read.parts[0], 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, read.parts[1], 64);
      _tile_dpbf16ps(1, 4, 7);
      if (parts_ == 2) continue;
      _tile_loadd(6, read.parts[2], 64);
      _tile_dpbf16ps(2, 4, 6);
      _tile_loadd(7, read.parts[3], 64);
      _tile_dpbf16ps(3, 4, 7);
    }
#else
    for (int64_t key = 0; key < count; key += kBlock) {
      for (int group = 0; group < 2 && column_ == 0; group++) {
        ahead.step();
        for (int piece = 0; piece < 16; piece++) ahead.fetch(piece);
      }
      for (int64_t query = 0; query < num_queries_; query++)
        for (int64_t place = key; place < key + kBlock; place++) {
          const float weight = from_bits(weights[query * stride + place]);
          if (weight == 0) continue;
          for (int64_t part = 0; part < parts_ * 16; part += 16) {
            float* total = sums_ + query * head_dim_ + part;
            store(total, load(total) + from_bfloat16(values + place * head_dim_ + column_ + part) * weight);
          }
        }
    }
#endif
  }

  void put() {
#ifdef __AMX_BF16__
    alignas(64) float sums[4][kQueries][16];
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    _tile_stored(2, sums[2], 64);
    _tile_stored(3, sums[3], 64);
    for (int64_t query = 0; query < num_queries_; query++)
      for (int64_t part = 0; part < parts_; part += 2) {
        const __m512 low = _mm512_load_ps(sums[part][query]), high = _mm512_load_ps(sums[part + 1][query]);
        float* to = sums_ + query * head_dim_ + part * 16;
        _mm512_storeu_ps(to, _mm512_permutex2var_ps(low, _mm512_load_si512(kFirst), high));
        _mm512_storeu_ps(to + 16, _mm512_permutex2var_ps(low, _mm512_load_si512(kLast), high));
      }
#endif
  }

 private:
#ifdef __AMX_BF16__
  struct Pairs {
    uint16_t parts[4][16][32];  // [part][pair of keys][16][2]
  };

  void interleave(Pairs& pairs, const uint16_t* values, Ahead& ahead) const {
    for (int64_t part = 0; part < parts_; part += 2) {
      if (column_ == 0) ahead.step();
#pragma GCC unroll 16
      for (int pair = 0; pair < 16; pair++) {
        if (column_ == 0) ahead.fetch(pair);
        const uint16_t* from = values + 2 * pair * head_dim_ + column_ + part * 16;
        const __m512i one = _mm512_loadu_si512(from), other = _mm512_loadu_si512(from + head_dim_);
        _mm512_store_si512(pairs.parts[part][pair], _mm512_unpacklo_epi16(one, other));
        _mm512_store_si512(pairs.parts[part + 1][pair], _mm512_unpackhi_epi16(one, other));
      }
    }
  }

  // in which order 32 numbers lie in two parts
  alignas(64) static constexpr int32_t kFirst[16] = {0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23};
  alignas(64) static constexpr int32_t kLast[16] = {8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31};
#endif
  float* sums_;
  int64_t head_dim_, num_queries_, column_, parts_;
};

// The queries of an item, laid out as the weights of a product.
static void lay_out_queries(Scratch& scratch, const uint16_t* queries, const Item& item, const Heads& heads) {
  const int64_t group = heads.group();
  alignas(64) float rows[kQueries][16] = {};
  for (int64_t step = 0; step < heads.head_dim; step += kStep) {
    for (int64_t query = 0; query < item.num_queries; query++) {
      const int64_t row = (item.first_query + query) / group, place = (item.first_query + query) % group;
      const int64_t from = (item.segment->start + row) * heads.num_heads + item.head * group + place;
      memcpy(rows[query], queries + from * heads.head_dim + step, sizeof rows[query]);
    }
    transpose(rows, reinterpret_cast<float(*)[16]>(scratch.queries + step * kQueries), Nothing());
  }
}

// The keys (or values) of a path between two positions, in its order.
static void copy_line(std::vector<uint16_t>& to, const uint16_t* from, const Pass& pass, const Segment& segment,
                      int64_t line, int64_t first, int64_t last, int64_t head_dim) {
  const int64_t base = segment.num_cached + segment.num_chain;
  const int32_t* nodes = pass.line_nodes + pass.line_starts[line];
  const int64_t end = base + pass.line_starts[line + 1] - pass.line_starts[line];
  to.assign(size_t((last - first) * head_dim), 0);
  for (int64_t position = first; position < last && position < end; position++) {
    const int64_t row = position < base ? position : base + nodes[position - base];
    memcpy(to.data() + (position - first) * head_dim, from + row * head_dim, size_t(head_dim) * 2);
  }
}

// The paths of an item, each once, with the queries that are on it.
struct Lines {
  int32_t line[kQueries];
  uint32_t member[kQueries];
  int count = 0;
};

static Lines lines_of(const Pass& pass, const Item& item, const Heads& heads) {
  Lines lines;
  for (int64_t query = 0; query < item.num_queries; query++) {
    const int32_t line = pass.lines[item.segment->start + (item.first_query + query) / heads.group()];
    int index = 0;
    while (index < lines.count && lines.line[index] != line) index++;
    if (index == lines.count) lines.line[lines.count] = line, lines.member[lines.count++] = 0;
    lines.member[index] |= 1u << query;
  }
  return lines;
}

// Scores of one query become weights 2^(score * scale - top), for `count` keys from position `first` on; gives the
// largest score * scale and the sum of the weights. Keys behind `position` weigh nothing.
static void weigh(const float* scores, uint16_t* weights, int64_t first, int64_t count, int64_t position, float scale, float* top,
                  float* total) {
  const Ints lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const Floats nothing = all(-__builtin_inff());
  const auto seen = [&](int64_t key) { return select(lane + int32_t(first + key) <= int32_t(position), load(scores + key), nothing); };
  const int64_t whole = std::min(count, std::max<int64_t>(0, position + 1 - first) / kLanes * kLanes);  // keys before the last ones
  Floats found = nothing, sums = {};
  for (int64_t key = 0; key < whole; key += kLanes) found = larger(load(scores + key), found);
  if (whole < count) found = larger(seen(whole), found);
  *top = largest(found) * scale;
  // a query that sees nothing here weighs nothing
  const Floats reference = all(*top == -__builtin_inff() ? 0.0f : -*top);
  const auto put = [&](int64_t key, Floats score) {
    const Floats weight = exp2(fused(score, all(scale), reference));
    to_bfloat16(weights + key, weight);
    sums += weight;
  };
  for (int64_t key = 0; key < whole; key += kLanes) put(key, load(scores + key));
  for (int64_t key = whole; key < count; key += kLanes) put(key, seen(key));
  *total = sum(sums);
  if (*total != *total) *top = *total;
}

// The weights of a block of 32 keys; those of queries that are no members stay out.
static inline void lay_out_weights(Scratch& scratch, int64_t key, int64_t num_queries, uint32_t member) {
  for (int64_t query = 0; query < num_queries; query++) {
    if (member >> query & 1) memcpy(scratch.member_weights[query], scratch.weights[query] + key, kBlock * 2);
    else memset(scratch.member_weights[query], 0, kBlock * 2);
  }
}

// One item: `result` takes [16][head dim] weighted values, then 16 maxima, then 16 sums. What `next` reads is fetched.
static void attend(Scratch& scratch, const Pass& pass, const Heads& heads, const Item& item, const Item& next, int64_t layer,
                   const uint16_t* queries, float scale, float* result) {
  const Segment& segment = *item.segment;
  const int64_t head_dim = heads.head_dim, span = item.span * kSpan, num_queries = item.num_queries;
  const uint16_t* keys = held(segment, heads, layer, 0, item.head);
  const uint16_t* values = held(segment, heads, layer, 1, item.head);
#ifdef __AMX_BF16__
  scratch.shapes.set(16);
#endif
  lay_out_queries(scratch, queries, item, heads);
  int64_t position[kQueries], last = 0;
  for (int64_t query = 0; query < num_queries; query++) {
    position[query] = pass.positions[segment.start + (item.first_query + query) / heads.group()];
    last = position[query] > last ? position[query] : last;
  }
  const int64_t end = last + 1 < span + kSpan ? last + 1 : span + kSpan;
  const Lines lines = lines_of(pass, item, heads);
  const bool has_nodes = lines.count > 1 || lines.line[0] >= 0;
  // up to here all rows read the slot as it lies; from here on the nodes of a tree read copies of their paths
  int64_t fork = has_nodes ? (segment.num_cached + segment.num_chain) / kBlock * kBlock : end;
  fork = fork < span ? span : fork > end ? end : fork;
  const auto in_blocks = [](int64_t count) { return (count + kBlock - 1) / kBlock * kBlock; };
  const int64_t shared = in_blocks(fork - span), own = in_blocks(end - fork);
  constexpr uint32_t kAll = ~0u;

  const Segment& after = *next.segment;
  const int64_t next_first = next.span * kSpan, behind = after.num_cached + after.num_rows - next_first;
  const int64_t next_groups = &next == &item ? 0 : (std::min<int64_t>(kSpan, behind) + 15) / 16;
  const uint16_t* next_keys = held(after, heads, layer, 0, next.head) + next_first * head_dim;
  const uint16_t* next_values = held(after, heads, layer, 1, next.head) + next_first * head_dim;
  scratch.ahead.begin({keys + span * head_dim, values + span * head_dim, (shared + own) / 16}, {next_keys, next_values, next_groups},
                      head_dim);
  score_keys(scratch, keys + span * head_dim, head_dim, 0, shared, num_queries, kAll);
  for (int index = 0; own > 0 && index < lines.count; index++) {
    const uint16_t* from = keys + fork * head_dim;
    if (lines.line[index] >= 0) {
      copy_line(scratch.line_keys, keys, pass, segment, lines.line[index], fork, fork + own, head_dim);
      from = scratch.line_keys.data();
    }
    score_keys(scratch, from, head_dim, shared, own, num_queries, lines.member[index]);
  }
  float* tops = result + kQueries * head_dim;
  for (int64_t query = 0; query < num_queries; query++)
    weigh(scratch.scores[query], scratch.weights[query], span, shared + own, position[query], scale, tops + query, tops + kQueries + query);
  for (int64_t column = 0; column < head_dim; column += WeightedValues::kWidth) {
    WeightedValues sums(result, head_dim, num_queries, column);
    sums.add(scratch.ahead, scratch.weights[0], kSpan + kStep, values + span * head_dim, shared);
    for (int index = 0; own > 0 && index < lines.count; index++) {
      const uint16_t* from = values + fork * head_dim;
      if (lines.line[index] >= 0) {
        if (column == 0 || lines.count > 1)
          copy_line(scratch.line_values, values, pass, segment, lines.line[index], fork, fork + own, head_dim);
        from = scratch.line_values.data();
      }
      for (int64_t key = 0; key < own; key += kBlock) {
        lay_out_weights(scratch, shared + key, num_queries, lines.member[index]);
        sums.add(scratch.ahead, scratch.member_weights[0], kBlock, from + key * head_dim, kBlock);
      }
    }
    sums.put();
  }
}

// The spans of the queries of an item, put together in order, as columns of their rows; `results` are those of its items.
static void combine(const float* results, int64_t stride, const Item& item, const Heads& heads, const Rows& to) {
  const int64_t dim = heads.head_dim;
  for (int64_t query = 0; query < item.num_queries; query++) {
    const int64_t row = item.segment->start + (item.first_query + query) / heads.group();
    const int64_t column = (item.head * heads.group() + (item.first_query + query) % heads.group()) * dim;
    const auto top_of = [&](int64_t span) { return results[span * stride + kQueries * dim + query]; };
    float top = top_of(0);
    for (int64_t span = 1; span < item.num_spans; span++) top = top_of(span) > top || top_of(span) != top_of(span) ? top_of(span) : top;
    alignas(64) float sums[kMostDim] = {};
    float total = 0;
    for (int64_t span = 0; span < item.num_spans; span++) {
      if (top_of(span) == -__builtin_inff()) continue;
      const float share = item.num_spans == 1 ? 1.0f : exp2(all(top_of(span) - top))[0];
      const float* from = results + span * stride;
      total += share * from[kQueries * dim + kQueries + query];
      for (int64_t part = 0; part < dim; part += kLanes)
        store(sums + part, load(sums + part) + load(from + query * dim + part) * share);
    }
    for (int64_t part = 0; part < dim; part += kLanes)
      to_bfloat16(to.at(row, column + part / kStep * kStep) + part % kStep, load(sums + part) * (1.0f / total));
  }
}
