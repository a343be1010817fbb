// Rows cut to fixed-point numbers of 16 bits: a number of a row is factor * (256 * high + low), two signed bytes, rounded to
// nearest, the largest of the row being 127 * 256.
#pragma once

struct Cut {
  int8_t* bytes;   // [group][pair of steps][high, low][height][64]
  float* sums;     // [group][step of the pairs][height] of the step's integers
  float* totals;   // [group][height] of the row's integers
  float* factors;  // [group][height]; NaN if a number of the row is not finite, and so is each result

  static constexpr int64_t kLargest = 127 * 256;
  static constexpr int64_t kPair = 2 * kStep;  // inputs that a tile register takes

  static int64_t pairs(int64_t steps) { return (steps + 1) / 2; }
  static int64_t group_bytes(int64_t height, int64_t steps) { return whole_pages(pairs(steps) * 2 * height * kPair); }

  template <typename Space>
  static Cut take(Space& space, int64_t groups, int64_t height, int64_t steps) {
    Cut cut;
    cut.bytes = space.template take<int8_t>(groups * group_bytes(height, steps));
    cut.sums = space.template take<float>(groups * pairs(steps) * 2 * height);
    cut.totals = space.template take<float>(groups * height);
    cut.factors = space.template take<float>(groups * height);
    return cut;
  }

  Cut from(int64_t group, int64_t height, int64_t steps) const {
    return {bytes + group * group_bytes(height, steps), sums + group * pairs(steps) * 2 * height, totals + group * height,
            factors + group * height};
  }

  // Writes the rows of the first groups, whose bfloat16 numbers lie as Rows has them, `group_size` numbers a group.
  void write(const uint16_t* values, int64_t group_size, int64_t num_rows, int64_t height, int64_t steps) const {
    for (int64_t first = 0; first < num_rows; first += height)
      from(first / height, height, steps).write_group(values + first / height * group_size, height, steps);
  }

 private:
  // All rows of a group, step by step, as they lie in memory; what is read of rows that are not there means nothing.
  void write_group(const uint16_t* values, int64_t height, int64_t steps) const {
    __m512i largest[16];
    for (__m512i& found : largest) found = _mm512_setzero_si512();
    for (int64_t step = 0; step < steps; step++)
      for (int64_t row = 0; row < height; row++)
        largest[row] = _mm512_max_epu16(largest[row], _mm512_and_si512(_mm512_loadu_si512(values + (step * height + row) * kStep),
                                                                       _mm512_set1_epi16(0x7fff)));
    alignas(64) float inverses[16] = {};
    for (int64_t row = 0; row < height; row++) {
      const float size = size_of(largest[row]);
      const bool usable = size >= kSmallest;
      inverses[row] = usable ? float(kLargest) / size : 0;
      factors[row] = usable || size != size ? size / float(kLargest) : 0;
    }
    const int64_t plane = height * kPair;
    __m512 all_sums = _mm512_setzero_ps();
    for (int64_t step = 0; step < steps; step++) {
      int8_t* to = bytes + step / 2 * 2 * plane + step % 2 * kStep;
      __m512i lanes[16];
      for (int64_t row = 0; row < height; row++) {
        const __m512i both = _mm512_loadu_si512(values + (step * height + row) * kStep);
        const __m512 inverse = _mm512_set1_ps(inverses[row]);
        const __m512i even = scaled(_mm512_slli_epi32(both, 16), inverse), odd = scaled(both, inverse);
        const __m512i numbers = _mm512_mask_blend_epi16(0xaaaaaaaa, even, _mm512_slli_epi32(odd, 16));
        const __m512i high = _mm512_srai_epi16(_mm512_add_epi16(numbers, _mm512_set1_epi16(128)), 8);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + row * kPair), _mm512_cvtepi16_epi8(high));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + plane + row * kPair), _mm512_cvtepi16_epi8(numbers));
        lanes[row] = _mm512_add_epi32(even, odd);
      }
      // each row's sum, and then its total, in the same order whatever the height
      float* step_sums = sums + step * height;
      if (height == 16) {
        const __m512 found = _mm512_cvtepi32_ps(sums_of(lanes));
        _mm512_storeu_ps(step_sums, found);
        all_sums = _mm512_add_ps(all_sums, found);
      } else {
        for (int64_t row = 0; row < height; row++) {
          step_sums[row] = float(_mm512_reduce_add_epi32(lanes[row]));
          totals[row] = (step ? totals[row] : 0) + step_sums[row];
        }
      }
    }
    if (height == 16) _mm512_storeu_ps(totals, all_sums);
    for (int64_t row = 0; row < height && steps % 2; row++) {  // half a pair that is not there
      int8_t* to = bytes + steps / 2 * 2 * plane + row * kPair + kStep;
      memset(to, 0, kStep), memset(to + plane, 0, kStep);
      sums[steps * height + row] = 0;
    }
  }

  // Numbers in the upper halves of lanes, times a factor, as the nearest integers; 0 without a factor.
  static __m512i scaled(__m512i bits, __m512 factor) {
    const __m512 numbers = _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(int(0xffff0000))));
    return _mm512_maskz_cvtps_epi32(_mm512_cmp_ps_mask(factor, _mm512_setzero_ps(), _CMP_NEQ_OQ), _mm512_mul_ps(numbers, factor));
  }

  // The sums of the lanes of sixteen vectors.
  static __m512i sums_of(__m512i (&rows)[16]) {
    for (int row = 0; row < 16; row += 2)
      rows[row / 2] = _mm512_add_epi32(_mm512_unpacklo_epi32(rows[row], rows[row + 1]), _mm512_unpackhi_epi32(rows[row], rows[row + 1]));
    for (int row = 0; row < 8; row += 2)
      rows[row / 2] = _mm512_add_epi32(_mm512_unpacklo_epi64(rows[row], rows[row + 1]), _mm512_unpackhi_epi64(rows[row], rows[row + 1]));
    // of four vectors each quarter has sums of rows 0 to 3, 4 to 7, ...
    const __m512i low = _mm512_add_epi32(_mm512_shuffle_i32x4(rows[0], rows[1], 0x88), _mm512_shuffle_i32x4(rows[0], rows[1], 0xdd));
    const __m512i high = _mm512_add_epi32(_mm512_shuffle_i32x4(rows[2], rows[3], 0x88), _mm512_shuffle_i32x4(rows[2], rows[3], 0xdd));
    return _mm512_add_epi32(_mm512_shuffle_i32x4(low, high, 0x88), _mm512_shuffle_i32x4(low, high, 0xdd));
  }

  // The largest of 32 numbers without a sign, of which bits have the same order; NaN if it is not finite.
  static float size_of(__m512i found) {
    const int32_t bits = _mm512_reduce_max_epi32(_mm512_max_epi32(_mm512_slli_epi32(found, 16), found)) & int32_t(0xffff0000);
    float size;
    memcpy(&size, &bits, sizeof size);
    return size < __builtin_inff() ? size : __builtin_nanf("");
  }
};
