// Exponential races, as `core.coins` runs them: of a law's tokens, and of softmax rows whose laws are never written out.
//
// It knows rows and noise streams. Invariant: who wins is what `core.coins` and `core.process` say; where that is too
// close to tell from here, the answer is left to them.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

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

// The largest number of a row; NaN if there is one.
static inline float largest(const float* row, int64_t size) {
  float most = -kNever;
  bool any = false;
#pragma omp simd reduction(max : most) reduction(| : any)
  for (int64_t i = 0; i < size; i++) {
    most = row[i] > most ? row[i] : most;
    any |= row[i] != row[i];
  }
  return any ? std::numeric_limits<float>::quiet_NaN() : most;
}

// The token that wins the race of softmax(scale * row) in a noise stream; -1 where there is no law, or where the first two
// arrive so close to each other that the rounding of the written-out law (some 4e-7) could decide.
//
// No token arrives before u / w (u <= -log(1 - u); u is cut to 24 bits, which makes it no larger), so only those for which
// that is no later than the arrival of one of them are looked at in double precision. `earliest` has room for the row.
static inline int64_t race_row(const float* row, float scale, int64_t size, int64_t state, float* earliest) {
  const float most = largest(row, size);
  if (!(std::abs(most) < kNever)) return -1;
  float best = kNever;
  int64_t leading = -1;
  for (int64_t first = 0; first < size; first += kRaceBlock) {
    const int64_t end = std::min(first + kRaceBlock, size);
#pragma omp simd
    for (int64_t token = first; token < end; token++)
      earliest[token] = float(int32_t(noise_bits(token, state) >> 40)) * 0x1p-24f;
    Floats least = all(kNever);
    const auto arrive = [&](Floats logits, Floats uniforms) {
      const Floats weights = exp2((logits - most) * scale * 1.4426950408889634f);
      return select(weights > 0.0f, uniforms / weights, all(kNever));
    };
    int64_t token = first;
    for (; token + kLanes <= end; token += kLanes) {
      const Floats times = arrive(load(row + token), load(earliest + token));
      store(earliest + token, times);
      least = select(times < least, times, least);
    }
    for (; token < end; token++) {
      earliest[token] = arrive(all(row[token]), all(earliest[token]))[0];
      least[0] = std::min(least[0], earliest[token]);
    }
    for (int lane = 0; lane < kLanes; lane++)
      if (least[lane] < best) best = least[lane], leading = first;
  }
  if (leading < 0) return -1;
  const auto arrival = [&](int64_t token) {  // the exponent is rounded as `Processor.law_of_row` rounds it
    const float below = (row[token] - most) * scale;
    return exponential(token, state) / std::exp(double(below));
  };
  const float limit = float(arrival(std::find(earliest + leading, earliest + size, best) - earliest) * (1 + 1e-4));
  double first_time = std::numeric_limits<double>::infinity(), second_time = first_time;
  int64_t winner = -1;
  for (int64_t first = 0; first < size; first += kRaceBlock) {
    const int64_t end = std::min(first + kRaceBlock, size);
    bool any = false;
#pragma omp simd reduction(| : any)
    for (int64_t token = first; token < end; token++) any |= earliest[token] <= limit;
    for (int64_t token = first; any && token < end; token++) {
      if (!(earliest[token] <= limit)) continue;
      const double time = arrival(token);
      if (time < first_time) {
        second_time = first_time, first_time = time, winner = token;
      } else {
        second_time = std::min(second_time, time);
      }
    }
  }
  return second_time > first_time * (1 + 4e-6) ? winner : -1;
}
