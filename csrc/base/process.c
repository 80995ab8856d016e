#include "tailwatch/base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"

static size_t read_file(const char *path, char *out, size_t room) {
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    const ssize_t got = read(file, out, room - 1);
    close(file);
    out[got > 0 ? got : 0] = '\0';
    return got > 0 ? (size_t)got : 0;
}

static char *put(char *out, const char *text) {
    const size_t len = strlen(text);
    memcpy(out, text, len + 1);
    return out + len;
}

/* "/proc/PID/task/PID/stat": of the first thread, with the numbers of /proc/PID/stat. For the latter qemu-user makes up a
 * start time of its own when a process reads it of itself, and others read the kernel's. */
static void stat_path(char *out, uint64_t pid) {
    char digits[21];
    size_t at = sizeof digits - 1;
    digits[at] = '\0';
    do digits[--at] = (char)('0' + pid % 10);
    while ((pid /= 10) > 0);
    out = put(out, "/proc/");
    out = put(out, digits + at);
    out = put(out, "/task/");
    out = put(out, digits + at);
    put(out, "/stat");
}

/* Where field 3, the state, begins: field 2, the command, may hold spaces and parentheses. */
static const char *after_command(const char *line) {
    const char *at = strrchr(line, ')');
    return at != NULL && at[1] == ' ' ? at + 2 : NULL;
}

static const char *next_field(const char *at) {
    at = at == NULL ? NULL : strchr(at, ' ');
    return at == NULL ? NULL : at + 1;
}

static uint64_t number(const char *at) {
    uint64_t n = 0;
    for (; at != NULL && *at >= '0' && *at <= '9'; at++) n = n * 10 + (uint64_t)(*at - '0');
    return n;
}

typedef struct process_state {
    bool zombie;          /* its first thread has ended */
    uint64_t threads, start_time;
} process_state;

/* false: it is not known. */
static bool state_of(uint64_t pid, process_state *out) {
    char path[64], line[1024];
    stat_path(path, pid);
    const char *at = read_file(path, line, sizeof line) > 0 ? after_command(line) : NULL;
    if (at == NULL) return false;
    out->zombie = *at == 'Z' || *at == 'X';
    for (int field = 3; field < 20; field++) at = next_field(at);
    out->threads = number(at);
    for (int field = 20; field < 22; field++) at = next_field(at);
    out->start_time = number(at);
    return at != NULL;
}

uint64_t tw_process_start_time(uint64_t pid) {
    process_state state;
    return state_of(pid, &state) && !state.zombie ? state.start_time : 0;
}

/* Where /proc hides processes, or no file can be opened, the signal that is none still shows whether there is one. */
bool tw_process_ended(uint64_t pid, uint64_t start_time) {
    process_state state;
    if (pid == 0 || pid > INT32_MAX) return false;
    if (kill((pid_t)pid, 0) != 0 && errno == ESRCH) return true;
    if (start_time == 0 || !state_of(pid, &state) || state.start_time == 0) return false;
    return state.start_time != start_time || (state.zombie && state.threads <= 1);
}

/* A container may have been given the /proc of its host: what stands there under our number is another process. */
static bool proc_is_ours(void) {
    char self[24];
    const ssize_t len = readlink("/proc/self", self, sizeof self - 1);
    if (len <= 0) return false;
    self[len] = '\0';
    return number(self) == (uint64_t)getpid();
}

uint64_t tw_process_namespace(void) {
    struct stat s;
    return proc_is_ours() && stat("/proc/self/ns/pid", &s) == 0 ? (uint64_t)s.st_ino : 0;
}

bool tw_process_lives(uint64_t pid, uint64_t start_time) {
    return start_time != 0 && tw_process_start_time(pid) == start_time;
}

/* The kernel's 16 random bytes for each program, mixed: they also seed what guards this program's stack. */
uint64_t tw_process_image(void) {
    const void *random = (const void *)(uintptr_t)getauxval(AT_RANDOM);
    uint64_t bytes[2] = {0, 0};
    if (random != NULL) memcpy(bytes, random, sizeof bytes);
    uint64_t mixed = bytes[0] ^ (bytes[1] << 31 | bytes[1] >> 33);
    for (int round = 0; round < 2; round++) mixed = (mixed ^ mixed >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
    return mixed ^ mixed >> 32;
}

void tw_boot_id(uint64_t id[2]) {
    char text[64];
    id[0] = id[1] = 0;
    if (read_file("/proc/sys/kernel/random/boot_id", text, sizeof text) == 0) return;
    int digits = 0;
    for (const char *c = text; *c != '\0' && digits < 32; c++) {
        const int digit = tw_hex_digit(*c);
        if (digit < 0) continue;
        id[digits / 16] = id[digits / 16] << 4 | (uint64_t)digit;
        digits++;
    }
}
