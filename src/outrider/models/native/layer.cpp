// One decoder layer, and the head, for a flat pass of rows: what `models/layers` does with PyTorch, with few large steps
// instead of many small ones. Called from Python through ctypes; PyTorch's own OpenMP threads do the work.
//
// It knows weights, rows and the layout of `cache/kv`; it knows no tokens, requests or files. Invariant: a row's numbers
// depend on that row and on the keys of its own path, bit for bit, whatever shares the pass and however many threads run.
#include <omp.h>

#include <algorithm>
#include <cmath>

#include "attention.h"

struct Layer {
  const float *attention_norm, *mlp_norm;  // [hidden size]
  const float *query_norm, *key_norm;      // [head dim] or null
  Matrix qkv, output, gate_up, down;
  int64_t hidden_size, intermediate_size, num_heads, num_kv_heads, head_dim;
  double norm_eps;
};

namespace {

// Panels of `matrix` for all rows, shared out over the threads; `finish(panel, first row, rows, tile)` takes each result.
template <typename Finish>
void product(TileShapes& shapes, const Matrix& matrix, const uint16_t* rows, int64_t num_rows, const Finish& finish) {
  const int64_t stride = padded(matrix.in), panels = matrix.panels(), size = matrix.steps() * kStepSize;
  const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
  // as many rows at a time as stay in the second-level cache beside the panel
  const int64_t chunk = std::max<int64_t>(kGroup, (int64_t(1) << 20) / (stride * 2) / kGroup * kGroup);
  Tile tile;
  for (int64_t begin = 0; begin < num_rows; begin += chunk)
    for (int64_t panel = panels * thread / threads; panel < panels * (thread + 1) / threads; panel++)
      for (int64_t first = begin; first < std::min(num_rows, begin + chunk); first += kGroup) {
        const int count = int(std::min<int64_t>(kGroup, num_rows - first));
        multiply(shapes, rows + first * stride, stride, count, matrix.packed + panel * size, matrix.steps(), tile);
        finish(panel, first, count, tile);
      }
}

// to[row] (+)= tile, with the bias; the panel's last numbers may be padding.
template <bool kAdd>
void put(const Matrix& matrix, int64_t panel, int64_t first, int count, const Tile& tile, float* to) {
  const int64_t column = panel * kPanel, width = std::min<int64_t>(kPanel, matrix.out - column);
  for (int row = 0; row < count; row++) {
    float* into = to + (first + row) * matrix.out + column;
    for (int64_t index = 0; index < width; index++) {
      const float value = tile.values[row][index] + (matrix.bias ? matrix.bias[column + index] : 0.0f);
      into[index] = kAdd ? into[index] + value : value;
    }
  }
}

// Root-mean-square norm of rows [first, last) as bfloat16, padded with zeros.
void norm_row(const float* row, const float* weight, int64_t size, double eps, uint16_t* to) {
  Floats squares = {};
  int64_t index = 0;
  for (; index + kLanes <= size; index += kLanes) squares += load(row + index) * load(row + index);
  float total = sum(squares);
  for (int64_t rest = index; rest < size; rest++) total += row[rest] * row[rest];
  const float scale = 1.0f / std::sqrt(total / float(size) + float(eps));
  for (index = 0; index + kLanes <= size; index += kLanes)
    to_bfloat16(to + index, load(row + index) * scale * load(weight + index));
  for (; index < size; index++) to[index] = to_bfloat16(row[index] * scale * weight[index]);
  for (; index < padded(size); index++) to[index] = 0;
}

// Norm (where the family has one) and rotation of one head's pairs, as bfloat16.
void turn_head(const float* head, const float* weight, const float* rotation, int64_t size, double eps, uint16_t* to) {
  float scale = 1.0f;
  if (weight) {
    Floats squares = {};
    for (int64_t index = 0; index < size; index += kLanes) squares += load(head + index) * load(head + index);
    scale = 1.0f / std::sqrt(sum(squares) / float(size) + float(eps));
  }
  for (int64_t pair = 0; pair < size; pair += 2) {
    const float one = weight ? head[pair] * scale * weight[pair] : head[pair];
    const float other = weight ? head[pair + 1] * scale * weight[pair + 1] : head[pair + 1];
    to[pair] = to_bfloat16(one * rotation[pair] - other * rotation[pair + 1]);
    to[pair + 1] = to_bfloat16(one * rotation[pair + 1] + other * rotation[pair]);
  }
}

// The workspace of a pass: each part begins at a cache line.
struct Workspace {
  uint8_t* next;
  template <typename T>
  T* take(int64_t count) {
    T* taken = reinterpret_cast<T*>(next);
    next += (count * int64_t(sizeof(T)) + 63) / 64 * 64;
    return taken;
  }
};

struct Buffers {
  uint16_t *normed, *queries, *attended, *gated;
  float *qkv, *results;
};

Buffers lay_out(Workspace& space, const Layer& layer, int64_t rows, int64_t num_items) {
  Buffers buffers;
  buffers.normed = space.take<uint16_t>(rows * padded(layer.hidden_size));
  buffers.queries = space.take<uint16_t>(rows * layer.num_heads * layer.head_dim);
  buffers.attended = space.take<uint16_t>(rows * layer.num_heads * layer.head_dim);
  buffers.gated = space.take<uint16_t>(rows * padded(layer.intermediate_size));
  buffers.qkv = space.take<float>(rows * layer.qkv.out);
  buffers.results = space.take<float>(num_items * kQueries * (layer.head_dim + 2));
  return buffers;
}

// Rotate queries and keys of a row's head `index`, and copy values: 0 to heads - 1 queries, then keys, then values.
void place_head(const Layer& layer, const Heads& heads, const Pass& pass, const Segment& segment, int64_t number,
                int64_t row, int64_t index, const Buffers& buffers) {
  const int64_t dim = layer.head_dim, place = segment.num_cached + row - segment.start;
  const float* from = buffers.qkv + row * layer.qkv.out + index * dim;
  const float* rotation = pass.rotations + row * dim;
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

void gate(const Layer& layer, int64_t panel, int64_t first, int count, const Tile& tile, uint16_t* to) {
  const int64_t half = kPanel / 2, column = panel * half, width = std::min(half, layer.intermediate_size - column);
  const float* bias = layer.gate_up.bias ? layer.gate_up.bias + panel * kPanel : nullptr;
  for (int row = 0; row < count; row++) {
    Floats one = load(tile.values[row]), other = load(tile.values[row] + half);
    if (bias) one += load(bias), other += load(bias + half);
    uint16_t* into = to + (first + row) * padded(layer.intermediate_size) + column;
    alignas(64) uint16_t result[kLanes];
    to_bfloat16(result, silu(one) * other);
    memcpy(into, result, size_t(width) * 2);
  }
}

}  // namespace

extern "C" {

int outrider_enable() { return enable_tiles(); }

// Bytes of workspace that a pass over this layer needs.
int64_t outrider_workspace(const Layer* layer, const Pass* pass) {
  const Heads heads{layer->num_heads, layer->num_kv_heads, layer->head_dim};
  Workspace space{nullptr};
  lay_out(space, *layer, pass->num_rows, int64_t(work_of(*pass, heads).items.size()));
  return space.next - static_cast<uint8_t*>(nullptr);
}

// Adds layer `number`'s two halves to the residual stream [rows, hidden size], and writes keys and values to the cache.
void outrider_layer(const Layer* layer, const Pass* pass, int64_t number, float* stream) {
  const Heads heads{layer->num_heads, layer->num_kv_heads, layer->head_dim};
  const Work work = work_of(*pass, heads);
  const int64_t rows = pass->num_rows, dim = layer->head_dim, hidden = layer->hidden_size;
  const int64_t result_size = kQueries * (dim + 2), num_heads = layer->num_heads + 2 * layer->num_kv_heads;
  Workspace space{pass->workspace};
  const Buffers buffers = lay_out(space, *layer, rows, int64_t(work.items.size()));
  const float scale = float(1.4426950408889634 / std::sqrt(double(dim)));  // exponents are of base 2
#pragma omp parallel num_threads(int(pass->num_threads))
  {
    Scratch scratch;
    TileShapes& shapes = scratch.shapes;
#pragma omp for
    for (int64_t row = 0; row < rows; row++)
      norm_row(stream + row * hidden, layer->attention_norm, hidden, layer->norm_eps, buffers.normed + row * padded(hidden));
    product(shapes, layer->qkv, buffers.normed, rows, [&](int64_t panel, int64_t first, int count, const Tile& tile) {
      put<false>(layer->qkv, panel, first, count, tile, buffers.qkv);
    });
#pragma omp barrier
    for (int64_t index = 0; index < pass->num_segments; index++) {
      const Segment& segment = pass->segments[index];
#pragma omp for nowait
      for (int64_t job = 0; job < segment.num_rows * num_heads; job++)
        place_head(*layer, heads, *pass, segment, number, segment.start + job / num_heads, job % num_heads, buffers);
    }
#pragma omp barrier
#pragma omp for schedule(dynamic)
    for (size_t item = 0; item < work.items.size(); item++)
      attend(scratch, *pass, heads, work.items[item], number, buffers.queries, scale, buffers.results + int64_t(item) * result_size);
#pragma omp for
    for (size_t index = 0; index < work.groups.size(); index++) {
      const ItemGroup& group = work.groups[index];
      const Item& item = work.items[size_t(group.first_item)];
      for (int64_t query = 0; query < item.num_queries; query++) {
        const int64_t row = item.segment->start + (item.first_query + query) / heads.group();
        const int64_t head = item.head * heads.group() + (item.first_query + query) % heads.group();
        combine(buffers.results + group.first_item * result_size, group.num_spans, result_size, query, dim,
                buffers.attended + (row * layer->num_heads + head) * dim);
      }
    }
    product(shapes, layer->output, buffers.attended, rows, [&](int64_t panel, int64_t first, int count, const Tile& tile) {
      put<true>(layer->output, panel, first, count, tile, stream);
    });
#pragma omp barrier
#pragma omp for
    for (int64_t row = 0; row < rows; row++)
      norm_row(stream + row * hidden, layer->mlp_norm, hidden, layer->norm_eps, buffers.normed + row * padded(hidden));
    product(shapes, layer->gate_up, buffers.normed, rows, [&](int64_t panel, int64_t first, int count, const Tile& tile) {
      gate(*layer, panel, first, count, tile, buffers.gated);
    });
#pragma omp barrier
    product(shapes, layer->down, buffers.gated, rows, [&](int64_t panel, int64_t first, int count, const Tile& tile) {
      put<true>(layer->down, panel, first, count, tile, stream);
    });
  }
}

// logits[index] = head(norm(stream[rows[index]])), float32; `workspace` holds [rows, hidden size (padded)] bfloat16.
void outrider_head(const Matrix* head, const float* norm, double eps, const float* stream, const int64_t* rows,
                   int64_t num_rows, int64_t num_threads, uint16_t* workspace, float* logits) {
#pragma omp parallel num_threads(int(num_threads))
  {
    TileShapes shapes;
#pragma omp for
    for (int64_t row = 0; row < num_rows; row++)
      norm_row(stream + rows[row] * head->in, norm, head->in, eps, workspace + row * padded(head->in));
    product(shapes, *head, workspace, num_rows, [&](int64_t panel, int64_t first, int count, const Tile& tile) {
      put<false>(*head, panel, first, count, tile, logits);
    });
  }
}
}
