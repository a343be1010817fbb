// Sixteen floats at once, and bfloat16 as bits. The compiler lowers the vector type to AVX2 or AVX-512.
//
// Invariant: every helper treats lanes alike and apart, and NaN goes through all of them.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

typedef float Floats __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t Bits __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t Halves __attribute__((vector_size(32), aligned(2), may_alias));

constexpr int kLanes = 16;

// For what must disappear into its caller, so that arrays indexed by constants become registers.
#define OUTRIDER_INLINE_MEMBER __attribute__((always_inline)) inline
#define OUTRIDER_INLINE static OUTRIDER_INLINE_MEMBER

static inline Floats load(const float* from) { return *reinterpret_cast<const Floats*>(from); }
static inline void store(float* to, Floats values) { *reinterpret_cast<Floats*>(to) = values; }
static inline Floats all(float value) { return value - Floats{}; }

static inline Floats from_bfloat16(const uint16_t* from) {
  return (Floats)(__builtin_convertvector(*reinterpret_cast<const Halves*>(from), Bits) << 16);
}

// Round to nearest, ties to even.
static inline Bits bfloat16_bits(Floats values) {
  const Bits bits = (Bits)values;
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

static inline void to_bfloat16(uint16_t* to, Floats values) {
#ifdef __AVX512BF16__
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh((__m512)values));
#else
  *reinterpret_cast<Halves*>(to) = __builtin_convertvector(bfloat16_bits(values), Halves);
#endif
}

static inline uint16_t to_bfloat16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float from_bits(uint16_t half) {
  const uint32_t bits = uint32_t(half) << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline Floats select(Ints mask, Floats yes, Floats no) {
  return (Floats)(((Ints)yes & mask) | ((Ints)no & ~mask));
}

// Lane by lane; the other, if one of both is NaN.
static inline Floats larger(Floats one, Floats other) {
#ifdef __AVX512F__
  return (Floats)_mm512_max_ps((__m512)one, (__m512)other);
#else
  return select(one > other, one, other);
#endif
}

// The sum of all lanes, by halves.
static inline float sum(Floats values) {
  typedef float Eight __attribute__((vector_size(32), aligned(4), may_alias));
  typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));
  alignas(64) float lanes[kLanes];
  store(lanes, values);
  const Eight eight = *reinterpret_cast<const Eight*>(lanes) + *reinterpret_cast<const Eight*>(lanes + 8);
  alignas(32) float half[8];
  *reinterpret_cast<Eight*>(half) = eight;
  const Four four = *reinterpret_cast<const Four*>(half) + *reinterpret_cast<const Four*>(half + 4);
  return (four[0] + four[2]) + (four[1] + four[3]);
}

// Lane by lane a * b + c, rounded once.
static inline Floats fused(Floats a, Floats b, Floats c) {
#ifdef __AVX512F__
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#else
  Floats result;
  const float *one = reinterpret_cast<const float*>(&a), *other = reinterpret_cast<const float*>(&b);
  for (int half = 0; half < kLanes; half += 8)
    _mm256_storeu_ps(reinterpret_cast<float*>(&result) + half,
                     _mm256_fmadd_ps(_mm256_loadu_ps(one + half), _mm256_loadu_ps(other + half),
                                     _mm256_loadu_ps(reinterpret_cast<const float*>(&c) + half)));
  return result;
#endif
}

// The nearest integers, ties to even, of numbers below 2^22.
static inline Ints rounded(Floats values) { return (Ints)(values + 12582912.0f) - 0x4b400000; }

static inline int32_t sum(Ints values) {
#ifdef __AVX512F__
  return _mm512_reduce_add_epi32((__m512i)values);
#else
  int32_t total = 0;
  for (int lane = 0; lane < kLanes; lane++) total += values[lane];
  return total;
#endif
}

static inline int32_t largest(Ints values) {
#ifdef __AVX512F__
  return _mm512_reduce_max_epi32((__m512i)values);
#else
  int32_t found = values[0];
  for (int lane = 1; lane < kLanes; lane++) found = values[lane] > found ? values[lane] : found;
  return found;
#endif
}

static inline float largest(Floats values) {
#ifdef __AVX512F__
  return _mm512_reduce_max_ps((__m512)values);
#else
  float found = values[0];
  for (int lane = 1; lane < kLanes; lane++) found = values[lane] > found ? values[lane] : found;
  return found;
#endif
}

static inline void store_bytes(int8_t* to, Ints values) {
  typedef int8_t Bytes __attribute__((vector_size(16), aligned(1), may_alias));
  *reinterpret_cast<Bytes*>(to) = __builtin_convertvector(values, Bytes);
}

// 2^x of a part between -0.5 and 0.5, with a relative error below 2e-7.
static inline Floats exp2_of_part(Floats part) {
  Floats power = all(1.535336188319500e-4f);
  power = power * part + 1.339887440266574e-3f;
  power = power * part + 9.618437357674640e-3f;
  power = power * part + 5.550332471162809e-2f;
  power = power * part + 2.402264791363012e-1f;
  power = power * part + 6.931472028550421e-1f;
  return power * part + 1.0f;
}

// 2^x with a relative error below 2e-7; 0 below -126 (so for minus infinity), infinity above 128.
static inline Floats exp2(Floats x) {
#ifdef __AVX512F__
  const __m512 bounded = _mm512_min_ps(_mm512_set1_ps(256.0f), (__m512)x);  // NaN stays
  const __m512 whole = _mm512_roundscale_ps(bounded, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 power = _mm512_scalef_ps((__m512)exp2_of_part((Floats)_mm512_sub_ps(bounded, whole)), whole);
  return (Floats)_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(bounded, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ), power);
#else
  const Ints low = x < -126.0f, high = x >= 128.0f;
  const Floats bounded = select(low | high, Floats{}, x);
  const Floats shifted = bounded + 12582912.0f;  // 1.5 * 2^23: the sum's low bits hold the rounded number
  const Floats power = exp2_of_part(bounded - (shifted - 12582912.0f));
  const Floats scaled = (Floats)((Ints)power + ((Ints)shifted << 23));
  return select(high, all(__builtin_inff()), select(low, Floats{}, scaled));
#endif
}

static inline Floats silu(Floats x) { return x / (exp2(x * -1.4426950408889634f) + 1.0f); }
