/* Reads a trace by the layouts of the page alone, and prints every field and CRC. */
#include <assert.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    char magic[4];
    uint16_t version;
    uint16_t _pad0;
    uint64_t seed;
    uint64_t step_count;
    double learning_rate;
    uint32_t file_crc32;
    uint32_t header_crc32;
    uint64_t created_at;
    uint8_t _reserved[16];
} TraceHeader;

typedef struct {
    uint64_t step_id;
    double w_before, b_before, grad_w, grad_b, w_after, b_after, loss;
    uint32_t record_crc32;
    uint32_t _pad0;
} TraceRecord;

_Static_assert(sizeof(TraceHeader) == 64, "TraceHeader");
_Static_assert(sizeof(TraceRecord) == 72, "TraceRecord");

static uint32_t crc32(uint32_t crc, const void *data, size_t length) {
    const uint8_t *bytes = data;
    crc = ~crc;
    for (size_t i = 0; i < length; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
    }
    return ~crc;
}

static void print_bits(double number) {
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    printf(" %016" PRIx64, bits);
}

int main(int argc, char **argv) {
    TraceHeader header;
    TraceRecord record;
    uint32_t file_crc = 0;
    FILE *file = argc == 2 ? fopen(argv[1], "rb") : NULL;
    if (!file || fread(&header, sizeof header, 1, file) != 1)
        return 2;
    printf("%.4s %u %u %" PRIu64 " %" PRIu64, header.magic, (unsigned)header.version,
           (unsigned)header._pad0, header.seed, header.step_count);
    print_bits(header.learning_rate);
    printf(" %08x %08x %" PRIu64 " ", (unsigned)header.file_crc32, (unsigned)header.header_crc32,
           header.created_at);
    for (int i = 0; i < 16; i++)
        printf("%02x", (unsigned)header._reserved[i]);
    printf(" %08x\n", (unsigned)crc32(0, &header, 36));
    while (fread(&record, sizeof record, 1, file) == 1) {
        file_crc = crc32(file_crc, &record, sizeof record);
        printf("%" PRIu64, record.step_id);
        print_bits(record.w_before);
        print_bits(record.b_before);
        print_bits(record.grad_w);
        print_bits(record.grad_b);
        print_bits(record.w_after);
        print_bits(record.b_after);
        print_bits(record.loss);
        printf(" %08x %u %08x\n", (unsigned)record.record_crc32, (unsigned)record._pad0,
               (unsigned)crc32(0, &record, 64));
    }
    printf("%08x\n", (unsigned)file_crc);
    return fclose(file) == 0 ? 0 : 2;
}
