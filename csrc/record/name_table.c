#include "tailwatch/record/name_table.h"

#include <stdbool.h>
#include <string.h>

#include "base/arithmetic.h"
#include "base/text.h"
#include "tailwatch/base/atomic.h"

/* An entry's place follows from its hash. A writer takes a free entry by exchanging its hash 0 for TAKEN, writes the
 * text and stores the hash last. An entry that stays TAKEN (its writer was killed) is passed over for ever. */

#define NO_NAME 0
#define OTHER 1
#define FIRST 2
#define TAKEN UINT64_C(1)

static bool take(uint64_t *hash) {
    uint64_t expected = 0;
    return __atomic_compare_exchange_n(hash, &expected, TAKEN, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

/* Bytes that are no UTF-8, and control characters, become '?'. */
static size_t clean(const char *text, size_t len, char to[TW_NAME_TEXT]) {
    const unsigned char *from = (const unsigned char *)text;
    size_t n = 0;
    memset(to, 0, TW_NAME_TEXT);
    for (size_t i = 0; i < len;) {
        const size_t bytes = tw_utf8_length(from + i, len - i);
        if (n + most(bytes, 1) > TW_NAME_TEXT - 1) break;
        if (bytes == 0 || from[i] < ' ' || from[i] == 0x7f) to[n++] = '?';
        else memcpy(to + n, from + i, bytes), n += bytes;
        i += most(bytes, 1);
    }
    return n;
}

static void read_entry(const tw_name_entry *e, char text[TW_NAME_TEXT]) {
    for (size_t i = 0; i < TW_NAME_TEXT / 8; i++) {
        const uint64_t word = tw_load(&e->text[i]);
        memcpy(text + 8 * i, &word, 8);
    }
}

static void write_entry(tw_name_entry *e, const char text[TW_NAME_TEXT], uint64_t hash) {
    for (size_t i = 0; i < TW_NAME_TEXT / 8; i++) {
        uint64_t word;
        memcpy(&word, text + 8 * i, 8);
        tw_store(&e->text[i], word);
    }
    tw_store_release(&e->hash, hash);
}

static uint64_t hash_of(const char *text, size_t n) { return most(tw_text_hash(text, n), TAKEN + 1); }

/* The number of a name that is there, or is added; NO_NAME: neither. */
static uint32_t number_of(tw_name_table *t, const char text[TW_NAME_TEXT], size_t n, bool adds) {
    const uint64_t hash = hash_of(text, n);
    for (uint32_t probe = 0; probe < TW_NAME_ENTRIES - FIRST; probe++) {
        const uint32_t number = FIRST + (uint32_t)((hash + probe) % (TW_NAME_ENTRIES - FIRST));
        tw_name_entry *e = &t->entry[number];
        const uint64_t found = tw_load_acquire(&e->hash);
        if (found == hash) return number;
        if (found == 0 && !adds) return NO_NAME;
        if (found != 0 || !take(&e->hash)) continue;
        __atomic_fetch_add(&t->claimed, 1, __ATOMIC_RELAXED);
        write_entry(e, text, hash);
        return number;
    }
    return NO_NAME;
}

/* A place in the code without caller, system call and line, where something is left. Returns its length. */
static size_t shorten(char text[TW_NAME_TEXT]) {
    if (strstr(text, "  ") == NULL) return strlen(text);
    char *end = strstr(text, "  <- "), *call = strstr(text, "  [");
    if (end == NULL || (call != NULL && call < end)) end = call;
    if (end == NULL) end = text + strlen(text);
    char *line = end;
    while (line > text && line[-1] >= '0' && line[-1] <= '9') line--;
    if (line < end && line > text && line[-1] == ':') end = line - 1;
    if (end == text) return strlen(text);
    memset(end, 0, (size_t)(text + TW_NAME_TEXT - end));
    return (size_t)(end - text);
}

static uint32_t intern(tw_name_table *t, const char *text, size_t len, bool whole) {
    char cleaned[TW_NAME_TEXT];
    const size_t n = clean(text, len, cleaned);
    if (n == 0) return NO_NAME;
    uint32_t number = number_of(t, cleaned, n, whole);
    if (number == NO_NAME && !whole) number = number_of(t, cleaned, shorten(cleaned), true);
    if (number != NO_NAME) return number;
    __atomic_fetch_add(&t->overflow, 1, __ATOMIC_RELAXED);
    return OTHER;
}

uint32_t tw_name_intern(tw_name_table *t, const char *text, size_t len) {
    return intern(t, text, len, tw_load(&t->claimed) < TW_NAME_WHOLE);
}

uint32_t tw_name_intern_whole(tw_name_table *t, const char *text, size_t len) { return intern(t, text, len, true); }

void tw_name_share(tw_name_table *to, const tw_name_table *from, uint32_t number) {
    char text[TW_NAME_TEXT];
    if (number < FIRST || number >= TW_NAME_ENTRIES || tw_load(&to->entry[number].hash) > TAKEN) return;
    const uint64_t hash = tw_load_acquire(&from->entry[number].hash);
    if (hash <= TAKEN) return;
    read_entry(&from->entry[number], text);
    write_entry(&to->entry[number], text, hash);
}

void tw_name_copy(const tw_name_table *t, uint32_t number, char *to, size_t size) {
    char text[TW_NAME_TEXT] = "other";
    if (size == 0) return;
    if (number >= FIRST && number < TW_NAME_ENTRIES && tw_load_acquire(&t->entry[number].hash) > TAKEN)
        read_entry(&t->entry[number], text);
    size_t n = number == NO_NAME ? 0 : strnlen(text, TW_NAME_TEXT - 1);
    if (n > size - 1)
        for (n = size - 1; n > 0 && tw_utf8_continues((unsigned char)text[n]);) n--;
    memcpy(to, text, n);
    to[n] = '\0';
}
