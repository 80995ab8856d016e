/* Names of an enumeration's values. Private. */
#pragma once

/* Defines const char *function(int index): one name for each of the values below count, "unknown" for any other. */
#define TW_NAMES(function, count, ...)                                                             \
    const char *function(int index) {                                                              \
        static const char *const names[] = {__VA_ARGS__};                                          \
        _Static_assert(sizeof names / sizeof *names == (count), "a name for each value");          \
        return index >= 0 && index < (int)(count) ? names[index] : "unknown";                      \
    }
