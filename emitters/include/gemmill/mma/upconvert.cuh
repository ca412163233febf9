/// Upconverts narrow weights to pairs of 16-bit floats, in registers and exactly.
///
/// The bits of an integer become the low mantissa bits of a float whose exponent gives those bits the weight 1 (the
/// "magic number"). Subtracting the magic number leaves the value (Kim et al., "Who Says Elephants Can't Run", 2022;
/// FasterTransformer; Frantar et al., "MARLIN", 2024). A bf16 mantissa has 7 bits, one too few for bytes. There the
/// sign bit, or bit 7, becomes the lowest exponent bit of a second magic number, 128 or 256.
#pragma once

#include <gemmill/copy/shared.cuh>

namespace gemmill {

// Arithmetic on pairs of 16-bit floats. The rounding modifier prevents contraction to fma (PTX ISA, `sub`).
#define GEMMILL_PAIR_ARITHMETIC(NAME)                                                       \
  __device__ inline uint32_t NAME##_pair(bf16, uint32_t a, uint32_t b) {                    \
    uint32_t result;                                                                        \
    asm(#NAME ".rn.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));                    \
    return result;                                                                          \
  }                                                                                         \
  __device__ inline uint32_t NAME##_pair(f16, uint32_t a, uint32_t b) {                     \
    uint32_t result;                                                                        \
    asm(#NAME ".rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));                     \
    return result;                                                                          \
  }
GEMMILL_PAIR_ARITHMETIC(add)
GEMMILL_PAIR_ARITHMETIC(sub)
GEMMILL_PAIR_ARITHMETIC(mul)
#undef GEMMILL_PAIR_ARITHMETIC

/// A float in both halves of a word. From this `mov`, and from no byte permutation, ptxas makes an operand that reads a
/// half twice.
template <class Wide>
__device__ inline uint32_t both(Wide value) {
  uint32_t result;
  asm("mov.b32 %0, {%1, %1};" : "=r"(result) : "h"(value.bits));
  return result;
}

/// (bits & mask) ^ magic in one instruction. The compiler would use two, each with an immediate operand.
__device__ inline uint32_t masked(uint32_t bits, uint32_t mask, uint32_t magic) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(result) : "r"(bits), "r"(mask), "r"(magic));
  return result;
}

/// Upconverts elements 2 * quad and 2 * quad + 1 of eight adjacent `Narrow` elements to a pair of `Wide`.
///
/// `select(quad)` is the byte permutation that picks a lane's two elements; it is the same for all fragments of the
/// lane. `pair` takes the words that hold the eight elements; for 4-bit elements it ignores `high`.
template <class Narrow, class Wide>
struct Upconvert;

/// Puts bytes 2 * quad and 2 * quad + 1 into bytes 0 and 2.
struct SelectBytes {
  __device__ static uint32_t select(int quad) { return 0x0100 * (2 * quad + 1) + 2 * quad; }
};

template <>
struct Upconvert<int8_t, f16> : SelectBytes {
  __device__ static uint32_t pair(uint32_t low, uint32_t high, uint32_t select) {
    // 1024 + (value + 128)
    return sub_pair(f16{}, masked(__byte_perm(low, high, select), 0x00ff00ff, 0x64806480), 0x64806480);
  }
};

template <>
struct Upconvert<uint8_t, f16> : SelectBytes {
  __device__ static uint32_t pair(uint32_t low, uint32_t high, uint32_t select) {
    return sub_pair(f16{}, masked(__byte_perm(low, high, select), 0x00ff00ff, 0x64006400), 0x64006400);
  }
};

template <>
struct Upconvert<int8_t, bf16> : SelectBytes {
  __device__ static uint32_t pair(uint32_t low, uint32_t high, uint32_t select) {
    uint32_t const bytes = __byte_perm(low, high, select);
    // (128 + low 7 bits) - (128, or 256 where the value is negative)
    return sub_pair(bf16{}, masked(bytes, 0x007f007f, 0x43004300), masked(bytes, 0x00800080, 0x43004300));
  }
};

template <>
struct Upconvert<uint8_t, bf16> : SelectBytes {
  __device__ static uint32_t pair(uint32_t low, uint32_t high, uint32_t select) {
    uint32_t const bytes = __byte_perm(low, high, select);
    // (128 + low 7 bits) + (-128, or 0 where bit 7 is set)
    uint32_t const top = sub_pair(bf16{}, masked(bytes, 0x00800080, 0x43004300), 0x43804380);
    return add_pair(bf16{}, masked(bytes, 0x007f007f, 0x43004300), top);
  }
};

template <>
struct Upconvert<e4m3, f16> {
  /// Puts the two bytes side by side.
  __device__ static uint32_t select(int quad) { return 0x10 * (2 * quad + 1) + 2 * quad; }
  __device__ static uint32_t pair(uint32_t low, uint32_t high, uint32_t select) {
    uint32_t values;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(values) : "h"(uint16_t(__byte_perm(low, high, select))));
    return values;
  }
};

template <>
struct Upconvert<e5m2, f16> {
  /// Puts the bytes into bytes 1 and 3: an e5m2 is the upper half of an f16.
  __device__ static uint32_t select(int quad) { return 0x1000 * (2 * quad + 1) + 0x10 * (2 * quad); }
  __device__ static uint32_t pair(uint32_t low, uint32_t high, uint32_t select) {
    return __byte_perm(low, high, select) & 0xff00ff00;
  }
};

/// fp8 to bf16, through f16 and f32.
template <class Narrow>
struct UpconvertHalves : Upconvert<Narrow, f16> {
  __device__ static uint32_t pair(uint32_t low, uint32_t high, uint32_t select) {
    uint32_t const halves = Upconvert<Narrow, f16>::pair(low, high, select);
    return pack(bf16{}, to_float(f16{uint16_t(halves)}), to_float(f16{uint16_t(halves >> 16)}));
  }
};

template <>
struct Upconvert<e4m3, bf16> : UpconvertHalves<e4m3> {};
template <>
struct Upconvert<e5m2, bf16> : UpconvertHalves<e5m2> {};

/// 4 bits to f16: 1024 + low nibble, and 1024 + 16 * high nibble, because the high nibble lies 4 bits further up.
template <uint32_t Flip, uint32_t Magic>
struct UpconvertNibbles {
  /// Replicates byte `quad` four times.
  __device__ static uint32_t select(int quad) { return 0x1111 * quad; }
  __device__ static uint32_t pair(uint32_t low, uint32_t, uint32_t select) {
    uint32_t const nibbles = masked(__byte_perm(low, 0, select), 0x00f0000f, Flip);
    uint32_t values;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(values) : "r"(nibbles), "r"(0x2c003c00), "r"(Magic));  // times 1, 1/16
    return values;
  }
};

template <>
struct Upconvert<u4, f16> : UpconvertNibbles<0x64006400, 0xd400e400> {};  // minus 1024, 64
template <>
struct Upconvert<s4, f16> : UpconvertNibbles<0x64806408, 0xd480e408> {};  // minus 1024 + 8, 64 + 8

/// 4 bits to bf16. As a subnormal bf16, the low nibble of a byte is 2^-133 times its value, the high one 2^-129 times. One
/// fma makes that 2^-6 times the value, and adds `more`, by default 2^-6 of an offset.
template <uint32_t Flip, uint16_t Offset>
struct UpconvertNibblesDown {
  /// Replicates byte `quad` four times.
  __device__ static uint32_t select(int quad) { return 0x1111 * quad; }
  __device__ static uint32_t pair(uint32_t low, uint32_t, uint32_t select, bf16 more = {Offset}) {
    uint32_t const nibbles = masked(__byte_perm(low, low, select), 0x00f0000f, Flip);
    uint32_t values;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(values) : "r"(nibbles), "r"(0x7d007f00), "r"(both(more)));
    return values;  // times 2^127, 2^123
  }
};

template <>
struct Upconvert<u4, bf16> : UpconvertNibblesDown<0, 0x8000> {};
template <>
struct Upconvert<s4, bf16> : UpconvertNibblesDown<0x00800008, 0xbe00> {};  // minus 2^-6 * 8

/// Whether pairs that come from `Narrow` are 2^-6 times the values.
template <class Narrow, class Wide>
inline constexpr bool kIsDown =
    cute::is_same_v<Wide, bf16> && (cute::is_same_v<Narrow, u4> || cute::is_same_v<Narrow, s4>);
/// 2^6 and 2^-6.
inline constexpr bf16 kUp{0x4280}, kDown{0x3c80};
__device__ inline bf16 times(bf16 a, bf16 b) {
  asm("mul.rn.bf16 %0, %0, %1;" : "+h"(a.bits) : "h"(b.bits));
  return a;
}

/// The bytes of a table of eight that the low three bits of four nibbles select. Where bit 3 of a nibble is set, it is the
/// sign of that byte eight times (PTX ISA, "prmt"); `__byte_perm` ignores bit 3.
__device__ inline uint32_t looked_up(uint32_t low, uint32_t high, uint32_t nibbles) {
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(nibbles));
  return bytes;
}

/// Upconverts elements 4 * quad to 4 * quad + 3 of 16 adjacent 4-bit `Narrow` elements to four e4m3, exactly.
template <class Narrow>
struct UpconvertBytes;

template <>
struct UpconvertBytes<s4> {
  /// Puts bytes 2 * quad and 2 * quad + 1 into the low half.
  uint32_t select;
  /// 0 to 3; and -8 to -5, shifted to the right by one, which loses no bit and makes bit 7 zero.
  uint32_t positive, negative;

  __device__ explicit UpconvertBytes(int quad) : select(0x0010 + 0x0022 * quad) {
    // ptxas would copy a constant to a register for each use. It does not see that this is 0 in every lane.
    uint32_t lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    uint32_t const zero = (lane ^ threadIdx.x) & 3;
    positive = 0x44403800 + zero;
    negative = 0x65666768 + zero;
  }

  __device__ uint32_t operator()(uint32_t low, uint32_t high) const {
    uint32_t const nibbles = __byte_perm(low, high, select);
    return looked_up(negative, 0x5c606264, nibbles ^ 0x8888) * 2 + looked_up(positive, 0x4e4c4a48, nibbles);
  }
};

/// What a lane reads of 16 bytes of a row: all of them.
template <class Narrow>
struct Chunk {
  uint32_t words[5];

  /// Where a lane begins to read.
  __device__ static int offset(int) { return 0; }
  template <class Wide>
  __device__ static uint32_t select(int quad) { return Upconvert<Narrow, Wide>::select(quad); }

  /// `address` is a shared one.
  __device__ explicit Chunk(uint32_t address) {
    uint4 const packed = load_shared<uint4>(address);
    words[0] = packed.x, words[1] = packed.y, words[2] = packed.z, words[3] = packed.w, words[4] = 0;
  }

  /// The lane's pair of eight adjacent elements, the first of which is element 8 * `eight` of the chunk.
  template <class Wide>
  __device__ uint32_t pair(int eight, uint32_t select) const {
    constexpr int kWords = bits_of<Narrow> / 4;
    return Upconvert<Narrow, Wide>::pair(words[eight * kWords], words[eight * kWords + 1], select);
  }
  /// The same minus a zero point, which is as far down.
  template <class Wide>
  __device__ uint32_t pair(int eight, uint32_t select, Wide zero) const {
    if constexpr (cute::is_same_v<Narrow, u4> && cute::is_same_v<Wide, bf16>) {
      return Upconvert<Narrow, Wide>::pair(words[eight], 0, select, {uint16_t(zero.bits ^ 0x8000)});
    } else {
      return sub_pair(zero, pair<Wide>(eight, select), both(zero));
    }
  }
};

/// The order of fragments (library/e2m1.py): word `quad` of 16 bytes holds the pairs of one lane, numbers 8 * i + 2 *
/// quad in its low half and their successors in its high half. In each half, number i has these bits:
///
///   i                     0        1        2                          3
///   magnitude, low first  6, 7, 8  0, 1, 2  10, 11, 12                 4, 5, 14
///   sign                  15       9        3, of the other half       13
template <>
struct Chunk<e2m1> {
  uint32_t word;

  __device__ static int offset(int quad) { return 4 * quad; }
  template <class Wide>
  __device__ static uint32_t select(int) { return 0; }

  __device__ explicit Chunk(uint32_t address) : word(load_shared<uint32_t>(address)) {}

  /// Moves the sign to the sign of a `Wide`, and the two bits of the exponent and the fraction to the lowest bits of its
  /// exponent and the highest of its fraction. As a subnormal or normal `Wide` that is the value times 2^(1 - bias). The
  /// multiplication by the scale also multiplies by 2^(bias - 1), and is exact. For bf16, most shifts move all bits.
  template <class Wide>
  __device__ uint32_t pair(int i, uint32_t) const {
    uint32_t const turned = __funnelshift_r(word, word, 4);
    if constexpr (cute::is_same_v<Wide, bf16>) {
      switch (i) {
        case 0: return word & 0x81c081c0;
        case 1: return word << 6 & 0x81c081c0;
        case 2: return turned & 0x81c081c0;
        default: return (word << 2 & 0x80c080c0) | (word >> 6 & 0x01000100);
      }
    } else {
      switch (i) {
        case 0: return (word << 3 & 0x0e000e00) | (word & 0x80008000);
        case 1: return (word << 9 & 0x0e000e00) | (word << 6 & 0x80008000);
        case 2: return (word >> 1 & 0x0e000e00) | (turned & 0x80008000);
        default: return (word << 5 & 0x06000600) | (word >> 3 & 0x08000800) | (word << 2 & 0x80008000);
      }
    }
  }
};

}  // namespace gemmill
