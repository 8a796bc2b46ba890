/* Decode the Huffman codes of a baseline JPEG to coefficients, of any of its MCUs.

Guarantees: libjpeg's coefficients, or failure for whatever violates ITU T.81: an unknown code, a
block that is too long, a segment with too few or too many bytes, a marker out of order. Nothing is
read outside the data or written outside the blocks. MCUs that are not needed are skipped as far as
restart markers allow, so damage there is not noticed.

Speed: data is first copied without the zeros stuffed after 0xFF, so bits are read without checking
each byte; the copy always has a whole MCU or the end of the data, so an MCU is read without checking
for the end. Most codes are looked up by their first bits. */

#include "_entropy.h"

#include <string.h>

#include "_compiler.h"


enum {
    LAST = 63,      /* a block's last coefficient */
    END_OF_BLOCK = 96, /* an advance beyond it that no run reaches */
    LENGTHS = 16,
};

/* An entry of `found`: bits of the code and its value together, bits of the value, and the advance
to the coefficient. 0 if the code is longer. */
#define ENTRY(length, size, advance) ((uint16_t)((length) | (size) << 5 | (advance) << 9))
#define LENGTH(entry) ((entry) & 31)
#define SIZE(entry) ((entry) >> 5 & 15)
#define ADVANCE(entry) ((entry) >> 9)

/* Position of each coefficient in its block; a run may end beyond the last. */
#define TIMES_8(place) place, place, place, place, place, place, place, place
#define TIMES_32(place) TIMES_8(place), TIMES_8(place), TIMES_8(place), TIMES_8(place)
static const uint8_t places[LAST + 1 + END_OF_BLOCK] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
    TIMES_32(63), TIMES_32(63), TIMES_32(63),
};
_Static_assert(END_OF_BLOCK == 3 * 32, "positions beyond the last");

static int advance(int symbol)
{
    const int run = symbol >> 4;
    return symbol & 15 || run == 15 ? run + 1 : END_OF_BLOCK;
}

/* Build a table, unless it is the one built before. Return 0 if it is invalid. */
static int build(Codes *codes, const uint8_t *table, int is_dc)
{
    const uint8_t *counts = table, *symbols = table + 17;
    if (codes->built && !memcmp(codes->counts + 1, counts + 1, 16)
        && !memcmp(codes->symbols, symbols, 256))
        return 1;
    codes->built = 0;
    memcpy(codes->counts, counts, 17);
    memcpy(codes->symbols, symbols, 256);
    memset(codes->found, 0, sizeof codes->found);
    uint32_t code = 0;
    int place = 0;
    for (int length = 1; length <= LENGTHS; length++, code <<= 1) {
        codes->firsts[length] = place - (int)code;
        if (place + counts[length] > 256 || code + counts[length] > 1u << length)
            return 0;
        for (int k = 0; k < counts[length]; k++, code++) {
            const int symbol = symbols[place++], size = is_dc ? symbol : symbol & 15;
            if (size > 15)
                return 0;
            if (length <= ENTROPY_LOOKUP) {
                const uint16_t entry = ENTRY(length + size, size, advance(symbol));
                const int free = ENTROPY_LOOKUP - length;
                for (uint32_t more = 0; more < 1u << free; more++)
                    codes->found[(code << free) + more] = entry;
            }
        }
        codes->limits[length] = code << (LENGTHS - length);
    }
    return codes->built = 1;
}

/* Copy data until there is enough for an MCU. Bytes after the end of a segment may have any value:
they do not change codes that end before, and if others are read the segment is broken. */
static void fill(Entropy *self)
{
    size_t filled = (size_t)(self->copy + self->filled - self->next);
    memmove(self->copy, self->next, filled);
    self->next = self->copy;
    while (filled < ENTROPY_COPY && !self->stopped) {
        size_t room = ENTROPY_COPY - filled, left = (size_t)(self->end - self->source);
        if (room > left)
            room = left;
        const uint8_t *mark = memchr(self->source, 0xFF, room);
        const size_t plain = mark ? (size_t)(mark - self->source) : room;
        memcpy(self->copy + filled, self->source, plain);
        filled += plain;
        self->source += plain;
        if (mark && self->end - mark >= 2 && mark[1] == 0) {
            self->copy[filled++] = 0xFF;
            self->source += 2;
        } else {
            self->stopped = mark || plain == left;
        }
    }
    self->filled = filled;
}

static void begin_segment(Entropy *self)
{
    self->next = self->copy;
    self->filled = 0;
    self->bits = 0;
    self->ahead = 0;
    self->stopped = 0;
    self->mcu = self->segment * self->interval;
    memset(self->last_dc, 0, sizeof self->last_dc);
}

int entropy_ended(Entropy *self)
{
    if (self->broken || !self->interval || self->mcu != (self->segment + 1) * self->interval)
        return !self->broken;
    if (!self->stopped)
        fill(self);
    return self->stopped && (self->copy + self->filled - self->next) * 8 + self->ahead < 8;
}

/* Go to a later segment. Return True if this one ended well and restart markers are in order. */
static int seek(Entropy *self, unsigned segment)
{
    if (!entropy_ended(self))
        return 0;
    while (self->segment < segment) {
        const uint8_t *mark = memchr(self->source, 0xFF, (size_t)(self->end - self->source));
        const uint8_t *kind = mark;
        while (kind && kind < self->end && *kind == 0xFF)
            kind++; /* over fill bytes */
        if (!kind || kind == self->end)
            return 0;
        self->source = kind + 1;
        if (*kind == (0xD0 | (self->segment & 7)))
            self->segment++;
        else if (*kind != 0 || kind - mark > 1) /* 0xFF 0xFF 0 is no data byte */
            return 0;
    }
    begin_segment(self);
    return 1;
}

void entropy_begin(Entropy *self, const uint8_t *data, size_t bytes, unsigned interval)
{
    self->source = data;
    self->end = data + bytes;
    self->interval = interval;
    self->blocks = 0;
    self->broken = 0;
    self->segment = 0;
    begin_segment(self);
}

int entropy_block(
    Entropy *self, int component, int dc, const uint8_t *dc_table, int ac, const uint8_t *ac_table)
{
    const int block = self->blocks++;
    if (block >= ENTROPY_BLOCKS || component < 0 || component >= 4)
        return 0;
    if (dc < 0 || dc >= ENTROPY_TABLES || ac < 0 || ac >= ENTROPY_TABLES || !dc_table || !ac_table)
        return 0;
    self->of[block].component = component;
    self->of[block].dc = &self->dc[dc];
    self->of[block].ac = &self->ac[ac];
    return build(&self->dc[dc], dc_table, 1) && build(&self->ac[ac], ac_table, 0);
}

/* Eight bytes, the first one highest; compilers make it one load. */
static INLINE uint64_t eight(const uint8_t *b)
{
    return (uint64_t)b[0] << 56 | (uint64_t)b[1] << 48 | (uint64_t)b[2] << 40 | (uint64_t)b[3] << 32
        | (uint64_t)b[4] << 24 | (uint64_t)b[5] << 16 | (uint64_t)b[6] << 8 | b[7];
}

/* Find the symbol and length of a code that is too long to be looked up; 0 and 0 if there is none. */
static NOINLINE int search(const Codes *codes, uint64_t bits, int *length)
{
    const uint32_t first = (uint32_t)(bits >> (64 - LENGTHS));
    for (int k = ENTROPY_LOOKUP + 1; k <= LENGTHS; k++)
        if (first < codes->limits[k]) {
            *length = k;
            return codes->symbols[(int)(first >> (LENGTHS - k)) + codes->firsts[k]];
        }
    return *length = 0;
}

/* The number whose highest bit is the highest of `bits`: ITU T.81, F.2.2.1. */
static INLINE int value(uint64_t bits, int size)
{
    const int negative = (int)((int64_t)~bits >> 63);
    return (int)(bits >> 1 >> (63 - size)) + (negative & (1 - (1 << size)));
}

/* Read up to 56 to 63 bits: two codes that are looked up with their values, or one of these and a
long one. */
#define READ_AHEAD() \
    do { \
        bits |= eight(next) >> ahead; \
        next += (63 - ahead) >> 3; \
        ahead |= 56; \
    } while (0)
#define PASS(count) \
    do { \
        bits <<= (count); \
        ahead -= (count); \
    } while (0)
#define AC() \
    do { \
        const uint16_t entry = ac->found[bits >> (64 - ENTROPY_LOOKUP)]; \
        if (LIKELY(entry != 0)) { \
            k += ADVANCE(entry); \
            if (wanted) \
                block[places[k]] = (int16_t)value( \
                    bits << (LENGTH(entry) - SIZE(entry)), SIZE(entry)); \
            PASS(LENGTH(entry)); \
        } else { \
            int length; \
            const int symbol = search(ac, bits, &length), size = symbol & 15; \
            self->broken |= !length; \
            PASS(length); \
            k += advance(symbol); \
            if (wanted) \
                block[places[k]] = (int16_t)value(bits, size); \
            PASS(size); \
            READ_AHEAD(); \
        } \
    } while (0)

/* Decode the next MCU into blocks, or skip it if they are not `wanted`. */
static INLINE void decode_one(
    Entropy *self, int16_t *const *blocks, const int wanted)
{
    if (!self->stopped && self->copy + self->filled - self->next < ENTROPY_MAX_MCU)
        fill(self);
    const uint8_t *next = self->next;
    uint64_t bits = self->bits;
    int ahead = self->ahead;
    for (int b = 0; b < self->blocks; b++) {
        int16_t *const block = wanted ? blocks[b] : NULL;
        const Codes *const dc = self->of[b].dc, *const ac = self->of[b].ac;
        READ_AHEAD();
        uint16_t entry = dc->found[bits >> (64 - ENTROPY_LOOKUP)];
        if (!LIKELY(entry != 0)) {
            int length;
            const int size = search(dc, bits, &length);
            self->broken |= !length;
            PASS(length);
            entry = ENTRY(size, size, 0);
        }
        int *const last_dc = &self->last_dc[self->of[b].component];
        const int more = value(bits << (LENGTH(entry) - SIZE(entry)), SIZE(entry));
        *last_dc = (int)((unsigned)*last_dc + (unsigned)more); /* sums of invalid files may overflow */
        PASS(LENGTH(entry));
        if (wanted)
            block[0] = (int16_t)*last_dc;
        int k = 0;
        for (;;) {
            READ_AHEAD();
            AC();
            if (k >= LAST)
                break;
            AC();
            if (k >= LAST)
                break;
        }
        self->broken |= k > LAST && k < END_OF_BLOCK;
    }
    self->next = next;
    self->bits = bits;
    self->ahead = ahead;
    self->mcu++;
    if (self->stopped && (self->copy + self->filled - next) * 8 + ahead < 0)
        self->broken = 1; /* read beyond the end */
}

#define DECODE_UP_TO(name) \
    static void name(Entropy *self, unsigned mcu, int16_t *const *blocks) \
    { \
        while (self->mcu < mcu && !self->broken) \
            decode_one(self, NULL, 0); \
        if (!self->broken) \
            decode_one(self, blocks, 1); \
    }
DECODE_UP_TO(decode_up_to)
#ifdef __x86_64__ /* shifts take one instruction instead of up to three */
TARGET("bmi2") DECODE_UP_TO(decode_up_to_with_bmi2)
#endif

int entropy_mcu(Entropy *self, unsigned mcu, int16_t *const *blocks)
{
    if (self->interval && !self->broken) {
        const unsigned segment = mcu / self->interval;
        if (segment != self->segment && !seek(self, segment))
            self->broken = 1;
    }
#ifdef __x86_64__
    if (self->bmi2)
        decode_up_to_with_bmi2(self, mcu, blocks);
    else
#endif
        decode_up_to(self, mcu, blocks);
    return !self->broken;
}
