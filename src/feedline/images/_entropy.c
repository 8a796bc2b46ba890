/* The Huffman codes of a baseline JPEG to coefficients, wherever in the image they are wanted.

Guarantees: the coefficients that libjpeg gives, or the answer that this is not the way, for
whatever is not as ITU T.81 says: an unknown code, a block that is too long, a segment with too few
or too many bytes, a marker out of order. Nothing is read outside the data or written outside the
blocks. What is not wanted is passed over unseen as far as restart markers allow, so what is wrong
there is not noticed.

How it is quick: data is copied first, without the zeros that are stuffed behind 0xFF, so bits are
read without looking at each byte; there is always room for a whole MCU, so an MCU is read without
a look at the end. Most codes are found by their first bits. */

#include "_entropy.h"

#include <string.h>

enum {
    LAST = 63,      /* a block's last coefficient */
    END_OF_BLOCK = 96, /* an advance beyond that which no run reaches */
    LENGTHS = 16,
};

/* An entry of `found`: how many bits the code and its value take, how many of them are the
value's, and by how much the coefficient's number advances. 0 where the code is longer. */
#define ENTRY(length, size, advance) ((uint16_t)((length) | (size) << 5 | (advance) << 9))
#define LENGTH(entry) ((entry) & 31)
#define SIZE(entry) ((entry) >> 5 & 15)
#define ADVANCE(entry) ((entry) >> 9)

/* Where each coefficient lies in its block; behind the last there is room for a run. */
static const uint8_t places[LAST + 1 + END_OF_BLOCK] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
    [LAST + 1 ... LAST + END_OF_BLOCK] = 63,
};

static int advance(int symbol)
{
    const int run = symbol >> 4;
    return symbol & 15 || run == 15 ? run + 1 : END_OF_BLOCK;
}

/* Make a table, unless it is the one that was made before; 0 if it is none. */
static int make(Codes *codes, const uint8_t *table, int is_dc)
{
    const uint8_t *counts = table, *symbols = table + 17;
    if (codes->made && !memcmp(codes->counts + 1, counts + 1, 16)
        && !memcmp(codes->symbols, symbols, 256))
        return 1;
    codes->made = 0;
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
    return codes->made = 1;
}

/* Take data until there is enough for an MCU. Behind the last byte of a segment anything may lie:
it makes no difference to codes that end before, and where others are read the segment is broken. */
static void fill(Entropy *self)
{
    size_t filled = (size_t)(self->kept + self->filled - self->next);
    memmove(self->kept, self->next, filled);
    self->next = self->kept;
    while (filled < ENTROPY_KEPT && !self->stopped) {
        size_t room = ENTROPY_KEPT - filled, left = (size_t)(self->end - self->source);
        if (room > left)
            room = left;
        const uint8_t *mark = memchr(self->source, 0xFF, room);
        const size_t plain = mark ? (size_t)(mark - self->source) : room;
        memcpy(self->kept + filled, self->source, plain);
        filled += plain;
        self->source += plain;
        if (mark && self->end - mark >= 2 && mark[1] == 0) {
            self->kept[filled++] = 0xFF;
            self->source += 2;
        } else {
            self->stopped = mark || plain == left;
        }
    }
    self->filled = filled;
}

static void begin_segment(Entropy *self)
{
    self->next = self->kept;
    self->filled = 0;
    self->bits = 0;
    self->ahead = 0;
    self->stopped = 0;
    self->mcu = self->segment * self->interval;
    memset(self->before, 0, sizeof self->before);
}

int entropy_ended(Entropy *self)
{
    if (self->broken || !self->interval || self->mcu != (self->segment + 1) * self->interval)
        return !self->broken;
    if (!self->stopped)
        fill(self);
    return self->stopped && (self->kept + self->filled - self->next) * 8 + self->ahead < 8;
}

/* Go to a later segment; whether this one ended well, and restart markers are in order. */
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
#ifdef __x86_64__
    self->has_bmi2 = __builtin_cpu_supports("bmi2") != 0;
#endif
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
    return make(&self->dc[dc], dc_table, 1) && make(&self->ac[ac], ac_table, 0);
}

static inline uint64_t eight(const uint8_t *bytes)
{
    uint64_t number;
    memcpy(&number, bytes, sizeof number);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    number = __builtin_bswap64(number);
#endif
    return number;
}

/* The symbol of a code that is too long to be looked up, and its length; 0 and 0 for none. */
static __attribute__((noinline)) int search(const Codes *codes, uint64_t bits, int *length)
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
static inline int value(uint64_t bits, int size)
{
    const int negative = (int)((int64_t)~bits >> 63);
    return (int)(bits >> 1 >> (63 - size)) + (negative & (1 - (1 << size)));
}

/* 56 to 63 bits are ahead then: two codes that are looked up with their values, or one of these
and a long one. */
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
        if (__builtin_expect(entry != 0, 1)) { \
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

/* Decode the next MCU into blocks, or, where those are not `wanted`, pass over it. */
static inline __attribute__((always_inline)) void one(
    Entropy *self, int16_t *const *blocks, const int wanted)
{
    if (!self->stopped && self->kept + self->filled - self->next < ENTROPY_MOST)
        fill(self);
    const uint8_t *next = self->next;
    uint64_t bits = self->bits;
    int ahead = self->ahead;
    for (int b = 0; b < self->blocks; b++) {
        int16_t *const block = wanted ? blocks[b] : NULL;
        const Codes *const dc = self->of[b].dc, *const ac = self->of[b].ac;
        READ_AHEAD();
        uint16_t entry = dc->found[bits >> (64 - ENTROPY_LOOKUP)];
        if (__builtin_expect(!entry, 0)) {
            int length;
            const int size = search(dc, bits, &length);
            self->broken |= !length;
            PASS(length);
            entry = ENTRY(size, size, 0);
        }
        int *const before = &self->before[self->of[b].component];
        const int more = value(bits << (LENGTH(entry) - SIZE(entry)), SIZE(entry));
        *before = (int)((unsigned)*before + (unsigned)more); /* hostile sums may overflow */
        PASS(LENGTH(entry));
        if (wanted)
            block[0] = (int16_t)*before;
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
    if (self->stopped && (self->kept + self->filled - next) * 8 + ahead < 0)
        self->broken = 1; /* it ended before */
}

#define TO(name) \
    static void name(Entropy *self, unsigned mcu, int16_t *const *blocks) \
    { \
        while (self->mcu < mcu && !self->broken) \
            one(self, NULL, 0); \
        if (!self->broken) \
            one(self, blocks, 1); \
    }
TO(to)
#ifdef __x86_64__
/* Shifts by a number in any register take one operation instead of up to three. */
__attribute__((target("bmi2"))) TO(to_with_bmi2)
#endif

int entropy_mcu(Entropy *self, unsigned mcu, int16_t *const *blocks)
{
    if (self->interval && !self->broken) {
        const unsigned segment = mcu / self->interval;
        if (segment != self->segment && !seek(self, segment))
            self->broken = 1;
    }
#ifdef __x86_64__
    if (self->has_bmi2)
        to_with_bmi2(self, mcu, blocks);
    else
#endif
        to(self, mcu, blocks);
    return !self->broken;
}
