/* Streams tokens at a pace, cheaply: what load clients are measured against.
 *
 *     cc -O2 -o token_server token_server.c && ./token_server [-i US] [-n TOKENS] [-s FILE] [-c]
 *
 * Prints its port on 127.0.0.1 and serves until its standard input is closed. Any POST is answered by a chunked
 * text/event-stream in the shape of OpenAI's completions: a token every -i us, "max_tokens" of them (-n where the body
 * does not say), each in a write of its own with TCP_NODELAY, then a usage event and [DONE]. GET /stats tells what was
 * sent. With -s every answer's write stamps (CLOCK_MONOTONIC, taken just before the write) are appended to FILE: u64
 * "seed" of the request, u64 n, n times u64. With -c it catches up: the tokens of a stream that are due by now go out in
 * one write (8 at most). A write costs this core about what a read costs the client's: without -c a fast client would be
 * measured at this generator's speed, not at its own.
 *
 * One thread, epoll. All streams have the same pace, so who is due next stands at the head of a queue.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define REQUEST_MAX 65536
#define TOKEN_MAX 256
#define WRITE_MAX 8 /* tokens */
#define PENDING_MAX 4096
#define CONNECTIONS 65536

typedef struct stream {
    int fd;
    bool busy, queued, ended;         /* answers; is in the queue; all of its answer was written, or waits to be */
    struct stream *next;              /* in the queue, and among those let go */
    uint64_t due_ns, seed, sent, tokens;
    uint64_t *stamp;                  /* NULL: not wanted */
    size_t have, pending, pending_at; /* bytes of the request; bytes of a write that found no room */
    char pending_bytes[PENDING_MAX];
    char request[REQUEST_MAX];
} stream;

static uint64_t interval_ns = 5000000, default_tokens = 64;
static uint64_t tokens_sent, answers_sent, blocked, delay_max_ns;
static stream *head, *tail, *spare;
static FILE *stamps;
static int poll_fd, timer_fd;
static bool catch_up;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

/* ---- the queue: ascending in due_ns; where streams catch up, within an interval ---- */

static void enqueue(stream *s, uint64_t due_ns) {
    s->due_ns = due_ns;
    s->next = NULL;
    s->queued = true;
    if (tail != NULL) tail->next = s;
    else head = s;
    tail = s;
}

static stream *dequeue(void) {
    stream *s = head;
    head = s->next;
    if (head == NULL) tail = NULL;
    s->queued = false;
    return s;
}

static void arm(void) {
    struct itimerspec at = {{0, 0}, {0, 0}};
    if (head != NULL) {
        const uint64_t due = head->due_ns > 0 ? head->due_ns : 1;
        at.it_value.tv_sec = (time_t)(due / 1000000000u);
        at.it_value.tv_nsec = (long)(due % 1000000000u);
    }
    if (timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &at, NULL) < 0) fail("timerfd_settime");
}

/* ---- connections ---- */

static void end_stream(stream *s) {
    if (s->fd >= 0) close(s->fd);
    s->fd = -1;
    free(s->stamp);
    s->stamp = NULL;
    s->busy = false;
    if (s->queued) return; /* found there when it is due */
    s->next = spare;
    spare = s;
}

/* Whether nothing waits in front of the next write. */
static bool flushed(stream *s) {
    if (s->pending == 0) return true;
    const ssize_t n = send(s->fd, s->pending_bytes + s->pending_at, s->pending, MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN) return end_stream(s), false;
    if (n > 0) s->pending -= (size_t)n, s->pending_at += (size_t)n;
    return s->pending == 0;
}

static void keep_pending(stream *s, const char *bytes, size_t len) {
    memmove(s->pending_bytes, s->pending_bytes + s->pending_at, s->pending);
    s->pending_at = 0;
    if (s->pending + len > PENDING_MAX) {
        end_stream(s);
        return;
    }
    memcpy(s->pending_bytes + s->pending, bytes, len);
    s->pending += len;
    blocked++;
}

/* Writes them now, or when there is room. */
static void push(stream *s, const char *bytes, size_t len) {
    const ssize_t n = flushed(s) ? send(s->fd, bytes, len, MSG_NOSIGNAL) : 0;
    if (s->fd < 0 || n == (ssize_t)len) return;
    if (n < 0 && errno != EAGAIN) end_stream(s);
    else keep_pending(s, bytes + (n > 0 ? n : 0), len - (size_t)(n > 0 ? n : 0));
}

static size_t chunk(char *to, const char *body) { return (size_t)sprintf(to, "%zx\r\n%s\r\n", strlen(body), body); }

static void keep_stamps(stream *s) {
    const uint64_t header[2] = {s->seed, s->sent};
    if (s->stamp == NULL) return;
    fwrite(header, sizeof header, 1, stamps);
    fwrite(s->stamp, sizeof *s->stamp, s->sent, stamps);
    free(s->stamp);
    s->stamp = NULL;
}

static void finish(stream *s) {
    char body[256], bytes[1024];
    snprintf(body, sizeof body,
             "data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1,\"model\":\"m\",\"choices\":[],"
             "\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":%llu}}\n\n", (unsigned long long)s->sent);
    size_t len = chunk(bytes, body);
    len += chunk(bytes + len, "data: [DONE]\n\n");
    memcpy(bytes + len, "0\r\n\r\n", 5);
    answers_sent++;
    s->ended = true;
    keep_stamps(s);
    push(s, bytes, len + 5);
}

static size_t token(stream *s, char *bytes) {
    char body[TOKEN_MAX];
    const uint64_t at = now_ns();
    snprintf(body, sizeof body,
             "data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,"
             "\"text\":\" %llu\",\"logprobs\":null,\"finish_reason\":null}]}\n\n", (unsigned long long)(at % 100000));
    if (s->stamp != NULL) s->stamp[s->sent] = at;
    s->sent++;
    tokens_sent++;
    return chunk(bytes, body);
}

/* The tokens due, and when the next one is. */
static uint64_t tokens_due(stream *s, uint64_t due, uint64_t now) {
    char bytes[WRITE_MAX * (TOKEN_MAX + 16)];
    size_t len = 0;
    int n = 0;
    do {
        len += token(s, bytes + len);
        due += interval_ns;
    } while (catch_up && ++n < WRITE_MAX && due <= now && s->sent < s->tokens);
    push(s, bytes, len);
    return due;
}

/* When it is due again. */
static uint64_t serve(stream *s, uint64_t due, uint64_t now) {
    if (!flushed(s)) return due + interval_ns;
    if (s->sent < s->tokens) due = tokens_due(s, due, now);
    if (s->fd >= 0 && s->sent == s->tokens && !s->ended) finish(s);
    return due;
}

static void read_on(stream *s);

static void serve_due(void) {
    const uint64_t now = now_ns();
    while (head != NULL && head->due_ns <= now) {
        stream *s = dequeue();
        const uint64_t due = s->due_ns;
        if (s->fd < 0) {
            end_stream(s);
            continue;
        }
        if (now - due > delay_max_ns) delay_max_ns = now - due;
        const uint64_t next = serve(s, due, now);
        if (s->fd < 0) continue;
        if (s->ended && s->pending == 0) s->busy = false, read_on(s);
        else enqueue(s, next);
    }
}

/* ---- requests ---- */

static uint64_t number_after(const char *text, const char *key, uint64_t otherwise) {
    const char *at = strstr(text, key);
    if (at == NULL) return otherwise;
    at += strlen(key);
    while (*at == ' ' || *at == ':') at++;
    return strtoull(at, NULL, 10);
}

static void answer_json(stream *s, const char *body) {
    char bytes[512];
    push(s, bytes, (size_t)snprintf(bytes, sizeof bytes, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s", strlen(body), body));
}

static void answer_stats(stream *s) {
    char body[256];
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    const double cpu = (double)used.ru_utime.tv_sec + (double)used.ru_stime.tv_sec +
                       (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    snprintf(body, sizeof body, "{\"tokens\":%llu,\"answers\":%llu,\"blocked\":%llu,\"late_max_ms\":%.3f,\"cpu\":%.3f}",
                             (unsigned long long)tokens_sent, (unsigned long long)answers_sent, (unsigned long long)blocked,
                             (double)delay_max_ns / 1e6, cpu);
    delay_max_ns = 0;
    answer_json(s, body);
}

static void begin_answer(stream *s, const char *body) {
    static const char start[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    s->tokens = number_after(body, "\"max_tokens\"", default_tokens);
    s->seed = number_after(body, "\"seed\"", 0);
    s->sent = 0;
    s->busy = true;
    s->ended = false;
    if (s->tokens == 0) s->tokens = 1;
    s->stamp = stamps != NULL ? malloc(s->tokens * sizeof *s->stamp) : NULL;
    push(s, start, sizeof start - 1);
    if (s->fd >= 0) enqueue(s, now_ns() + interval_ns);
}

/* A whole request at the start of the buffer; what is behind it stays. */
static bool take_request(stream *s) {
    s->request[s->have] = '\0';
    char *end = strstr(s->request, "\r\n\r\n");
    if (end == NULL || s->busy) return false;
    *end = '\0';
    for (char *p = s->request; *p != '\0'; p++)
        if (*p >= 'A' && *p <= 'Z') *p = (char)(*p + 32);
    const size_t whole = (size_t)(end + 4 - s->request) + number_after(s->request, "content-length", 0);
    const bool get = strncmp(s->request, "get ", 4) == 0, stats = strncmp(s->request, "get /stats", 10) == 0;
    *end = '\r';
    if (s->have < whole) return false;
    if (stats) answer_stats(s);
    else if (get) answer_json(s, "{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"object\":\"model\",\"root\":\"m\"}]}");
    else begin_answer(s, end + 4);
    if (s->fd < 0) return false;
    memmove(s->request, s->request + whole, s->have - whole);
    s->have -= whole;
    return true;
}

/* What came while it was busy. */
static void read_on(stream *s) {
    while (s->fd >= 0 && s->have > 0 && take_request(s)) continue;
}

static void read_request(stream *s) {
    const ssize_t n = recv(s->fd, s->request + s->have, REQUEST_MAX - 1 - s->have, 0);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
        end_stream(s);
        return;
    }
    s->have += (size_t)n;
    read_on(s);
}

static stream *new_stream(int fd) {
    stream *s = spare;
    if (s != NULL) spare = s->next;
    else s = malloc(sizeof *s);
    if (s == NULL) fail("malloc");
    memset(s, 0, offsetof(stream, pending_bytes));
    s->fd = fd;
    return s;
}

static void accept_all(int listening) {
    for (;;) {
        const int fd = accept4(listening, NULL, NULL, SOCK_NONBLOCK), on = 1;
        if (fd < 0) return;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = new_stream(fd)};
        if (epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &event) < 0) fail("epoll_ctl");
    }
}

static int listen_somewhere(void) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), on = 1;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&at, size) < 0 || listen(fd, 4096) < 0) fail("listen");
    if (getsockname(fd, (struct sockaddr *)&at, &size) < 0) fail("getsockname");
    printf("%d\n", ntohs(at.sin_port));
    fflush(stdout);
    return fd;
}

static void options(int argc, char **argv) {
    for (int c; (c = getopt(argc, argv, "i:n:s:c")) != -1;) switch (c) {
        case 'i': interval_ns = strtoull(optarg, NULL, 10) * 1000; break;
        case 'n': default_tokens = strtoull(optarg, NULL, 10); break;
        case 's': if ((stamps = fopen(optarg, "wb")) == NULL) fail(optarg); break;
        case 'c': catch_up = true; break;
        default: exit(2);
        }
}

static void watch(int fd, void *who) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = who};
    if (epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &event) < 0) fail("epoll_ctl");
}

int main(int argc, char **argv) {
    static int listening_mark, timer_mark, input_mark;
    struct epoll_event event[512];
    options(argc, argv);
    poll_fd = epoll_create1(0);
    timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    const int listening = listen_somewhere();
    watch(listening, &listening_mark);
    watch(timer_fd, &timer_mark);
    watch(STDIN_FILENO, &input_mark);
    for (;;) {
        arm();
        const int n = epoll_wait(poll_fd, event, 512, -1);
        for (int i = 0; i < n; i++) {
            if (event[i].data.ptr == &input_mark) {
                if (stamps != NULL) fclose(stamps);
                return 0;
            }
            if (event[i].data.ptr == &listening_mark) accept_all(listening);
            else if (event[i].data.ptr != &timer_mark) read_request(event[i].data.ptr);
        }
        serve_due();
    }
}
