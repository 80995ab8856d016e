/* Runs a fuzz target over the inputs that are kept for it, each in a file of corpus/NAME. Included after the target. */
#ifndef TAILWATCH_TESTS_C_FUZZ_CORPUS_H
#define TAILWATCH_TESTS_C_FUZZ_CORPUS_H

#include <dirent.h>

#include "tw_test.h"

#define CORPUS_INPUT_MAX 65536

static inline void corpus_run_file(const char *path) {
    static uint8_t bytes[CORPUS_INPUT_MAX];
    FILE *file = fopen(path, "rb");
    TW_REQUIRE(file != NULL);
    const size_t size = fread(bytes, 1, sizeof bytes, file);
    TW_CHECK(feof(file) != 0 || size < sizeof bytes);
    fclose(file);
    TW_CHECK_EQ(0, LLVMFuzzerTestOneInput(bytes, size));
}

/* A broken property aborts. Returns how many inputs there were. */
static inline size_t corpus_run(const char *name) {
    char path[4096];
    size_t inputs = 0;
    snprintf(path, sizeof path, "%s/../corpus/%s", TW_TEST_DATA, name);
    DIR *directory = opendir(path);
    TW_REQUIRE(directory != NULL);
    const size_t at = strlen(path);
    for (const struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        if (entry->d_name[0] == '.') continue;
        snprintf(path + at, sizeof path - at, "/%s", entry->d_name);
        corpus_run_file(path);
        inputs++;
    }
    closedir(directory);
    return inputs;
}

#endif
