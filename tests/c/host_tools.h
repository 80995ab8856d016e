/* A host and the pauses of its process, made anew around each test. */
#pragma once

#include "tailwatch/record/host_track.h"
#include "tailwatch/record/pause_clock.h"

#include "tw_test.h"

static tw_host *host;
static tw_pause_clock *pauses;

static void begin(void) {
    host = calloc(1, sizeof *host);
    pauses = calloc(1, sizeof *pauses);
    TW_REQUIRE(host != NULL && pauses != NULL);
    host->facts.fault_ns = 4000;
}

static void end(void) {
    free(host);
    free(pauses);
}

TW_AROUND(begin, end)
