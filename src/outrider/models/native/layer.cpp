// One decoder layer, and the head, for a flat pass of rows: what `models/layers` does with PyTorch, with few large steps
// instead of many small ones. Called from Python through ctypes; PyTorch's own OpenMP threads do the work.
//
// It knows weights, rows and the layout of `cache/kv`; it knows no tokens, requests or files. Invariant: a row's numbers
// depend on that row and on the keys of its own path, bit for bit, whatever shares the pass and however many threads run.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>

#include "attention.h"
#include "race.h"
#ifdef __AMX_INT8__
#include "fixed.h"
#else
#include "quantised.h"
#endif

struct Layer {
  const float *attention_norm, *mlp_norm;  // [hidden size]
  const float *query_norm, *key_norm;      // [head dim] or null
  Matrix query, key, value, output, gate, up, down;
  int64_t hidden_size, intermediate_size, num_heads, num_kv_heads, head_dim;
  double norm_eps;
};

namespace {

// One panel of a matrix for a group of rows.
void multiply_panel(TileShapes& shapes, const Matrix& matrix, const Rows& rows, int64_t panel, Tile& tile) {
  if (matrix.kind == kBfloat16) {
    const uint16_t* packed = reinterpret_cast<const uint16_t*>(matrix.packed) + panel * matrix.steps() * kStepSize;
    multiply(shapes, rows, packed, matrix.steps(), tile);
  } else {
    multiply_quantised(shapes, matrix.kind, rows, matrix.packed + panel * 2 * held_bytes(matrix.kind, matrix.in), tile);
  }
}

// The workspace of a pass: each part begins at a page.
struct Workspace {
  int64_t next;

  explicit Workspace(const void* begin) : next(int64_t(reinterpret_cast<intptr_t>(begin))) {}

  template <typename T>
  T* take(int64_t count) {
    const int64_t begin = (next + kPage - 1) / kPage * kPage;
    next = begin + count * int64_t(sizeof(T));
    return reinterpret_cast<T*>(begin);
  }

  // Rows for products with these matrices, without their second form.
  Rows take_rows(int64_t num_rows, int64_t size, std::initializer_list<const Matrix*> readers) {
    Rows rows{nullptr, padded(size), num_rows, Rows::height_for(num_rows), false, {}};
    rows.values = take<uint16_t>(rows.groups() * rows.group_size());
    rows.is_cut = std::any_of(readers.begin(), readers.end(), [](const Matrix* matrix) { return matrix->kind != kBfloat16; });
    return rows;
  }

  // Bytes of a workspace for what was taken, wherever it begins.
  int64_t bytes() const { return next + kPage; }
};

// Most rows that are multiplied at a time: so many stay in the second-level cache beside a panel.
int64_t chunk_of(const Rows& rows) { return std::max<int64_t>(kGroup, (int64_t(1) << 20) / (rows.size * 2) / kGroup * kGroup); }

// The rows in chunks: `take(chunk, its first row)`. Each thread cuts all rows for itself, at `space`; what others have
// written is fetched once.
template <typename Take>
void for_chunks(const Rows& rows, void* space, const Take& take) {
  const int64_t chunk = chunk_of(rows);
  for (int64_t first = 0; first < rows.num_rows; first += chunk) {
    Rows part = rows.from(first, std::min(chunk, rows.num_rows - first));
    Workspace place(space);
    part.take_cut(place);
    part.write_cut();
    take(part, first);
  }
}

// This thread's share of the panels, for all rows of a chunk: `take(panel, first row, those rows)`.
template <typename Take>
void share_panels(int64_t panels, const Rows& rows, const Take& take) {
  const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
  for (int64_t panel = panels * thread / threads; panel < panels * (thread + 1) / threads; panel++)
    for (int64_t first = 0; first < rows.num_rows; first += kGroup)
      take(panel, first, rows.from(first, std::min<int64_t>(kGroup, rows.num_rows - first)));
}

// to[row] (+)= rows * matrix, with the bias; `to` has `stride` numbers a row.
template <bool kAdd>
void product(TileShapes& shapes, const Matrix& matrix, const Rows& rows, float* to, int64_t stride) {
  share_panels(matrix.panels(), rows, [&](int64_t panel, int64_t first, const Rows& part) {
    Tile tile;
    multiply_panel(shapes, matrix, part, panel, tile);
    const int64_t column = panel * kPanel, width = std::min<int64_t>(kPanel, matrix.out - column);
    for (int64_t row = 0; row < part.num_rows; row++) {
      float *into = to + (first + row) * stride + column, *from = tile.values[row];
      if (matrix.bias)
        for (int64_t index = 0; index < kPanel; index += kLanes)
          store(from + index, load(from + index) + load(matrix.bias + column + index));
      if (width == kPanel)
        for (int64_t index = 0; index < kPanel; index += kLanes)
          store(into + index, kAdd ? load(into + index) + load(from + index) : load(from + index));
      else
        for (int64_t index = 0; index < width; index++) into[index] = kAdd ? into[index] + from[index] : from[index];
    }
  });
}

// The best of each row of rows * matrix, which are not written.
void product_best(TileShapes& shapes, const Matrix& matrix, const Rows& rows, Best* bests) {
  share_panels(matrix.panels(), rows, [&](int64_t panel, int64_t first, const Rows& part) {
    Tile tile;
    multiply_panel(shapes, matrix, part, panel, tile);
    for (int64_t row = 0; row < part.num_rows; row++)
      for (int64_t index = 0; index < kPanel; index += kLanes) {
        const int64_t column = panel * kPanel + index;
        Floats values = load(tile.values[row] + index);
        if (matrix.bias) values += load(matrix.bias + column);
        bests[first + row].take(values, column, matrix.out - column);
      }
  });
}

// to = silu(rows * gate) * (rows * up), as bfloat16, from row `begin` on.
void gated_product(TileShapes& shapes, const Matrix& gate, const Matrix& up, const Rows& rows, const Rows& to, int64_t begin) {
  share_panels(gate.panels(), rows, [&](int64_t panel, int64_t first, const Rows& part) {
    Tile one, other;
    multiply_panel(shapes, gate, part, panel, one);
    multiply_panel(shapes, up, part, panel, other);
    for (int64_t row = 0; row < part.num_rows; row++) {
      uint16_t* into = to.at(begin + first + row, panel * kPanel);
      for (int64_t index = 0; index < kPanel; index += kLanes) {
        const int64_t column = panel * kPanel + index;
        Floats left = load(one.values[row] + index), right = load(other.values[row] + index);
        if (gate.bias) left += load(gate.bias + column), right += load(up.bias + column);
        to_bfloat16(into + index, silu(left) * right);
      }
    }
  });
}

// Root-mean-square norm of a row as row `place` of `rows`, padded with zeros.
void norm_row(const float* row, const float* weight, int64_t size, double eps, const Rows& rows, int64_t place) {
  Floats squares = {};
  int64_t index = 0;
  for (; index + kLanes <= size; index += kLanes) squares += load(row + index) * load(row + index);
  float total = sum(squares);
  for (int64_t rest = index; rest < size; rest++) total += row[rest] * row[rest];
  const float scale = 1.0f / std::sqrt(total / float(size) + float(eps));
  for (int64_t step = 0; step < rows.size; step += kStep) {
    uint16_t* to = rows.at(place, step);
    for (int64_t part = 0; part < kStep; part += kLanes) {
      const int64_t first = step + part;
      if (first + kLanes <= size) {
        to_bfloat16(to + part, load(row + first) * scale * load(weight + first));
      } else {
        for (int64_t rest = first; rest < first + kLanes; rest++)
          to[rest - step] = rest < size ? to_bfloat16(row[rest] * scale * weight[rest]) : uint16_t(0);
      }
    }
  }
}

// Norm (where the family has one) and rotation of one head's pairs, as bfloat16.
void turn_head(const float* head, const float* weight, const float* rotation, int64_t size, double eps, uint16_t* to) {
  float scale = 1.0f;
  if (weight) {
    Floats squares = {};
    for (int64_t index = 0; index < size; index += kLanes) squares += load(head + index) * load(head + index);
    scale = 1.0f / std::sqrt(sum(squares) / float(size) + float(eps));
  }
  const Ints other = {1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14};
  const Ints even = {0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14}, odd = even + 1;
  const Floats sign = {-1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1};
  for (int64_t index = 0; index < size; index += kLanes) {
    const Floats numbers = weight ? load(head + index) * scale * load(weight + index) : load(head + index);
    const Floats turn = load(rotation + index);  // cosine and sine of each pair
    const Floats crossed = __builtin_shuffle(numbers, other) * (__builtin_shuffle(turn, odd) * sign);
    to_bfloat16(to + index, fused(numbers, __builtin_shuffle(turn, even), crossed));
  }
}

// Bytes of a thread for the second form of a chunk of rows.
int64_t cut_bytes(const Rows& rows) {
  Workspace space(nullptr);
  rows.from(0, std::min(chunk_of(rows), rows.num_rows)).take_cut(space);
  return whole_pages(space.bytes());
}

struct Buffers {
  Rows normed, attended, gated;
  uint8_t* cuts;  // [threads][cut size]
  int64_t cut_size;
  uint16_t* queries;
  float *qkv, *results;
};

Buffers lay_out(Workspace& space, const Layer& layer, const Pass& pass, int64_t num_items) {
  const int64_t num_rows = pass.num_rows;
  Buffers buffers;
  buffers.normed = space.take_rows(num_rows, layer.hidden_size, {&layer.query, &layer.key, &layer.value, &layer.gate, &layer.up});
  buffers.attended = space.take_rows(num_rows, layer.num_heads * layer.head_dim, {&layer.output});
  buffers.gated = space.take_rows(num_rows, layer.intermediate_size, {&layer.down});
  buffers.cut_size = std::max({cut_bytes(buffers.normed), cut_bytes(buffers.attended), cut_bytes(buffers.gated)});
  buffers.cuts = space.take<uint8_t>(pass.num_threads * buffers.cut_size);
  buffers.queries = space.take<uint16_t>(num_rows * layer.num_heads * layer.head_dim);
  buffers.qkv = space.take<float>(num_rows * (layer.num_heads + 2 * layer.num_kv_heads) * layer.head_dim);
  buffers.results = space.take<float>(num_items * kQueries * (layer.head_dim + 2));
  return buffers;
}

Heads heads_of(const Layer& layer) { return {layer.num_heads, layer.num_kv_heads, layer.head_dim}; }

// Rotate queries and keys of a row's head `index`, and copy values: 0 to heads - 1 queries, then keys, then values.
void place_head(const Layer& layer, const Heads& heads, const Pass& pass, const Segment& segment, int64_t number,
                int64_t row, int64_t index, const Buffers& buffers) {
  const int64_t dim = layer.head_dim, place = segment.num_cached + row - segment.start;
  const float* from = buffers.qkv + (row * (layer.num_heads + 2 * layer.num_kv_heads) + index) * dim;
  const float* rotation = pass.rotations + pass.positions[row] * dim;
  if (index < layer.num_heads) {
    turn_head(from, layer.query_norm, rotation, dim, layer.norm_eps, buffers.queries + (row * layer.num_heads + index) * dim);
  } else if (index < layer.num_heads + layer.num_kv_heads) {
    uint16_t* keys = held(segment, heads, number, 0, index - layer.num_heads);
    turn_head(from, layer.key_norm, rotation, dim, layer.norm_eps, keys + place * dim);
  } else {
    uint16_t* values = held(segment, heads, number, 1, index - layer.num_heads - layer.num_kv_heads);
    for (int64_t part = 0; part < dim; part += kLanes) to_bfloat16(values + place * dim + part, load(from + part));
  }
}

// Has the places of the cache that a few rows are about to be written to on their way.
void fetch_places(const Heads& heads, const Segment& segment, int64_t number) {
  for (int64_t head = 0; head < heads.num_kv_heads && segment.num_rows <= kQueries; head++)
    for (int64_t kind = 0; kind < 2; kind++)
      for (int64_t place = 0; place < segment.num_rows * heads.head_dim; place += 32)
        __builtin_prefetch(held(segment, heads, number, kind, head) + segment.num_cached * heads.head_dim + place, 1);
}

// Adds the time since the last call to a part, on one thread and where somebody asks for it.
class Clock {
 public:
  explicit Clock(double* seconds) : seconds_(omp_get_thread_num() == 0 ? seconds : nullptr) {
    if (seconds_) last_ = omp_get_wtime();
  }
  void end(Part part) {
    if (!seconds_) return;
    const double time = omp_get_wtime();
    seconds_[part] += time - last_;
    last_ = time;
  }

 private:
  double* seconds_;
  double last_ = 0;
};

// Adds one layer's two halves; called by all threads of a pass, who have met before and meet at its end.
void add_layer(Scratch& scratch, const Layer& layer, const Pass& pass, const Heads& heads, const Work& work, const Buffers& buffers,
               int64_t number, float* stream) {
  const int64_t rows = pass.num_rows, dim = layer.head_dim, hidden = layer.hidden_size;
  const int64_t result_size = kQueries * (dim + 2), num_heads = layer.num_heads + 2 * layer.num_kv_heads;
  const float scale = float(1.4426950408889634 / std::sqrt(double(dim)));  // exponents are of base 2
  TileShapes& shapes = scratch.shapes;
  const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
  uint8_t* cuts = buffers.cuts + thread * buffers.cut_size;
  Clock clock(pass.part_seconds);
#pragma omp for nowait
  for (int64_t index = 0; index < pass.num_segments; index++) fetch_places(heads, pass.segments[index], number);
#pragma omp for
  for (int64_t row = 0; row < rows; row++)
    norm_row(stream + row * hidden, layer.attention_norm, hidden, layer.norm_eps, buffers.normed, row);
  clock.end(kNorms);
  for_chunks(buffers.normed, cuts, [&](const Rows& chunk, int64_t first) {
    float* to = buffers.qkv + first * num_heads * dim;
    product<false>(shapes, layer.query, chunk, to, num_heads * dim);
    product<false>(shapes, layer.key, chunk, to + layer.query.out, num_heads * dim);
    product<false>(shapes, layer.value, chunk, to + layer.query.out + layer.key.out, num_heads * dim);
  });
#pragma omp barrier
  clock.end(kProjections);
  // heads of rows that follow each other, as in attention: what a core has written, it reads
  const int64_t heads_begin = rows * num_heads * thread / threads, heads_end = rows * num_heads * (thread + 1) / threads;
  for (int64_t index = 0; index < pass.num_segments; index++) {
    const Segment& segment = pass.segments[index];
    const int64_t first = std::max(heads_begin, segment.start * num_heads);
    const int64_t last = std::min(heads_end, (segment.start + segment.num_rows) * num_heads);
    for (int64_t place = first; place < last; place++)
      place_head(layer, heads, pass, segment, number, place / num_heads, place % num_heads, buffers);
  }
#pragma omp barrier
  clock.end(kPlacing);
  const size_t end = work.begin_of(thread + 1, threads);
  for (size_t index = work.begin_of(thread, threads); index < end; index++) {
    const Item &item = work.items[index], &next = work.items[std::min(index + 1, end - 1)];
    float* result = item.num_spans == 1 ? scratch.result : buffers.results + int64_t(index) * result_size;
    attend(scratch, pass, heads, item, next, number, buffers.queries, scale, result);
    if (item.num_spans == 1) combine(result, result_size, item, heads, buffers.attended);
  }
#pragma omp barrier
  if (!work.split.empty()) {
#pragma omp for
    for (size_t index = 0; index < work.split.size(); index++)
      combine(buffers.results + work.split[index] * result_size, result_size, work.items[size_t(work.split[index])], heads, buffers.attended);
  }
  clock.end(kAttending);
  for_chunks(buffers.attended, cuts, [&](const Rows& chunk, int64_t first) {
    product<true>(shapes, layer.output, chunk, stream + first * hidden, hidden);
  });
#pragma omp barrier
  clock.end(kOutput);
#pragma omp for
  for (int64_t row = 0; row < rows; row++)
    norm_row(stream + row * hidden, layer.mlp_norm, hidden, layer.norm_eps, buffers.normed, row);
  clock.end(kNorms);
  for_chunks(buffers.normed, cuts, [&](const Rows& chunk, int64_t first) {
    gated_product(shapes, layer.gate, layer.up, chunk, buffers.gated, first);
  });
#pragma omp barrier
  clock.end(kGated);
  for_chunks(buffers.gated, cuts, [&](const Rows& chunk, int64_t first) {
    product<true>(shapes, layer.down, chunk, stream + first * hidden, hidden);
  });
#pragma omp barrier
  clock.end(kDown);
}

}  // namespace

extern "C" {

int outrider_enable() { return enable_tiles(); }

// Bytes of workspace that a pass over this layer needs.
int64_t outrider_workspace(const Layer* layer, const Pass* pass) {
  Workspace space(nullptr);
  lay_out(space, *layer, *pass, int64_t(work_of(*pass, heads_of(*layer)).items.size()));
  return space.bytes();
}

// Adds layers [first, end) to the residual stream [rows, hidden size], and writes their keys and values to the cache; the
// layers have the same sizes.
void outrider_layers(const Layer* layers, const Pass* pass, int64_t first, int64_t end, float* stream) {
  const Heads heads = heads_of(*layers);
  const Work work = work_of(*pass, heads);
  Workspace space(pass->workspace);
  const Buffers buffers = lay_out(space, *layers, *pass, int64_t(work.items.size()));
#pragma omp parallel num_threads(int(pass->num_threads))
  {
    Scratch scratch;
    for (int64_t number = first; number < end; number++) add_layer(scratch, layers[number], *pass, heads, work, buffers, number, stream);
  }
}

// Bytes of workspace that the head needs for so many rows.
int64_t outrider_head_workspace(const Matrix* head, int64_t num_rows, int64_t num_threads) {
  Workspace space(nullptr);
  const Rows fed = space.take_rows(num_rows, head->in, {head});
  space.take<uint8_t>(num_threads * cut_bytes(fed));
  space.take<Best>(num_threads * num_rows);
  return space.bytes();
}

// logits[index] = head(norm(stream[rows[index]])), float32; without logits, best[index] = the place of the largest of them,
// see `place_of`.
void outrider_head(const Matrix* head, const float* norm, double eps, const float* stream, const int64_t* rows,
                   int64_t num_rows, int64_t num_threads, uint8_t* workspace, float* logits, int64_t* best) {
  Workspace space(workspace);
  const Rows fed = space.take_rows(num_rows, head->in, {head});
  const int64_t cut_size = cut_bytes(fed);
  uint8_t* cuts = space.take<uint8_t>(num_threads * cut_size);
  Best* bests = space.take<Best>(num_threads * num_rows);
  std::fill(bests, bests + num_threads * num_rows, Best());
#pragma omp parallel num_threads(int(num_threads))
  {
    TileShapes shapes;
#pragma omp for
    for (int64_t row = 0; row < num_rows; row++) norm_row(stream + rows[row] * head->in, norm, head->in, eps, fed, row);
    for_chunks(fed, cuts + omp_get_thread_num() * cut_size, [&](const Rows& chunk, int64_t first) {
      if (logits) product<false>(shapes, *head, chunk, logits + first * head->out, head->out);
      else product_best(shapes, *head, chunk, bests + omp_get_thread_num() * num_rows + first);
    });
  }
  for (int64_t row = 0; row < num_rows && best; row++) best[row] = place_of(bests + row, num_rows, num_threads);
}

// The tokens of a row of a law that can still win an exponential race: none arrives before u / p, as u <= -log(1 - u), so
// those for which that is no later than the arrival of one of them. u is cut to 24 bits, which makes it no larger. Gives
// their number; `places` takes at most `room` of them, in order.
int64_t outrider_contenders(const float* law, int64_t size, int64_t state, float* earliest, int64_t* places, int64_t room) {
  constexpr int64_t kBlock = kRaceBlock;
  float best = kNever;
  int64_t leading = -1;
  for (int64_t first = 0; first < size; first += kBlock) {
    const int64_t end = std::min(first + kBlock, size);
    float least = kNever;
#pragma omp simd reduction(min : least)
    for (int64_t token = first; token < end; token++) {
      const float uniform = float(int32_t(noise_bits(token, state) >> 40)) * 0x1p-24f;
      const float time = law[token] > 0 ? uniform / law[token] : kNever;
      earliest[token] = time;
      least = time < least ? time : least;
    }
    if (least < best) best = least, leading = first;
  }
  if (leading < 0) return 0;
  const float* found = std::find(earliest + leading, earliest + size, best);
  const float limit = float(exponential(found - earliest, state) / double(law[found - earliest]) * (1 + 1e-6));
  int64_t count = 0;
  for (int64_t first = 0; first < size; first += kBlock) {
    const int64_t end = std::min(first + kBlock, size);
    bool any = false;
#pragma omp simd reduction(| : any)
    for (int64_t token = first; token < end; token++) any |= earliest[token] <= limit;
    for (int64_t token = first; any && token < end && count < room; token++)
      if (earliest[token] <= limit) places[count++] = token;
  }
  return count;
}

// winners[row] = `race_row` of each of the rows [size], on so many threads.
void outrider_race(const float* const* rows, const float* scales, const Cuts* cuts, const int64_t* states, int64_t num_rows,
                   int64_t size, int64_t num_threads, int64_t* winners) {
#pragma omp parallel for schedule(dynamic) num_threads(int(std::min(num_threads, num_rows)))
  for (int64_t row = 0; row < num_rows; row++) winners[row] = race_row(rows[row], scales[row], cuts[row], size, states[row]);
}

// Bytes of a matrix once packed; -1 for a type of blocks that is not known here, or more inputs than products can sum.
int64_t outrider_packed_bytes(int64_t ggml_type, int64_t out, int64_t in) {
  const int64_t kind = kind_of(ggml_type);
  if (kind < 0 || in % block_inputs(kind) || in > kMostInputs) return -1;
  return (out + kPanel - 1) / kPanel * 2 * held_bytes(held_kind(kind), in);
}

// Packs rows of blocks [out, row bytes] and gives the kind.
int64_t outrider_pack(int64_t ggml_type, const uint8_t* blocks, int64_t out, int64_t in, int64_t num_threads, uint8_t* packed) {
  const int64_t kind = kind_of(ggml_type), tiles = (out + kPanel - 1) / kPanel * 2;
  const int64_t size = held_bytes(held_kind(kind), in);
  const int64_t row_bytes = in / block_inputs(kind) * block_bytes(ggml_type);
#pragma omp parallel for num_threads(int(num_threads))
  for (int64_t tile = 0; tile < tiles; tile++) {
    const int64_t first = tile * kTile, count = std::max<int64_t>(0, std::min<int64_t>(kTile, out - first));
    hold_tile(ggml_type, blocks + first * row_bytes, count, in, packed + tile * size);
  }
  return held_kind(kind);
}
}
