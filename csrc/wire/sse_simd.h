/* Which bytes of a text a JSON string must escape, several at a time. Three groups of functions of one form, for
 * sse_lanes.h: tw_word_ (8 bytes, everywhere), tw_vector_ (16: SSE2, NEON) and tw_wide_ (32: AVX2).
 *
 *     mask(p)     bit i << SHIFT for each byte p[i] that must be escaped: '"', '\\' and those below 0x20
 *     extra(p)    how many bytes their escapes add: 5 for \u00xx, 1 for the others
 *
 * Bytes from 0x80 on stand as they are: this is the UTF-8 dialect. -DTW_PORTABLE leaves only the words. Private to the
 * core; see sse_encode.h.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* ---- words of eight bytes, anywhere ---- */

#define TW_BYTES(byte) (UINT64_C(0x0101010101010101) * (byte))
#define TW_HIGH TW_BYTES(0x80)

/* The byte at p is the lowest. */
static inline uint64_t tw_word_at(const char *p) {
    uint64_t word;
    memcpy(&word, p, sizeof word);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

/* Not 0 if a byte of it must be escaped. The subtractions borrow only from a byte that must. */
static inline uint64_t tw_word_is_dirty(uint64_t word) {
    const uint64_t control = word - TW_BYTES(0x20);
    const uint64_t quote = (word ^ TW_BYTES('"')) - TW_BYTES(1), backslash = (word ^ TW_BYTES('\\')) - TW_BYTES(1);
    return (control | quote | backslash) & ~word & TW_HIGH;
}

/* The high bit of each byte that equals this one, and of each below; of no other. */
static inline uint64_t tw_word_equals(uint64_t word, uint8_t byte) {
    const uint64_t other = word ^ TW_BYTES(byte);
    return ~(((other & ~TW_HIGH) + ~TW_HIGH) | other) & TW_HIGH;
}
static inline uint64_t tw_word_below(uint64_t word, uint8_t limit) {
    return ~(((word & ~TW_HIGH) + TW_BYTES(0x80 - limit)) | word) & TW_HIGH;
}

#define TW_WORD_WIDTH 8
#define TW_WORD_SHIFT 3

static inline uint64_t tw_word_mask(const char *p) {
    const uint64_t word = tw_word_at(p);
    if (tw_word_is_dirty(word) == 0) return 0;
    return (tw_word_below(word, 0x20) | tw_word_equals(word, '"') | tw_word_equals(word, '\\')) >> 7;
}

static inline uint64_t tw_word_sum(uint64_t word) { return word * TW_BYTES(1) >> 56; }

static inline uint64_t tw_word_extra(const char *p) {
    const uint64_t word = tw_word_at(p);
    if (tw_word_is_dirty(word) == 0) return 0;
    const uint64_t control = tw_word_below(word, 0x20);
    const uint64_t quoted = tw_word_equals(word, '"') | tw_word_equals(word, '\\');
    const uint64_t named = (tw_word_below(word, 0x0e) & ~tw_word_below(word, 0x08)) & ~tw_word_equals(word, 0x0b);
    return tw_word_sum((control | quoted) >> 7 | (control & ~named) >> 5);
}

/* ---- SSE2: every x86-64 ---- */

#if !defined TW_PORTABLE && defined __x86_64__
#include <immintrin.h>

#define TW_VECTOR_WIDTH 16
#define TW_VECTOR_SHIFT 0

static inline __m128i tw_sse2_load(const char *p) { return _mm_loadu_si128((const __m128i *)p); }
static inline __m128i tw_sse2_equals(__m128i bytes, char byte) { return _mm_cmpeq_epi8(bytes, _mm_set1_epi8(byte)); }
static inline __m128i tw_sse2_up_to(__m128i bytes, char last) {
    return _mm_cmpeq_epi8(_mm_min_epu8(bytes, _mm_set1_epi8(last)), bytes);
}
static inline __m128i tw_sse2_quoted(__m128i bytes) {
    return _mm_or_si128(tw_sse2_equals(bytes, '"'), tw_sse2_equals(bytes, '\\'));
}

static inline uint64_t tw_vector_mask(const char *p) {
    const __m128i bytes = tw_sse2_load(p);
    return (uint32_t)_mm_movemask_epi8(_mm_or_si128(tw_sse2_up_to(bytes, 0x1f), tw_sse2_quoted(bytes)));
}

static inline uint64_t tw_vector_extra(const char *p) {
    const __m128i bytes = tw_sse2_load(p), control = tw_sse2_up_to(bytes, 0x1f);
    const __m128i from_8_to_13 = tw_sse2_up_to(_mm_sub_epi8(bytes, _mm_set1_epi8(8)), 5);
    const __m128i named = _mm_andnot_si128(tw_sse2_equals(bytes, 0x0b), from_8_to_13);
    const __m128i one = _mm_and_si128(_mm_or_si128(control, tw_sse2_quoted(bytes)), _mm_set1_epi8(1));
    const __m128i four = _mm_and_si128(_mm_andnot_si128(named, control), _mm_set1_epi8(4));
    const __m128i sums = _mm_sad_epu8(_mm_or_si128(one, four), _mm_setzero_si128());
    return (uint64_t)_mm_cvtsi128_si64(_mm_add_epi64(sums, _mm_unpackhi_epi64(sums, sums)));
}

/* ---- AVX2: where the processor has it ---- */

#define TW_WIDE_WIDTH 32
#define TW_WIDE_SHIFT 0
#define TW_WIDE_TARGET __attribute__((target("avx2,popcnt")))

static inline bool tw_wide_works(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt"); }

TW_WIDE_TARGET static inline __m256i tw_avx2_load(const char *p) { return _mm256_loadu_si256((const __m256i *)p); }
TW_WIDE_TARGET static inline __m256i tw_avx2_control(__m256i bytes) {
    return _mm256_cmpeq_epi8(_mm256_min_epu8(bytes, _mm256_set1_epi8(0x1f)), bytes);
}

/* The bytes with a two-byte escape, but for \f: each is the only one with its lower four bits, by which the table is
 * looked up (0 for bytes from 0x80 on). */
TW_WIDE_TARGET static inline __m256i tw_avx2_named(__m256i bytes) {
    const __m256i table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(-1, -1, '"', -1, -1, -1, -1, -1, '\b', '\t', '\n', -1, '\\', '\r', -1, -1));
    return _mm256_cmpeq_epi8(bytes, _mm256_shuffle_epi8(table, bytes));
}

TW_WIDE_TARGET static inline uint64_t tw_wide_mask(const char *p) {
    const __m256i bytes = tw_avx2_load(p);
    return (uint32_t)_mm256_movemask_epi8(_mm256_or_si256(tw_avx2_control(bytes), tw_avx2_named(bytes)));
}

TW_WIDE_TARGET static inline uint64_t tw_wide_extra(const char *p) {
    const __m256i bytes = tw_avx2_load(p), named = tw_avx2_named(bytes);
    const __m256i others = _mm256_andnot_si256(named, tw_avx2_control(bytes));
    if (__builtin_expect(_mm256_movemask_epi8(others) != 0, 0)) return tw_vector_extra(p) + tw_vector_extra(p + 16);
    return (uint64_t)__builtin_popcount((uint32_t)_mm256_movemask_epi8(named));
}

/* ---- NEON: every aarch64 ---- */

#elif !defined TW_PORTABLE && defined __aarch64__ && defined __ARM_NEON && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#include <arm_neon.h>

#define TW_VECTOR_WIDTH 16
#define TW_VECTOR_SHIFT 2

static inline uint8x16_t tw_neon_load(const char *p) { return vld1q_u8((const uint8_t *)p); }
static inline uint8x16_t tw_neon_equals(uint8x16_t bytes, uint8_t byte) { return vceqq_u8(bytes, vdupq_n_u8(byte)); }
static inline uint8x16_t tw_neon_up_to(uint8x16_t bytes, uint8_t last) { return vcleq_u8(bytes, vdupq_n_u8(last)); }
static inline uint8x16_t tw_neon_quoted(uint8x16_t bytes) {
    return vorrq_u8(tw_neon_equals(bytes, '"'), tw_neon_equals(bytes, '\\'));
}

/* Four bits for each byte, of which one is kept. */
static inline uint64_t tw_vector_mask(const char *p) {
    const uint8x16_t bytes = tw_neon_load(p), dirty = vorrq_u8(tw_neon_up_to(bytes, 0x1f), tw_neon_quoted(bytes));
    const uint8x8_t fours = vshrn_n_u16(vreinterpretq_u16_u8(dirty), 4);
    return vget_lane_u64(vreinterpret_u64_u8(fours), 0) & UINT64_C(0x1111111111111111);
}

static inline uint64_t tw_vector_extra(const char *p) {
    const uint8x16_t bytes = tw_neon_load(p), control = tw_neon_up_to(bytes, 0x1f);
    const uint8x16_t from_8_to_13 = tw_neon_up_to(vsubq_u8(bytes, vdupq_n_u8(8)), 5);
    const uint8x16_t named = vbicq_u8(from_8_to_13, tw_neon_equals(bytes, 0x0b));
    const uint8x16_t one = vandq_u8(vorrq_u8(control, tw_neon_quoted(bytes)), vdupq_n_u8(1));
    const uint8x16_t four = vandq_u8(vbicq_u8(control, named), vdupq_n_u8(4));
    return vaddlvq_u8(vorrq_u8(one, four));
}

#endif
