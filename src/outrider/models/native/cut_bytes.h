// Rows cut to bytes: 32 numbers of a row are factor * byte, rounded to nearest, the largest being 127.
#pragma once

// What a byte of a step of a row stands for, and the sum of its bytes. A number that is not finite makes the factor, and
// so each result, NaN.
struct Scale {
  float factor, sum;
};

// The sums of the first and of the last 16 bytes of a step.
struct HalfSums {
  int32_t first, last;
};

struct Cut {
  int8_t* bytes;   // [group][step][height][32]
  Scale* scales;   // [group][step][height]
  HalfSums* sums;  // the same

  template <typename Space>
  static Cut take(Space& space, int64_t groups, int64_t height, int64_t steps) {
    Cut cut;
    cut.bytes = space.template take<int8_t>(groups * whole_pages(steps * kStep * height));
    cut.scales = space.template take<Scale>(groups * steps * height);
    cut.sums = space.template take<HalfSums>(groups * steps * height);
    return cut;
  }

  Cut from(int64_t group, int64_t height, int64_t steps) const {
    return {bytes + group * whole_pages(steps * kStep * height), scales + group * steps * height, sums + group * steps * height};
  }

  // Writes the rows of the first groups, whose bfloat16 numbers lie as Rows has them, `group_size` numbers a group.
  void write(const uint16_t* values, int64_t group_size, int64_t num_rows, int64_t height, int64_t steps) const {
    for (int64_t row = 0; row < num_rows; row++) {
      const Cut group = from(row / height, height, steps);
      for (int64_t step = 0; step < steps; step++) {
        const int64_t at = step * height + row % height;
        write_step(values + row / height * group_size + at * kStep, group.bytes + at * kStep, group.scales[at], group.sums[at]);
      }
    }
  }

 private:
  static void write_step(const uint16_t* from, int8_t* to, Scale& scale, HalfSums& sums) {
    const Floats first = from_bfloat16(from), last = from_bfloat16(from + kLanes);
    const Ints one = (Ints)first & 0x7fffffff, other = (Ints)last & 0x7fffffff;
    const int32_t bits = largest(one > other ? one : other);  // of numbers without a sign, bits have the same order
    float size;
    memcpy(&size, &bits, sizeof size);
    if (!(size >= kSmallest && size < __builtin_inff())) {
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
