// end_to_end: how long a message is on its way to a consumer that waits for it.
//
// usage: end_to_end PORT TOPIC QUEUES RATE SECONDS BODY
//
// One connection sends RATE messages a second to 127.0.0.1:PORT, all queues in turn; another holds a
// pull for each queue and asks again as soon as it is answered. A body begins with the time at which
// it was sent, 19 digits of nanoseconds. The first two seconds are not counted. Prints one line:
// what was sent and received, and the 50th and 99th percentile of the time from a send to its answer
// ("accepted") and to the end of the pull that brings the message ("received"), in microseconds.
//
// In C, because a generator in Python takes as long as a broker, and the two share the cores.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { OPAQUES = 1 << 16, HEADER_MAX = 1 << 16, WARM_UP_SECONDS = 2, DRAIN_SECONDS = 5 };
enum { SEND_MESSAGE_V2 = 310, PULL_MESSAGE = 11, SUCCESS = 0 };
enum { PULL_NOT_FOUND = 19, PULL_RETRY = 20, PULL_OFFSET_MOVED = 21 };
// Of a record with IPv4 hosts: where its body's length stands, behind which the body begins.
enum { BODY_LENGTH_AT = 84, TIME_DIGITS = 19 };

typedef struct {
    int fd;
    uint8_t *buffer;
    size_t length, capacity;
} Connection;

typedef struct {
    float *us;
    size_t count, capacity;
} Latencies;

static const char *topic;
static int queues, body_size;
static int64_t since_ns, refused;
static int64_t sent_ns[OPAQUES];
static Latencies accepted, received;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static uint32_t number_at(const uint8_t *bytes) {
    return (uint32_t)bytes[0] << 24 | bytes[1] << 16 | bytes[2] << 8 | bytes[3];
}

static void put_number(uint8_t *bytes, uint32_t number) {
    for (int place = 0; place < 4; place++) bytes[place] = number >> (24 - 8 * place);
}

static void note(Latencies *all, int64_t begun_ns, int64_t ended_ns) {
    if (begun_ns < since_ns) return;
    if (all->count == all->capacity) {
        all->capacity = all->capacity ? 2 * all->capacity : 1 << 16;
        all->us = realloc(all->us, all->capacity * sizeof *all->us);
    }
    all->us[all->count++] = (ended_ns - begun_ns) / 1000.0f;
}

static Connection dial(int port) {
    Connection to = {.fd = socket(AF_INET, SOCK_STREAM, 0), .capacity = 1 << 20};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(to.fd, (void *)&address, sizeof address)) fail("connect");
    int on = 1;
    setsockopt(to.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    to.buffer = malloc(to.capacity);
    return to;
}

static void write_frame(Connection *to, const char *header, int header_size, const char *body, int size) {
    static uint8_t frame[8 + HEADER_MAX + (1 << 20)];
    put_number(frame, 4 + header_size + size);
    put_number(frame + 4, header_size);
    memcpy(frame + 8, header, header_size);
    memcpy(frame + 8 + header_size, body, size);
    size_t total = 8 + header_size + size;
    for (size_t written = 0; written < total;) {
        ssize_t count = send(to->fd, frame + written, total - written, MSG_NOSIGNAL);
        if (count <= 0) fail("send");
        written += count;
    }
}

static void send_message(Connection *to, int64_t number) {
    static char *body;
    if (!body) {
        body = malloc(body_size + TIME_DIGITS + 1);
        for (int at = 0; at < body_size; at++) body[at] = 'a' + at % 26;
    }
    int opaque = number % OPAQUES;
    char digits[TIME_DIGITS + 1], header[1024];
    int64_t now = now_ns();
    sent_ns[opaque] = now;
    snprintf(digits, sizeof digits, "%019lld", (long long)now);
    memcpy(body, digits, TIME_DIGITS);
    int size = snprintf(
        header, sizeof header,
        "{\"code\":%d,\"extFields\":{\"a\":\"end_to_end\",\"b\":\"%s\",\"c\":\"TBW102\",\"d\":\"%d\",\"e\":\"%d\","
        "\"f\":\"0\",\"g\":\"%lld\",\"h\":\"0\",\"i\":\"UNIQ_KEY\\u00017F0000014D2C18B4AAC2%012llX\\u0002WAIT\\u0001true\\u0002\","
        "\"j\":\"0\",\"k\":\"false\",\"l\":\"16\",\"m\":\"false\"},\"flag\":0,\"language\":\"JAVA\",\"opaque\":%d,"
        "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":435}",
        SEND_MESSAGE_V2, topic, queues, (int)(number % queues), (long long)time(NULL) * 1000, (long long)number, opaque);
    write_frame(to, header, size, body, body_size);
}

static void pull(Connection *to, int queue, long long offset) {
    char header[1024];
    int size = snprintf(
        header, sizeof header,
        "{\"code\":%d,\"extFields\":{\"consumerGroup\":\"end_to_end\",\"topic\":\"%s\",\"queueId\":\"%d\","
        "\"queueOffset\":\"%lld\",\"maxMsgNums\":\"32\",\"sysFlag\":\"6\",\"commitOffset\":\"0\","
        "\"suspendTimeoutMillis\":\"15000\",\"subscription\":\"*\",\"subVersion\":\"0\",\"expressionType\":\"TAG\"},"
        "\"flag\":0,\"language\":\"JAVA\",\"opaque\":%d,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":435}",
        PULL_MESSAGE, topic, queue, offset, queue);
    write_frame(to, header, size, "", 0);
}

static long long field(const char *header, const char *name) {
    const char *found = strstr(header, name);
    if (!found) return -1;
    found += strlen(name);
    while (*found == ':' || *found == '"') found++;
    return atoll(found);
}

// Take the answer to a send, or to a pull, which is sent again.
static void take(Connection *from, const uint8_t *frame, size_t size, int is_pull, int64_t now) {
    static char header[HEADER_MAX];
    size_t header_size = number_at(frame) & 0xffffff;
    if (header_size >= sizeof header) return;
    memcpy(header, frame + 4, header_size);
    header[header_size] = 0;
    if (!(field(header, "\"flag\"") & 1)) return;  // A request of the broker's own.
    int code = field(header, "\"code\""), opaque = field(header, "\"opaque\"");
    if (!is_pull) {
        if (code != SUCCESS) refused++;
        else note(&accepted, sent_ns[opaque], now);
        return;
    }
    if (code != SUCCESS && (code < PULL_NOT_FOUND || code > PULL_OFFSET_MOVED)) {
        fprintf(stderr, "a pull was refused: %s\n", header);
        exit(1);
    }
    const uint8_t *end = frame + size;
    for (const uint8_t *at = frame + 4 + header_size; code == SUCCESS && at < end; at += number_at(at)) {
        char digits[TIME_DIGITS + 1] = {0};
        memcpy(digits, at + BODY_LENGTH_AT + 4, TIME_DIGITS);
        note(&received, atoll(digits), now);
    }
    pull(from, opaque, field(header, "\"nextBeginOffset\""));
}

static void receive(Connection *from, int is_pull) {
    if (from->length == from->capacity) from->buffer = realloc(from->buffer, from->capacity *= 2);
    ssize_t count = recv(from->fd, from->buffer + from->length, from->capacity - from->length, MSG_DONTWAIT);
    if (count == 0) {
        fprintf(stderr, "the broker closed the connection\n");
        exit(1);
    }
    if (count < 0) return;
    int64_t now = now_ns();
    from->length += count;
    size_t at = 0;
    while (from->length - at >= 4) {
        size_t size = number_at(from->buffer + at);
        if (from->length - at - 4 < size) break;
        take(from, from->buffer + at + 4, size, is_pull, now);
        at += 4 + size;
    }
    memmove(from->buffer, from->buffer + at, from->length - at);
    from->length -= at;
}

// Receive whatever comes, for so long or until something has come.
static void wait_for(Connection *sender, Connection *puller, int64_t left_ns) {
    struct pollfd ready[2] = {{.fd = sender->fd, .events = POLLIN}, {.fd = puller->fd, .events = POLLIN}};
    struct timespec left = {left_ns / 1000000000, left_ns % 1000000000};
    if (ppoll(ready, 2, &left, NULL) <= 0) return;
    if (ready[0].revents) receive(sender, 0);
    if (ready[1].revents) receive(puller, 1);
}

static int by_size(const void *one, const void *other) {
    float difference = *(const float *)one - *(const float *)other;
    return (difference > 0) - (difference < 0);
}

static float percentile(Latencies *all, double part) {
    qsort(all->us, all->count, sizeof *all->us, by_size);
    return all->count ? all->us[(size_t)(all->count * part)] : 0;
}

int main(int count, char **arguments) {
    if (count != 7) {
        fprintf(stderr, "usage: end_to_end PORT TOPIC QUEUES RATE SECONDS BODY\n");
        return 2;
    }
    topic = arguments[2];
    queues = atoi(arguments[3]);
    double rate = atof(arguments[4]), seconds = atof(arguments[5]);
    body_size = atoi(arguments[6]);
    if (body_size < TIME_DIGITS || body_size > 1 << 20 || queues < 1 || rate <= 0) {
        fprintf(stderr, "BODY is %d to %d bytes, QUEUES and RATE more than 0\n", TIME_DIGITS, 1 << 20);
        return 2;
    }
    Connection sender = dial(atoi(arguments[1])), puller = dial(atoi(arguments[1]));
    int64_t number = 0, sent = 0;
    since_ns = INT64_MAX;
    for (; number < queues; number++) {  // Makes the topic.
        send_message(&sender, number);
        wait_for(&sender, &puller, 1000000000);
    }
    for (int queue = 0; queue < queues; queue++) pull(&puller, queue, 0);
    int64_t begun = now_ns(), counted_from = begun + WARM_UP_SECONDS * 1000000000LL;
    int64_t end = counted_from + (int64_t)(seconds * 1e9);
    since_ns = counted_from;
    for (int64_t now, due = 0; (now = now_ns()) < end;) {
        for (; begun + (int64_t)(due * 1e9 / rate) <= now; due++) {
            send_message(&sender, number++);
            sent += now >= counted_from;
        }
        int64_t left = begun + (int64_t)(due * 1e9 / rate) - now_ns();
        wait_for(&sender, &puller, left > 0 ? left : 0);
    }
    int64_t patience = now_ns() + DRAIN_SECONDS * 1000000000LL;
    while ((int64_t)received.count < sent && now_ns() < patience) wait_for(&sender, &puller, 100000000);
    printf("sent=%lld received=%zu refused=%lld accepted_p50=%.0f accepted_p99=%.0f received_p50=%.0f received_p99=%.0f\n",
           (long long)sent, received.count, (long long)refused, percentile(&accepted, 0.5), percentile(&accepted, 0.99),
           percentile(&received, 0.5), percentile(&received, 0.99));
    return received.count < (size_t)sent;
}
