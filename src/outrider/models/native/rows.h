// Rows that products read, in tiles of 32 inputs, as bfloat16 and as bytes.
//
// Products with bfloat16 weights read the first form, products with blocks (blocks.h) the second: 32 numbers of a row are
// scale * byte, rounded to nearest, the largest being 127. Invariant: both forms depend on the row's own numbers only.
#pragma once
#include "vectors.h"

constexpr int kStep = 32;         // inputs of a step
constexpr int64_t kPage = 4096;   // bytes

// What a byte of a step of a row stands for, and the sum of its bytes. A number that is not finite makes the factor, and
// so each result, NaN.
struct Scale {
  float factor, sum;
};

// The sums of the first and of the last 16 bytes of a step.
struct HalfSums {
  int32_t first, last;
};

// Rows lie as [group of rows][step][height rows][32]: a tile lies in one piece, and groups begin at pages.
struct Rows {
  uint16_t* values;        // bfloat16
  int8_t* bytes;
  Scale* scales;           // [group][step][height]
  HalfSums* sums;          // the same
  int64_t size, num_rows;  // numbers of a row, a multiple of a step
  int64_t height;          // 16, or less where the pass has fewer rows: 1, 2, 4 or 8
  bool has_bytes;          // whether the second form is written, too

  static int64_t height_for(int64_t num_rows) { return num_rows > 8 ? 16 : num_rows > 4 ? 8 : num_rows > 2 ? 4 : num_rows; }
  int64_t groups() const { return (num_rows + height - 1) / height; }
  int64_t step_size() const { return height * kStep; }
  int64_t group_size() const { return (size * height + kPage - 1) / kPage * kPage; }
  int64_t group_scales() const { return size / kStep * height; }
  // where the 32 numbers of a row from `column`, a multiple of 32, on lie in `values` and in `bytes`
  int64_t place(int64_t row, int64_t column) const {
    return row / height * group_size() + column * height + row % height * kStep;
  }
  // where what belongs to a step of a row lies in `scales` and in `sums`
  int64_t scale_place(int64_t row, int64_t step) const { return row / height * group_scales() + step * height + row % height; }
  uint16_t* at(int64_t row, int64_t column) const { return values + place(row, column); }
  // writes the bytes of steps [first, last) of a row whose bfloat16 numbers are there
  void write_bytes(int64_t row, int64_t first, int64_t last) const {
    for (int64_t step = first; step < last && has_bytes; step++) {
      const int64_t at = scale_place(row, step);
      to_bytes(values + place(row, step * kStep), bytes + place(row, step * kStep), scales[at], sums[at]);
    }
  }
  // the rows from `first`, a multiple of 16, on
  Rows from(int64_t first, int64_t count) const {
    const int64_t group = first / height;
    return {values + group * group_size(), bytes + group * group_size(), scales + group * group_scales(),
            sums + group * group_scales(), size, count, height, has_bytes};
  }

 private:
  static void to_bytes(const uint16_t* from, int8_t* to, Scale& scale, HalfSums& sums) {
    const Floats first = from_bfloat16(from), last = from_bfloat16(from + kLanes);
    const Ints one = (Ints)first & 0x7fffffff, other = (Ints)last & 0x7fffffff;
    const int32_t bits = largest(one > other ? one : other);  // of numbers without a sign, bits have the same order
    float size;
    memcpy(&size, &bits, sizeof size);
    if (!(size >= 1e-30f && size < __builtin_inff())) {  // so small that it makes no difference, or not finite
      memset(to, 0, kStep);
      scale = {size < 1 ? 0.0f : __builtin_nanf(""), 0};
      sums = {0, 0};
      return;
    }
    const float inverse = 127.0f / size;
    const Ints low = rounded(first * inverse), high = rounded(last * inverse);
    store_bytes(to, low), store_bytes(to + kLanes, high);
    sums = {sum(low), sum(high)};
    scale = {size / 127.0f, float(sums.first + sums.last)};
  }
};
