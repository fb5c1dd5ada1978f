// pairs: loads a broker with transactions: a half message, its answer, the commit, its answer, and anew.
// usage: pairs PORT CONNECTIONS SECONDS FIRST HALF COMMIT
// FIRST is the number of the first key. HALF is a file with the frame of a half message, whose key is KEY_MARK;
// COMMIT one with the header of a commit: %lld for the places in the half queue and in the log, and %s for the key.
// One line comes out: how many pairs, how many requests the broker was too busy for, and the microseconds of a
// pair, the median and what one in a hundred exceeds. Any other refusal ends it with status 1.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define KEY_MARK "7F0000014D2C18B4AAC2_PAIR_NO_XXX"
#define KEY_SIZE 32
#define BUFFER 65536
#define TIMES 8000000

typedef struct {
    int fd, is_half;
    double begun;
    char key[KEY_SIZE + 1];
    size_t received;
    char in[BUFFER];
} Link;

static char half[BUFFER], commit[BUFFER];
static size_t half_size, key_at;
static unsigned long long next_key;
static double *times;
static size_t count, refused;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static size_t read_file(const char *path, char *into) {
    FILE *file = fopen(path, "rb");
    if (!file) fail(path);
    size_t size = fread(into, 1, BUFFER - 1, file);
    fclose(file);
    into[size] = 0;
    return size;
}

static unsigned get32(const char *from) {
    unsigned raw;
    memcpy(&raw, from, 4);
    return ntohl(raw);
}

static void put32(char *to, unsigned value) {
    value = htonl(value);
    memcpy(to, &value, 4);
}

static void send_all(Link *link, const char *data, size_t size) {
    // One request is in flight, so there is room for it.
    if (send(link->fd, data, size, MSG_NOSIGNAL) != (ssize_t)size) fail("the broker takes no more");
}

static void begin(Link *link) {
    snprintf(link->key, sizeof link->key, "%032llX", next_key++);
    memcpy(half + key_at, link->key, KEY_SIZE);
    link->is_half = 1;
    link->begun = now();
    send_all(link, half, half_size);
}

static const char *value(const char *header, const char *name) {
    const char *found = strstr(header, name);
    if (!found) fail(header);
    return found + strlen(name);
}

static void answered(Link *link, char *header) {
    if (strncmp(header, "{\"code\":0,", 10)) {
        if (strncmp(header, "{\"code\":2,", 10)) fail(header);
        refused++;  // SYSTEM_BUSY, as Apache's says of what waited for 200 ms.
        begin(link);
    } else if (link->is_half) {
        char frame[2048], place[17] = "";
        memcpy(place, value(header, "\"msgId\":\"") + 16, 16);  // Behind the host.
        long long queue_offset = atoll(value(header, "\"queueOffset\":\""));
        int size = snprintf(frame + 8, sizeof frame - 8, commit, queue_offset, strtoll(place, 0, 16), link->key);
        put32(frame, 4 + size);
        put32(frame + 4, size);
        link->is_half = 0;
        send_all(link, frame, 8 + size);
    } else {
        if (count < TIMES) times[count] = now() - link->begun;
        count++;
        begin(link);
    }
}

static void receive(Link *link) {
    ssize_t got = recv(link->fd, link->in + link->received, BUFFER - 1 - link->received, 0);
    if (got <= 0) fail("the broker closed the connection");
    link->received += got;
    if (link->received < 8 || link->received < 4 + get32(link->in)) return;
    link->in[link->received] = 0;
    link->received = 0;
    answered(link, link->in + 8);
}

static int by_size(const void *one, const void *other) {
    double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

int main(int given, char **arguments) {
    if (given != 7) fail("usage: pairs PORT CONNECTIONS SECONDS FIRST HALF COMMIT");
    int connections = atoi(arguments[2]), poll = epoll_create1(0), one = 1;
    half_size = read_file(arguments[5], half);
    read_file(arguments[6], commit);
    char *mark = memmem(half, half_size, KEY_MARK, KEY_SIZE);
    if (!mark) fail("the half message has no key");
    key_at = mark - half;
    next_key = strtoull(arguments[4], 0, 10);
    times = malloc(TIMES * sizeof *times);
    Link *links = calloc(connections, sizeof *links);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(arguments[1]))};
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    double end = now() + atof(arguments[3]);
    for (int i = 0; i < connections; i++) {
        Link *link = &links[i];
        link->fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(link->fd, (struct sockaddr *)&address, sizeof address)) fail("no connection");
        setsockopt(link->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = link};
        epoll_ctl(poll, EPOLL_CTL_ADD, link->fd, &event);
        begin(link);
    }
    struct epoll_event events[256];
    while (now() < end) {
        int ready = epoll_wait(poll, events, 256, 100);
        for (int i = 0; i < ready; i++) receive(events[i].data.ptr);
    }
    size_t kept = count < TIMES ? count : TIMES;
    if (!kept) fail("no transaction ended");
    qsort(times, kept, sizeof *times, by_size);
    printf("pairs=%zu refused=%zu p50=%.1f p99=%.1f\n", count, refused, times[kept / 2] * 1e6, times[kept * 99 / 100] * 1e6);
}
