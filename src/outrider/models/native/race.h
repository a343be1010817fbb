// Exponential races, as `core.coins` runs them: of a law's tokens, and of softmax rows whose laws are never written out.
//
// It knows rows and noise streams. Invariant: who wins is what `core.coins` and `core.process` say; where that is too
// close to tell from here, the answer is left to them.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>

#include "vectors.h"

constexpr float kNever = std::numeric_limits<float>::infinity();
constexpr int64_t kRaceBlock = 1024;

// 64 bits of noise: counter `token` of SplitMix64's stream `state`, as `core.coins` has it.
static inline uint64_t noise_bits(int64_t token, int64_t state) {
  uint64_t bits = uint64_t(token + 1) * 0x9E3779B97F4A7C15ull + uint64_t(state);
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9ull;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBull;
  return bits ^ (bits >> 31);
}

// Standard exponential noise of a token, as `core.coins.exponentials`.
static inline double exponential(int64_t token, int64_t state) {
  return -std::log1p(-std::max(double(int64_t(noise_bits(token, state) >> 11)) * 0x1p-53, 0x1p-54));
}

// The place of the largest number of a row; -1 if one is NaN or the largest is not finite.
static inline int64_t largest(const float* row, int64_t size) {
  float most = -kNever;
  int64_t leading = 0;
  bool any = false;
  for (int64_t first = 0; first < size; first += kRaceBlock) {
    const int64_t end = std::min(first + kRaceBlock, size);
    float found = -kNever;
#pragma omp simd reduction(max : found) reduction(| : any)
    for (int64_t i = first; i < end; i++) {
      found = row[i] > found ? row[i] : found;
      any |= row[i] != row[i];
    }
    if (found > most) most = found, leading = first;
  }
  return any || !(std::abs(most) < kNever) ? -1 : std::find(row + leading, row + size, most) - row;
}

typedef uint64_t Words __attribute__((vector_size(64), aligned(8), may_alias));
typedef int64_t SignedWords __attribute__((vector_size(64), aligned(8), may_alias));
typedef int32_t HalfInts __attribute__((vector_size(32), aligned(4), may_alias));

constexpr uint64_t kGamma = 0x9E3779B97F4A7C15ull;

// Uniform numbers of 24 bits, cut and so no larger than those of 53, of sixteen counters whose sums with the state are
// given.
static inline Floats short_uniforms(Words low, Words high) {
  const auto mix = [](Words bits) {
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9ull;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBull;
    return __builtin_convertvector((SignedWords)((bits ^ (bits >> 31)) >> 40), HalfInts);
  };
  const HalfInts halves[2] = {mix(low), mix(high)};
  Ints whole;
  memcpy(&whole, halves, sizeof whole);
  return __builtin_convertvector(whole, Floats) * 0x1p-24f;
}

// The token that wins the race of softmax(scale * row) in a noise stream; -1 where there is no law, or where the first two
// arrive so close to each other that the rounding of the written-out law (some 4e-7) could decide.
//
// No token arrives before u / w (u <= -log(1 - u)), so only those for which that is no later than the best arrival so far
// are looked at in double precision; the most probable token goes first. Weights are right to 1e-5 here, hence the margin.
static inline int64_t race_row(const float* row, float scale, int64_t size, int64_t state) {
  constexpr int64_t kGroupVectors = 8, kGroupTokens = kGroupVectors * kLanes;
  constexpr double kMargin = 1 + 1e-3;
  const int64_t start = largest(row, size);
  if (start < 0) return -1;
  const float most = row[start];
  const auto arrival = [&](int64_t token) {  // the exponent is rounded as `Processor.law_of_row` rounds it
    const float below = (row[token] - most) * scale;
    return exponential(token, state) / std::exp(double(below));
  };
  int64_t winner = start;
  double first_time = arrival(start), second_time = std::numeric_limits<double>::infinity();
  if (!(first_time < second_time)) return -1;
  float limit = float(first_time * kMargin);
  Words low, high;
  for (int lane = 0; lane < 8; lane++) {
    low[lane] = uint64_t(state) + uint64_t(lane + 1) * kGamma;
    high[lane] = uint64_t(state) + uint64_t(lane + 9) * kGamma;
  }
  float padded[kGroupTokens], uniforms[kGroupTokens], weights[kGroupTokens];
  for (int64_t first = 0; first < size; first += kGroupTokens) {
    const int64_t count = std::min(kGroupTokens, size - first);
    const float* logits = row + first;
    if (count < kGroupTokens) {
      std::fill(std::copy(logits, logits + count, padded), padded + kGroupTokens, -kNever);
      logits = padded;
    }
    Ints hits{};
    for (int64_t vector = 0; vector < kGroupVectors; vector++) {
      const Floats chance = short_uniforms(low, high);
      const Floats weight = exp2((load(logits + vector * kLanes) - most) * scale * 1.4426950408889634f);
      hits |= (chance <= weight * limit) & (weight > 0.0f);
      store(uniforms + vector * kLanes, chance);
      store(weights + vector * kLanes, weight);
      low += 16 * kGamma, high += 16 * kGamma;
    }
    int32_t any = 0;
    for (int lane = 0; lane < kLanes; lane++) any |= hits[lane];
    for (int64_t i = 0; any && i < count; i++) {
      if (!(uniforms[i] <= weights[i] * limit && weights[i] > 0.0f) || first + i == start) continue;
      const double time = arrival(first + i);
      if (time < first_time) {
        second_time = first_time, first_time = time, winner = first + i;
        limit = float(first_time * kMargin);
      } else {
        second_time = std::min(second_time, time);
      }
    }
  }
  return second_time > first_time * (1 + 4e-6) ? winner : -1;
}
