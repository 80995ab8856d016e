/* The two loops over a text in the UTF-8 dialect, several bytes at a time. No guard: sse_encode.c includes it once for each
 * group of functions in sse_simd.h, with LANES(name) naming them and these, LANES_WIDTH, LANES_SHIFT and LANES_TARGET.
 *
 * Each goes on from where the cursor stands as far as whole vectors of text are there, and leaves the rest.
 */

/* Adds up what the escapes add. */
LANES_TARGET static void LANES(measure)(cursor *at, size_t *extra) {
    const char *p = at->text;
    size_t sum = 0;
    for (; at->end - p >= LANES_WIDTH; p += LANES_WIDTH) sum += LANES(extra)(p);
    *extra += sum;
    at->text = p;
}

/* Stores vectors of text as they are, and at each byte that must be escaped its escape and once more what follows. Two
 * vectors of text are there, so that what follows is one too; each takes no less room than it is long. */
LANES_TARGET static void LANES(write)(cursor *at) {
    const char *p = at->text;
    char *out = at->out;
    for (; at->end - p >= 2 * LANES_WIDTH; p += LANES_WIDTH) {
        size_t written = 0;
        memcpy(out, p, LANES_WIDTH);
        for (uint64_t mask = LANES(mask)(p); mask != 0; mask &= mask - 1) {
            const size_t dirty = (size_t)__builtin_ctzll(mask) >> LANES_SHIFT;
            out = store_escape(out + (dirty - written), p[dirty]);
            written = dirty + 1;
            memcpy(out, p + written, LANES_WIDTH);
        }
        out += LANES_WIDTH - written;
    }
    at->text = p;
    at->out = out;
}

#undef LANES
#undef LANES_WIDTH
#undef LANES_SHIFT
#undef LANES_TARGET
