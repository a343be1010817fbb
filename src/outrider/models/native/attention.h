// Attention of the rows of a pass over the slots of a cache, in bfloat16 with float32 sums.
//
// Work is cut into items: up to 16 queries (row by row, all query heads of one key-value head) against one span of keys.
// A span is 512 positions, counted from the beginning of the text; its result is a maximum, a sum and a weighted sum of
// values, and `combine` puts the spans of a query together in order.
//
// Invariant: what a query gets depends on its own keys in the order of its own positions only. Spans and blocks begin at
// fixed positions, keys that a query does not see add exact zeros, and the nodes of a tree read copies of their own
// path's keys, in its order.
#pragma once

#include <algorithm>
#include <vector>

#include "product.h"

constexpr int kSpan = 512;    // keys of an item
constexpr int kBlock = 32;    // keys of one product with the values
constexpr int kQueries = 16;  // queries of an item

struct Segment {
  uint16_t* slot;       // [layers, 2, kv heads, capacity, head dim]
  int64_t capacity;     // rows of the slot
  int64_t start;        // first row of the pass
  int64_t num_rows;     // rows of the pass
  int64_t num_cached;   // rows of the slot before the pass
  int64_t num_chain;    // rows of the pass that follow each other; the others are the nodes of a tree
};

struct Pass {
  int64_t num_rows, num_segments, num_threads;
  const Segment* segments;
  const float* rotations;       // [positions, head dim / 2, 2] cosine and sine
  const int64_t* positions;     // [rows] index of a row in its own path
  const int32_t* lines;         // [rows] the line that holds a node, -1 for rows of a chain
  const int32_t* line_starts;   // [lines + 1] where a line's nodes begin in `line_nodes`
  const int32_t* line_nodes;    // nodes of all lines, root to leaf
  uint8_t* workspace;
  double* part_seconds;         // [kParts] what the parts of a layer take is added to them, or null
};

// The parts of a layer, each with the threads' meeting at its end.
enum Part { kNorms, kProjections, kPlacing, kAttending, kOutput, kGated, kDown, kParts };

struct Heads {
  int64_t num_heads, num_kv_heads, head_dim;

  int64_t group() const { return num_heads / num_kv_heads; }
};

// Where the keys or the values of one head lie.
static inline uint16_t* held(const Segment& segment, const Heads& heads, int64_t layer, int64_t which, int64_t head) {
  return segment.slot + ((layer * 2 + which) * heads.num_kv_heads + head) * segment.capacity * heads.head_dim;
}

struct Item {
  const Segment* segment;
  int64_t head, first_query, num_queries, span;
};

// The items of the same queries: one for each span.
struct ItemGroup {
  int64_t first_item, num_spans;
};

struct Work {
  std::vector<Item> items;
  std::vector<ItemGroup> groups;
};

// Queries of a segment are numbered row by row, then by their place in the group.
static Work work_of(const Pass& pass, const Heads& heads) {
  Work work;
  for (int64_t index = 0; index < pass.num_segments; index++) {
    const Segment& segment = pass.segments[index];
    const int64_t queries = segment.num_rows * heads.group();
    for (int64_t first = 0; first < queries; first += kQueries) {
      const int64_t count = queries - first < kQueries ? queries - first : kQueries;
      int64_t last = 0;
      for (int64_t row = first / heads.group(); row <= (first + count - 1) / heads.group(); row++) {
        const int64_t position = pass.positions[segment.start + row];
        last = position > last ? position : last;
      }
      for (int64_t head = 0; head < heads.num_kv_heads; head++) {
        work.groups.push_back({int64_t(work.items.size()), last / kSpan + 1});
        for (int64_t span = 0; span <= last / kSpan; span++) work.items.push_back({&segment, head, first, count, span});
      }
    }
  }
  return work;
}

// Fetches what the next item will read, a few cache lines at a time: as many at once as a core can wait for would hold up the
// work on this one.
class Ahead {
 public:
  // so many numbers each of keys and of values, in so many calls of `fetch`
  void begin(const uint16_t* keys, const uint16_t* values, int64_t count, int64_t calls) {
    at_ = keys, end_ = keys + count, then_ = values, then_end_ = values + count;
    lines_ = (2 * count / kLineNumbers + calls - 1) / calls;
  }
  void fetch() {
    for (int64_t line = 0; line < lines_; line++, at_ += kLineNumbers) {
      if (at_ >= end_) {
        if (then_ == then_end_) return;
        at_ = then_, end_ = then_ = then_end_;
      }
      __builtin_prefetch(at_, 0, 2);
    }
  }

 private:
  static constexpr int64_t kLineNumbers = 32;
  const uint16_t *at_, *end_, *then_, *then_end_;
  int64_t lines_ = 0;
};

// A thread's buffers for one item.
struct Scratch {
  alignas(64) float scores[kQueries][kSpan];                  // then their exponentials
  alignas(64) uint16_t queries[8 * kStep * kQueries];          // [head dim / 32][pair][query][2]
  alignas(64) uint16_t weights[kQueries * kBlock] = {};        // [query][key of the block]
  alignas(64) uint16_t values[kBlock * 256];                   // [head dim / 16][pair of keys][16][2]
  alignas(64) float sums[kQueries][256];                       // weighted values
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

// Turns a square of 16 x 16 numbers on its diagonal.
static inline void transpose(const float (*from)[16], float (*to)[16]) {
#ifdef __AVX512F__
  __m512 rows[16], pairs[16];
  for (int row = 0; row < 16; row++) rows[row] = _mm512_load_ps(from[row]);
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
  for (int row = 0; row < 8; row++) {
    _mm512_store_ps(to[row], _mm512_shuffle_f32x4(pairs[row], pairs[row + 8], 0x88));
    _mm512_store_ps(to[row + 8], _mm512_shuffle_f32x4(pairs[row], pairs[row + 8], 0xdd));
  }
#else
  for (int row = 0; row < 16; row++)
    for (int column = 0; column < 16; column++) to[column][row] = from[row][column];
#endif
}

// Scores of `count` keys (a multiple of 16) from `first` on, for the queries of `member` (a bit each).
static void score_keys(Scratch& scratch, const uint16_t* keys, int64_t head_dim, int64_t first, int64_t count, int64_t num_queries,
                       uint32_t member) {
  alignas(64) float products[16][16], turned[16][16];
  for (int64_t key = 0; key < count; key += 16) {
    scratch.ahead.fetch();
    multiply_keys(scratch.queries, keys + key * head_dim, head_dim, products);
    transpose(products, turned);
    for (int64_t query = 0; query < num_queries; query++)
      if (member >> query & 1) store(scratch.scores[query] + first + key, load(turned[query]));
  }
}

#ifdef __AMX_BF16__
// Two rows of 16 numbers become pairs: [16][2].
static inline void interleave(uint16_t* to, const uint16_t* first, const uint16_t* second) {
  const auto row = [](const uint16_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); };
  const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(row(first)), row(second), 1);
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4,
                                         19, 3, 18, 2, 17, 1, 16, 0);
  _mm512_storeu_si512(to, _mm512_permutexvar_epi16(order, both));
}
#endif

// sums += weights of a block's 32 keys times their values.
static inline void add_values(Scratch& scratch, const uint16_t* values, int64_t head_dim, int64_t num_queries) {
#ifdef __AMX_BF16__
  for (int64_t part = 0; part < head_dim / 16; part++) {
    scratch.ahead.fetch();
    for (int pair = 0; pair < 16; pair++)
      interleave(scratch.values + (part * 16 + pair) * 32, values + 2 * pair * head_dim + part * 16,
                 values + (2 * pair + 1) * head_dim + part * 16);
  }
  _tile_loadd(4, scratch.weights, 64);
  for (int64_t part = 0; part < head_dim / 16; part++) {
    _tile_loadd(0, scratch.sums[0] + part * 16, sizeof scratch.sums[0]);
    _tile_loadd(6, scratch.values + part * 512, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_stored(0, scratch.sums[0] + part * 16, sizeof scratch.sums[0]);
  }
  (void)num_queries;
#else
  for (int64_t part = 0; part < head_dim / 16; part++) scratch.ahead.fetch();
  for (int64_t query = 0; query < num_queries; query++)
    for (int key = 0; key < kBlock; key++) {
      const float weight = from_bits(scratch.weights[query * kBlock + key]);
      if (weight == 0) continue;
      for (int64_t part = 0; part < head_dim; part += 16) {
        float* total = scratch.sums[query] + part;
        store(total, load(total) + from_bfloat16(values + key * head_dim + part) * weight);
      }
    }
#endif
}

// The queries of an item, laid out as the weights of a product.
static void lay_out_queries(Scratch& scratch, const uint16_t* queries, const Item& item, const Heads& heads) {
  const int64_t group = heads.group(), pairs = heads.head_dim / 2;
  memset(scratch.queries, 0, size_t(pairs) * 2 * kQueries * 2);
  for (int64_t query = 0; query < item.num_queries; query++) {
    const int64_t row = (item.first_query + query) / group, place = (item.first_query + query) % group;
    const uint16_t* from =
        queries + ((item.segment->start + row) * heads.num_heads + item.head * group + place) * heads.head_dim;
    for (int64_t pair = 0; pair < pairs; pair++) memcpy(scratch.queries + (pair * kQueries + query) * 2, from + pair * 2, 4);
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
// largest score and the sum of the weights. Keys behind `position` weigh nothing.
static void weigh(float* scores, int64_t first, int64_t count, int64_t position, float scale, float* top, float* total) {
  const Ints lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const Floats nothing = all(-__builtin_inff());
  Floats largest = nothing;
  for (int64_t key = 0; key < count; key += kLanes) {
    const Floats score = select(lane + int32_t(first + key) <= int32_t(position), load(scores + key) * scale, nothing);
    store(scores + key, score);
    largest = select((Ints)(score > largest) | (Ints)(score != score), score, largest);
  }
  *top = largest[0];
  for (int index = 1; index < kLanes; index++)
    if (largest[index] > *top || largest[index] != largest[index]) *top = largest[index];
  const float reference = *top == -__builtin_inff() ? 0.0f : *top;  // a query that sees nothing here weighs nothing
  Floats sums = {};
  for (int64_t key = 0; key < count; key += kLanes) {
    const Floats weight = exp2(load(scores + key) - reference);
    store(scores + key, weight);
    sums += weight;
  }
  *total = sum(sums);
}

// The weights of a block of 32 keys as rows of a product; those of queries that are no members stay out.
static inline void lay_out_weights(Scratch& scratch, int64_t key, int64_t num_queries, uint32_t member) {
  for (int64_t query = 0; query < num_queries; query++) {
    uint16_t* to = scratch.weights + query * kBlock;
    if (member >> query & 1) {
      to_bfloat16(to, load(scratch.scores[query] + key));
      to_bfloat16(to + kLanes, load(scratch.scores[query] + key + kLanes));
    } else {
      memset(to, 0, kBlock * 2);
    }
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
  const int64_t next_span = next.span * kSpan, next_count = std::min<int64_t>(kSpan, after.num_cached + after.num_rows - next_span);
  const int64_t calls = (shared + own) / 16 + num_queries + (shared + own) / kBlock * (head_dim / 16);
  scratch.ahead.begin(held(after, heads, layer, 0, next.head) + next_span * head_dim,
                      held(after, heads, layer, 1, next.head) + next_span * head_dim, &next == &item ? 0 : next_count * head_dim, calls);
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
  for (int64_t query = 0; query < num_queries; query++) {
    weigh(scratch.scores[query], span, shared + own, position[query], scale, tops + query, tops + kQueries + query);
    memset(scratch.sums[query], 0, size_t(head_dim) * 4);
    scratch.ahead.fetch();
  }
  for (int64_t key = 0; key < shared; key += kBlock) {
    lay_out_weights(scratch, key, num_queries, kAll);
    add_values(scratch, values + (span + key) * head_dim, head_dim, num_queries);
  }
  for (int index = 0; own > 0 && index < lines.count; index++) {
    const uint16_t* from = values + fork * head_dim;
    if (lines.line[index] >= 0) {
      copy_line(scratch.line_values, values, pass, segment, lines.line[index], fork, fork + own, head_dim);
      from = scratch.line_values.data();
    }
    for (int64_t key = 0; key < own; key += kBlock) {
      lay_out_weights(scratch, shared + key, num_queries, lines.member[index]);
      add_values(scratch, from + key * head_dim, head_dim, num_queries);
    }
  }
  for (int64_t query = 0; query < num_queries; query++)
    memcpy(result + query * head_dim, scratch.sums[query], size_t(head_dim) * 4);
}

// The spans of one query, put together in order, as columns of a row.
static void combine(const float* first, int64_t num_spans, int64_t stride, int64_t query, int64_t head_dim,
                    const Rows& to, int64_t row, int64_t column) {
  const auto top_of = [&](int64_t span) { return first[span * stride + kQueries * head_dim + query]; };
  float top = top_of(0);
  for (int64_t span = 1; span < num_spans; span++) top = top_of(span) > top || top_of(span) != top_of(span) ? top_of(span) : top;
  alignas(64) float sums[256] = {};
  float total = 0;
  for (int64_t span = 0; span < num_spans; span++) {
    if (top_of(span) == -__builtin_inff()) continue;
    const float share = num_spans == 1 ? 1.0f : exp2(all(top_of(span) - top))[0];
    const float* from = first + span * stride;
    total += share * from[kQueries * head_dim + kQueries + query];
    for (int64_t part = 0; part < head_dim; part += kLanes)
      store(sums + part, load(sums + part) + load(from + query * head_dim + part) * share);
  }
  for (int64_t part = 0; part < head_dim; part += kLanes)
    to_bfloat16(to.at(row, column + part / kStep * kStep) + part % kStep, load(sums + part) * (1.0f / total));
}
