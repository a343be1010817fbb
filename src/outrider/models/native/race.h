// Exponential races, as `core.coins` runs them: of a law's tokens, and of softmax rows whose laws are never written out.
//
// It knows rows and noise streams. Invariant: who wins is what `core.coins` and `core.process` say; where that is too
// close to tell from here, the answer is left to them.
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
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

// The largest number so far of each lane of a row, the first of equal ones, and whether one was NaN.
struct Best {
  Floats most = all(-kNever);
  Ints place = {}, broken = {};

  // Takes sixteen numbers from `column` on, of which the first `count` are there.
  void take(Floats values, int64_t column, int64_t count) {
    const Ints lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    if (count < kLanes) values = select(lane < int32_t(count), values, all(-kNever));
    const Ints better = values > most;
    most = select(better, values, most);
    place = (better & (lane + int32_t(column))) | (~better & place);
    broken |= values != values;
  }
};

// The place of the largest number of a row that was taken in `count` parts; -1 if one is NaN or the largest is not finite.
static inline int64_t place_of(const Best* parts, int64_t stride, int64_t count) {
  float most = -kNever;
  int64_t place = -1;
  for (int64_t part = 0; part < count; part++) {
    const Best& found = parts[part * stride];
    for (int lane = 0; lane < kLanes; lane++) {
      if (found.broken[lane]) return -1;
      if (found.most[lane] > most || (found.most[lane] == most && found.place[lane] < place))
        most = found.most[lane], place = found.place[lane];
    }
  }
  return std::abs(most) < kNever ? place : -1;
}

// The same of numbers that lie one behind the other.
static inline int64_t largest(const float* row, int64_t size) {
  Best best;
  int64_t first = 0;
  for (; first + kLanes <= size; first += kLanes) best.take(load(row + first), first, kLanes);
  float rest[kLanes] = {};
  std::copy(row + first, row + size, rest);
  best.take(load(rest), first, size - first);
  return place_of(&best, 1, 1);
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

// The exponents (row - most) * scale of softmax weights, rounded as `Processor.law_of_row` rounds them.
struct Exponents {
  const float* row;
  float most, scale;
  int64_t size;

  float at(int64_t token) const { return (row[token] - most) * scale; }
};

// 1 has the exponent 0.
static inline Floats weights_of(Floats exponents) { return exp2(exponents * 1.4426950408889634f); }

static inline bool any_of(Ints hits) {
  typedef int64_t Four __attribute__((vector_size(32), aligned(4), may_alias));
  Four halves[2];
  memcpy(halves, &hits, sizeof halves);
  const Four four = halves[0] | halves[1];
  return ((four[0] | four[1]) | (four[2] | four[3])) != 0;
}

constexpr int64_t kGroupVectors = 8, kGroupTokens = kGroupVectors * kLanes;

// Calls `take(first token, exponents)` for each group of `kGroupTokens` tokens of which one is above `floor`; minus infinity
// fills up the last.
template <typename Take>
static inline void for_groups_above(const Exponents& exponents, float floor, const Take& take) {
  float padded[kGroupTokens];
  for (int64_t first = 0; first < exponents.size; first += kGroupTokens) {
    const int64_t count = std::min(kGroupTokens, exponents.size - first);
    const float* logits = exponents.row + first;
    if (count < kGroupTokens) {
      std::fill(std::copy(logits, logits + count, padded), padded + kGroupTokens, -kNever);
      logits = padded;
    }
    Floats found[kGroupVectors];
    Ints hits{};
    for (int64_t vector = 0; vector < kGroupVectors; vector++) {
      found[vector] = (load(logits + vector * kLanes) - exponents.most) * exponents.scale;
      hits |= found[vector] > floor;
    }
    if (any_of(hits)) take(first, found);
  }
}

// The token that wins the race of the softmax weights whose exponents are above `floor`, the most probable token `start`
// always among them; -1 where the first two arrive so close to each other that the rounding of the written-out law (some
// 4e-7) could decide.
//
// No token arrives before u / w (u <= -log(1 - u)), so only those for which that is no later than the best arrival so far
// are looked at in double precision; the most probable token goes first. Weights are right to 1e-5 here, hence the margin.
static inline int64_t race_above(const Exponents& exponents, int64_t start, float floor, int64_t state) {
  constexpr double kMargin = 1 + 1e-3;
  const auto arrival = [&](int64_t token) { return exponential(token, state) / std::exp(double(exponents.at(token))); };
  int64_t winner = start;
  double first_time = arrival(start), second_time = std::numeric_limits<double>::infinity();
  if (!(first_time < second_time)) return -1;
  float limit = float(first_time * kMargin);
  Words low, high;
  for (int lane = 0; lane < 8; lane++) {
    low[lane] = uint64_t(state) + uint64_t(lane + 1) * kGamma;
    high[lane] = uint64_t(state) + uint64_t(lane + 9) * kGamma;
  }
  float uniforms[kGroupTokens], weights[kGroupTokens];
  for_groups_above(exponents, floor, [&](int64_t first, const Floats* group) {
    Ints hits{};
    for (int64_t vector = 0; vector < kGroupVectors; vector++) {
      if (!any_of(group[vector] > floor)) {
        store(weights + vector * kLanes, Floats{});
        continue;
      }
      const uint64_t ahead = uint64_t(first + vector * kLanes) * kGamma;
      const Floats chance = short_uniforms(low + ahead, high + ahead);
      const Floats weight = select(group[vector] > floor, weights_of(group[vector]), Floats{});
      hits |= (chance <= weight * limit) & (weight > 0.0f);
      store(uniforms + vector * kLanes, chance);
      store(weights + vector * kLanes, weight);
    }
    if (!any_of(hits)) return;
    for (int64_t i = 0; i < kGroupTokens; i++) {
      if (!(weights[i] > 0.0f && uniforms[i] <= weights[i] * limit) || first + i == start) continue;
      const double time = arrival(first + i);
      if (time < first_time) {
        second_time = first_time, first_time = time, winner = first + i;
        limit = float(first_time * kMargin);
      } else {
        second_time = std::min(second_time, time);
      }
    }
  });
  return second_time > first_time * (1 + 4e-6) ? winner : -1;
}

// What a request leaves of a law: its `top_k` largest weights (0: all), of these the largest that hold the share `top_p` of
// their sum (1: all), and none below `min_p` of the largest.
struct Cuts {
  double top_k, top_p, min_p;
};

// Exponents that differ by less may belong to equal weights, or to weights in the other order.
constexpr float kNear = 1e-5f;

// Sums of weights are right to 1e-5 here, those of the written-out law to 1e-6.
constexpr double kDoubt = 1e-4;

// Exponents down to which the cuts look. Where they lie cannot change an answer.
constexpr float kFloors[] = {-1, -2, -3, -4, -6, -8, -10, -12, -16, -24};
constexpr int kSteps = sizeof kFloors / sizeof *kFloors;

// The `top_k`-th largest exponent; minus infinity where there are fewer.
static inline float largest_exponent(const Exponents& exponents, int64_t top_k) {
  Ints counts[kSteps] = {};
  for_groups_above(exponents, kFloors[kSteps - 1], [&](int64_t, const Floats* group) {
    for (int64_t vector = 0; vector < kGroupVectors; vector++)
      for (int step = 0; step < kSteps; step++) counts[step] -= group[vector] > kFloors[step];
  });
  float floor = -kNever;
  for (int step = kSteps - 1; step >= 0; step--) {
    int64_t count = 0;
    for (int lane = 0; lane < kLanes; lane++) count += counts[step][lane];
    if (count >= top_k) floor = kFloors[step];
  }
  static thread_local std::vector<float> found;
  found.clear();
  for_groups_above(exponents, floor, [&](int64_t, const Floats* group) {
    for (int64_t vector = 0; vector < kGroupVectors; vector++) {
      if (!any_of(group[vector] > floor)) continue;
      for (int lane = 0; lane < kLanes; lane++)
        if (group[vector][lane] > floor) found.push_back(group[vector][lane]);
    }
  });
  if (int64_t(found.size()) < top_k) return -kNever;
  std::nth_element(found.begin(), found.begin() + (top_k - 1), found.end(), std::greater<float>());
  return found[top_k - 1];
}

// The weights whose exponents are at least `edge`.
struct Pool {
  double wanted;  // the share `top_p` of their sum
  float floor;    // what is not above it is certainly cut
  bool is_near;   // whether a token is just below the edge
};

static inline Pool pool_of(const Exponents& exponents, float edge, double top_p) {
  double all = 0, heavier[kSteps] = {};
  Ints near{};
  for_groups_above(exponents, edge - kNear, [&](int64_t, const Floats* group) {
    Floats sums[kSteps + 1] = {};
    for (int64_t vector = 0; vector < kGroupVectors; vector++) {
      const Floats weight = select(group[vector] >= edge, weights_of(group[vector]), Floats{});
      near |= (group[vector] > edge - kNear) & (group[vector] < edge);
      sums[kSteps] += weight;
      for (int step = 0; step < kSteps; step++) sums[step] += select(group[vector] > kFloors[step], weight, Floats{});
    }
    all += sum(sums[kSteps]);
    for (int step = 0; step < kSteps; step++) heavier[step] += sum(sums[step]);
  });
  Pool pool{top_p * all, edge - kNear, any_of(near)};
  for (int step = kSteps - 1; step >= 0; step--)
    if (heavier[step] >= pool.wanted * (1 + kDoubt)) pool.floor = std::max(pool.floor, kFloors[step]);
  return pool;
}

// How many tokens may be above a token, how much weight they hold, and how much those that are certainly above it.
struct Above {
  int64_t perhaps;
  double perhaps_weight, surely_weight;
};

static inline Above above(const Exponents& exponents, int64_t token) {
  const float own = exponents.at(token);
  Above found{-1, -std::exp(double(own)), 0.0};  // itself is found below
  for_groups_above(exponents, own - kNear, [&](int64_t, const Floats* group) {
    Floats surely{}, perhaps{};
    Ints count{};
    for (int64_t vector = 0; vector < kGroupVectors; vector++) {
      const Floats weight = weights_of(group[vector]);
      const Ints is_near = group[vector] > own - kNear;
      count -= is_near;
      perhaps += select(is_near, weight, Floats{});
      surely += select(group[vector] > own + kNear, weight, Floats{});
    }
    for (int lane = 0; lane < kLanes; lane++) found.perhaps += count[lane];
    found.perhaps_weight += sum(perhaps), found.surely_weight += sum(surely);
  });
  return found;
}

// The token that wins the race of softmax(scale * row), cut as the request asks, in a noise stream; -1 where there is no
// law, or where it is too close to tell from here. Of an infinite scale it is the largest, whatever the noise.
//
// The winner among more tokens wins among those that are kept too, if it is one of them. It is where the tokens above it
// are fewer than `top_k` and hold less than `top_p`; if it is certainly cut, so is all that is not above it, and the rest
// races again.
static inline int64_t race_row(const float* row, float scale, const Cuts& cuts, int64_t size, int64_t state) {
  const int64_t start = largest(row, size);
  if (start < 0 || scale == kNever) return start;
  const Exponents exponents{row, row[start], scale, size};
  const float least = cuts.min_p > 0 ? float(std::log(cuts.min_p)) : -kNever;
  const float edge = cuts.top_k > 0 ? largest_exponent(exponents, int64_t(cuts.top_k)) : -kNever;
  Pool pool{kNever, edge - kNear, false};
  if (cuts.top_p < 1) pool = pool_of(exponents, edge, cuts.top_p);
  float floor = std::max(least - kNear, pool.floor);
  while (true) {
    const int64_t winner = race_above(exponents, start, floor, state);
    if (winner < 0 || winner == start) return winner;  // no cut leaves out the most probable token
    if (cuts.top_k <= 0 && cuts.top_p >= 1 && cuts.min_p <= 0) return winner;
    const float own = exponents.at(winner);
    const Above heavier = above(exponents, winner);
    if (own < least + kNear || pool.is_near) return -1;
    if (cuts.top_k > 0 && double(heavier.perhaps) >= cuts.top_k) return -1;
    if (heavier.perhaps_weight < pool.wanted * (1 - kDoubt)) return winner;
    if (heavier.surely_weight < pool.wanted * (1 + kDoubt)) return -1;
    floor = own + kNear;
  }
}
