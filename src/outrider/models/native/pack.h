// From the blocks of a GGUF file to the tiles of blocks.h: numbers are moved, none is changed.
//
// Source: the block layouts of ggml, https://github.com/ggml-org/ggml (`ggml-common.h`).
#pragma once
#include "blocks.h"

enum GgmlType : int64_t { kQ4_0 = 2, kQ4_1 = 3, kQ5_0 = 6, kQ8_0 = 8, kQ4_K = 12, kQ6_K = 14 };

static inline int64_t kind_of(int64_t type) {
  switch (type) {
    case kQ4_0: case kQ4_1: return kInt4;
    case kQ4_K: return kInt4K;
    case kQ5_0: case kQ8_0: return kInt8;
    case kQ6_K: return kInt6K;
    default: return -1;
  }
}

static inline int64_t block_bytes(int64_t type) {
  switch (type) {
    case kQ4_0: return 18;
    case kQ4_1: return 20;
    case kQ5_0: return 22;
    case kQ8_0: return 34;
    case kQ4_K: return 144;
    default: return 210;
  }
}

static uint8_t& byte_of(uint8_t* bytes, int input, int output) { return bytes[input / 4 * 64 + output * 4 + input % 4]; }

// A nibble of a block of so many inputs.
static void put_nibble(uint8_t* bytes, int inputs, int input, int output, uint32_t value) {
  uint8_t& byte = byte_of(bytes, input % (inputs / 2), output);
  byte = uint8_t(byte | value << (input < inputs / 2 ? 0 : 4));
}

// Scale or minimum `index` of a Q4_K block: six bits each, spread over twelve bytes.
static inline uint8_t six_bits(const uint8_t* scales, int index, bool minimum) {
  if (index < 4) return scales[index + (minimum ? 4 : 0)] & 63;
  const uint8_t low = minimum ? scales[index + 4] >> 4 : scales[index + 4] & 15;
  return uint8_t(low | (scales[index - (minimum ? 0 : 4)] >> 6) << 4);
}

// Block `index` of a row becomes lane `output` of a tile.
static void pack_block(int64_t type, const uint8_t* block, int output, int64_t index, uint8_t* tile) {
  const auto copy_half = [&](const uint8_t* from, uint8_t* to) { memcpy(to + 2 * output, from, 2); };
  const auto put_half = [&](const uint8_t* from, float factor, uint8_t* to) {  // the factor is a power of two: exact
    uint16_t half;
    memcpy(&half, from, 2);
    half = _cvtss_sh(_cvtsh_ss(half) * factor, 0);
    memcpy(to + 2 * output, &half, 2);
  };
  const Record record = record_of(kind_of(type));
  uint8_t *own = tile + record.own_at(index), *integers = tile + record.integers_at(index);  // of a block that is a step
  uint8_t* shared = tile + record.shared_at(8 * index);                                      // of one that is eight
  switch (type) {
    case kQ4_0: case kQ4_1: {
      const uint8_t* numbers = block + (type == kQ4_0 ? 2 : 4);
      for (int input = 0; input < 32; input++)
        put_nibble(integers, 32, input, output, input < 16 ? numbers[input] & 15 : numbers[input - 16] >> 4);
      copy_half(block, own);
      if (type == kQ4_1) copy_half(block + 2, own + 32);
      else put_half(block, -8.0f, own + 32);
      break;
    }
    case kQ5_0: {
      uint32_t fifth;
      memcpy(&fifth, block + 2, 4);
      for (int input = 0; input < 32; input++) {
        const int low = input < 16 ? block[6 + input] & 15 : block[6 + input - 16] >> 4;
        byte_of(integers, input, output) = uint8_t((low | int(fifth >> input & 1) << 4) - 16);
      }
      copy_half(block, own);
      break;
    }
    case kQ8_0:
      for (int input = 0; input < 32; input++) byte_of(integers, input, output) = block[2 + input];
      copy_half(block, own);
      break;
    case kQ4_K:
      copy_half(block, shared);
      put_half(block + 2, -1.0f, shared + 32);  // ggml subtracts its minima
      for (int part = 0; part < 8; part++) {
        const uint8_t* numbers = block + 16 + part / 2 * 32;
        uint8_t *scales = tile + record.own_at(8 * index + part), *to = tile + record.integers_at(8 * index + part);
        for (int input = 0; input < 32; input++)
          put_nibble(to, 32, input, output, part % 2 ? numbers[input] >> 4 : numbers[input] & 15);
        scales[output] = six_bits(block + 4, part, false);
        scales[16 + output] = six_bits(block + 4, part, true);
      }
      break;
    default:  // Q6_K: low four bits [128], high two bits [64], scales [16], scale
      copy_half(block + 208, shared);
      for (int part = 0; part < 16; part++) {
        uint8_t* to = tile + record.integers_at(8 * index + part / 2) + part % 2 * 192;
        for (int input = 0; input < 16; input++) {
          const int place = part * 16 + input, half = place / 128, within = place % 128;
          const uint8_t low = block[half * 64 + within % 64], high = block[128 + half * 32 + within % 32];
          put_nibble(to, 16, input, output, within < 64 ? low & 15 : low >> 4);
          uint8_t& upper = to[128 + output * 4 + input % 4];
          upper = uint8_t(upper | (high >> (within / 32 * 2) & 3) << (2 * (input / 4)));
        }
        tile[record.own_at(8 * index + part / 2) + part % 2 * 16 + output] = block[192 + part];
      }
  }
}

// Rows of blocks [out, row bytes] become tiles; outputs behind the last are zeros.
static void pack_tile(int64_t type, const uint8_t* blocks, int64_t num_rows, int64_t in, uint8_t* tile) {
  const int64_t kind = kind_of(type), count = in / block_inputs(kind), row_bytes = count * block_bytes(type);
  memset(tile, 0, size_t(tile_bytes(kind, in)));
  for (int64_t index = 0; index < count; index++)
    for (int64_t row = 0; row < num_rows; row++)
      pack_block(type, blocks + row * row_bytes + index * block_bytes(type), int(row), index, tile);
}
