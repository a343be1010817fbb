// What a pass is: rows of segments, each behind a slot of the cache; and the work of its attention, in items that threads share.
//
// An item is up to 16 queries (row by row, all query heads of one key-value head) against one span of keys.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

constexpr int kSpan = 512;    // keys of an item
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
  int64_t head, first_query, num_queries, span, num_spans;
};

struct Work {
  std::vector<Item> items;       // those of the same queries one behind the other, by spans
  std::vector<int64_t> split;    // the first items of queries that have more than one
  std::vector<int64_t> ends{0};  // roughly what all items before each cost, and what all cost

  void add(const Item& item, int64_t num_keys) {
    items.push_back(item);
    ends.push_back(ends.back() + (kFixedKeys + num_keys) * (kFixedQueries + item.num_queries));
  }
  // Where a thread's share begins. Shares lie in one piece, as cores that read a slot at the same time hold each other up.
  size_t begin_of(int64_t thread, int64_t threads) const {
    return size_t(std::lower_bound(ends.begin(), ends.end(), ends.back() * thread / threads) - ends.begin());
  }

 private:
  static constexpr int64_t kFixedKeys = 32, kFixedQueries = 16;  // what an item costs beside its own, in keys and in queries
};

// Queries of a segment are numbered row by row, then by their place in the group.
static Work work_of(const Pass& pass, const Heads& heads) {
  Work work;
  for (int64_t index = 0; index < pass.num_segments; index++) {
    const Segment& segment = pass.segments[index];
    const int64_t queries = segment.num_rows * heads.group();
    for (int64_t head = 0; head < heads.num_kv_heads; head++) {
      for (int64_t first = 0; first < queries; first += kQueries) {
        const int64_t count = std::min<int64_t>(kQueries, queries - first);
        int64_t last = 0;
        for (int64_t row = first / heads.group(); row <= (first + count - 1) / heads.group(); row++)
          last = std::max(last, pass.positions[segment.start + row]);
        const int64_t num_spans = last / kSpan + 1;
        if (num_spans > 1) work.split.push_back(int64_t(work.items.size()));
        for (int64_t span = 0; span < num_spans; span++)
          work.add({&segment, head, first, count, span, num_spans}, std::min<int64_t>(kSpan, last + 1 - span * kSpan));
      }
    }
  }
  return work;
}
