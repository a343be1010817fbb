// Rows that products read, in tiles of 32 inputs, as bfloat16 and cut to integers.
//
// Products with bfloat16 weights read the first form, products with the blocks of a file the second: `Cut`, of which there
// are two kinds. Invariant: both forms depend on the row's own numbers only.
#pragma once
#include "vectors.h"

constexpr int kStep = 32;        // inputs of a step
constexpr int64_t kPage = 4096;  // bytes

static constexpr int64_t whole_pages(int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

constexpr float kSmallest = 1e-30f;  // numbers so small make no difference

#ifdef __AMX_INT8__
#include "cut_fixed.h"
#else
#include "cut_bytes.h"
#endif

// Rows lie as [group of rows][step][height rows][32]: a tile lies in one piece, and groups begin at pages.
struct Rows {
  uint16_t* values;        // bfloat16
  int64_t size, num_rows;  // numbers of a row, a multiple of a step
  int64_t height;          // 16, or less where the pass has fewer rows: 1, 2, 4 or 8
  bool is_cut;             // whether products read the second form, too
  Cut cut;                 // which each thread makes for itself, for as many rows as it multiplies at a time

  static int64_t height_for(int64_t num_rows) { return num_rows > 8 ? 16 : num_rows > 4 ? 8 : num_rows > 2 ? 4 : num_rows; }
  int64_t groups() const { return (num_rows + height - 1) / height; }
  int64_t steps() const { return size / kStep; }
  int64_t step_size() const { return height * kStep; }
  int64_t group_size() const { return whole_pages(size * height); }
  // where the 32 numbers of a row from `column`, a multiple of 32, on lie
  uint16_t* at(int64_t row, int64_t column) const {
    return values + row / height * group_size() + column * height + row % height * kStep;
  }
  // the rows from `first`, a multiple of 16, on
  Rows from(int64_t first, int64_t count) const {
    const int64_t group = first / height;
    return {values + group * group_size(), size, count, height, is_cut, is_cut ? cut.from(group, height, steps()) : cut};
  }
  // a place for the second form; `Space` is layer.cpp's
  template <typename Space>
  void take_cut(Space& space) {
    if (is_cut) cut = Cut::take(space, groups(), height, steps());
  }
  void write_cut() const {
    if (is_cut) cut.write(values, group_size(), num_rows, height, steps());
  }
};
