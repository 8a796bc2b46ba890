/* Decode the Huffman codes of a baseline JPEG to coefficients, of any of its MCUs; and those of a
progressive one's scans of AC coefficients.

Guarantees: libjpeg's coefficients, or failure for whatever violates ITU T.81: an unknown code, a
block that is too long, a segment with too few or too many bytes, a marker out of order. Nothing is
read outside the data or written outside the blocks. MCUs that are not needed are skipped as far as
restart markers allow, so damage there is not noticed.

Speed: data is first copied without the zeros stuffed after 0xFF, so bits are read without checking
each byte; the copy always has a whole MCU or the end of the data, so an MCU is read without checking
for the end. The next lookup has to wait for the result of the one before, which takes most of the
time: so a lookup finds two coefficients and the end of the block, and bits are read ahead meanwhile. */

#include "_entropy.h"

#include <string.h>

#include "_compiler.h"


enum {
    LAST = 63,         /* a block's last coefficient */
    END_OF_BLOCK = 96, /* an advance beyond it that no run reaches */
    LENGTHS = 16,
    DC = 1, PAIRS, SINGLE, /* kinds of tables */
    MAX_SIZE = 13, /* of values after codes that are looked up; baseline has up to 11 bits */
};

/* An entry of `found`: bits of the code and its value together, and the symbol: a run of zeros, and
bits of the value. 0: search. */
#define ENTRY(length, symbol) ((uint16_t)((length) + ((symbol) & 15) + (symbol) * 64))
#define LENGTH(entry) ((entry) & 63)
#define SYMBOL(entry) ((int)(entry) >> 6)
#define SIZE(entry) ((entry) >> 6 & 15)
#define CODE(entry) (LENGTH(entry) - SIZE(entry))
#define RUN(entry) ((int)(entry) >> 10)

/* An entry of `pairs`: the number of its bits; the advance to a coefficient and its value; the
advance from the same place to a second coefficient, plus END_OF_BLOCK if that code follows; the bits
before its value, and how far to shift these to the right. A single coefficient is the second one,
after a 0 that it overwrites, or that was 0. The entry is 0 if the code must be searched. */
#define BITS(pair) ((unsigned)(pair) & 63)
#define SECOND_ADVANCE(pair) ((pair) >> 8 & 255)
#define FIRST_ADVANCE(pair) ((pair) >> 16 & 255)
#define SECOND_BEFORE(pair) ((pair) >> 24 & 63)
#define SECOND_SHIFT(pair) ((unsigned)((pair) >> 32) & 63)
#define FIRST_VALUE(pair) ((int16_t)((pair) >> 48))
#define FIRST(value, advance) ((uint64_t)(uint16_t)(value) << 48 | (uint64_t)(advance) << 16)
#define SECOND(bits, before, size, advance) \
    ((uint64_t)(bits) | (uint64_t)(advance) << 8 | (uint64_t)(before) << 24 \
     | (uint64_t)(63 - (size)) << 32)

/* Position of each coefficient in its block, also after the end of the block was added; a run may end
beyond the last. */
#define TIMES_8(place) place, place, place, place, place, place, place, place
#define TIMES_32(place) TIMES_8(place), TIMES_8(place), TIMES_8(place), TIMES_8(place)
#define ZIGZAG \
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48, \
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, \
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63
static const uint8_t places[] = {ZIGZAG, TIMES_32(63), ZIGZAG, TIMES_32(63)};
_Static_assert(END_OF_BLOCK == LAST + 1 + 32, "positions beyond the last");

static int advance(int symbol)
{
    const int run = symbol >> 4;
    return symbol & 15 || run == 15 ? run + 1 : END_OF_BLOCK;
}

/* Find the entry of any code; 0 if there is none. */
static NOINLINE unsigned search(const Codes *codes, uint64_t bits)
{
    const uint32_t first = (uint32_t)(bits >> (64 - LENGTHS));
    for (int k = 1; k <= LENGTHS; k++)
        if (first < codes->limits[k])
            return ENTRY(k, codes->symbols[(int)(first >> (LENGTHS - k)) + codes->firsts[k]]);
    return 0;
}

/* The number of 63 - `shift` bits whose highest bit is the highest of `bits`: ITU T.81, F.2.2.1. */
static INLINE int value(uint64_t bits, unsigned shift)
{
    const uint64_t negative = (uint64_t)((int64_t)~bits >> 63);
    return (int)(((bits ^ negative) >> 1 >> shift ^ negative) - negative);
}

/* Find the entry of the code at the beginning of the last `count` of some bits; 0 if it has more. */
static unsigned find(const uint16_t *found, uint32_t bits, int count)
{
    if (count <= 0)
        return 0;
    const unsigned entry = found[bits << (ENTROPY_LOOKUP - count) & ((1 << ENTROPY_LOOKUP) - 1)];
    return CODE(entry) <= (unsigned)count ? entry : 0;
}

/* Make an entry of a code whose value `more` bits follow, with -1 for a first coefficient. */
static uint64_t pair_of(const uint16_t *found, unsigned code, uint32_t more, int count)
{
    uint64_t first = FIRST(0, 1);
    unsigned bits = LENGTH(code), size = SIZE(code);
    int by = advance(SYMBOL(code));
    if (by == END_OF_BLOCK)
        return first | SECOND(bits, 0, 0, 1 + END_OF_BLOCK);
    unsigned next = find(found, more, count);
    if (next && advance(SYMBOL(next)) != END_OF_BLOCK) {
        first = FIRST(-1, by);
        bits += LENGTH(next);
        size = SIZE(next);
        by += advance(SYMBOL(next));
        count -= (int)LENGTH(next);
        next = find(found, more, count);
    }
    const unsigned before = bits - size;
    if (next && advance(SYMBOL(next)) == END_OF_BLOCK)
        return first | SECOND(bits + LENGTH(next), before, size, by + END_OF_BLOCK);
    return first | SECOND(bits, before, size, by);
}

static void build_pairs(uint64_t *pairs, const uint16_t *found)
{
    for (uint64_t *at = pairs; at < pairs + (1 << ENTROPY_LOOKUP);) {
        const unsigned code = found[at - pairs];
        if (!code) {
            *at++ = 0;
            continue;
        }
        /* The entries of one value, and from these the entries of all. */
        const int size = (int)SIZE(code), left = ENTROPY_LOOKUP - (int)CODE(code);
        const int count = left > size ? left - size : 0;
        for (uint32_t more = 0; more < 1u << count; more++)
            at[more] = pair_of(found, code, more, count);
        for (int bits = (1 << (left - count)) - 1; bits >= 0; bits--) {
            const int first = value((uint64_t)bits << 1 << (63 - size), (unsigned)(63 - size));
            const uint64_t mask = FIRST(first, 0) | ~FIRST(-1, 0);
            for (int more = 0; more < 1 << count; more++)
                at[(bits << count) + more] = at[more] & mask;
        }
        at += 1 << left;
    }
}

/* Build a table, unless it is the one built before. Return 0 if it is invalid. */
static int build(Codes *codes, const uint8_t *table, int kind)
{
    const uint8_t *counts = table, *symbols = table + 17;
    if (codes->built == kind && !memcmp(codes->counts + 1, counts + 1, 16)
        && !memcmp(codes->symbols, symbols, 256))
        return 1;
    codes->built = 0;
    memcpy(codes->counts, counts, 17);
    memcpy(codes->symbols, symbols, 256);
    uint16_t of_pairs[1 << ENTROPY_LOOKUP], *const found = kind == PAIRS ? of_pairs : codes->found;
    memset(found, 0, sizeof of_pairs);
    uint32_t code = 0;
    int place = 0;
    for (int length = 1; length <= LENGTHS; length++, code <<= 1) {
        codes->firsts[length] = place - (int)code;
        if (place + counts[length] > 256 || code + counts[length] > 1u << length)
            return 0;
        for (int k = 0; k < counts[length]; k++, code++) {
            const int symbol = symbols[place++], size = kind == DC ? symbol : symbol & 15;
            if (size > 15)
                return 0;
            if (length <= ENTROPY_LOOKUP && size <= MAX_SIZE) {
                const uint16_t entry = ENTRY(length, symbol);
                const int free = ENTROPY_LOOKUP - length;
                for (uint32_t more = 0; more < 1u << free; more++)
                    found[(code << free) + more] = entry;
            }
        }
        codes->limits[length] = code << (LENGTHS - length);
    }
    if (kind == PAIRS)
        build_pairs(codes->pairs, found);
    codes->built = kind;
    return 1;
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
    self->blocks_to_end = 0;
    self->mcu = self->segment * self->interval;
    memset(self->last_dc, 0, sizeof self->last_dc);
}

/* Return True if no byte is left before a marker or the end. */
static int is_read(Entropy *self)
{
    if (!self->stopped)
        fill(self);
    return self->stopped && (self->copy + self->filled - self->next) * 8 + (int)self->ahead < 8;
}

int entropy_ended(Entropy *self)
{
    if (self->broken || !self->interval || self->mcu != (self->segment + 1) * self->interval)
        return !self->broken;
    return is_read(self);
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
    return build(&self->dc[dc], dc_table, DC) && build(&self->ac[ac], ac_table, PAIRS);
}

/* Eight bytes, the first one highest; compilers make it one load. */
static INLINE uint64_t eight(const uint8_t *b)
{
    return (uint64_t)b[0] << 56 | (uint64_t)b[1] << 48 | (uint64_t)b[2] << 40 | (uint64_t)b[3] << 32
        | (uint64_t)b[4] << 24 | (uint64_t)b[5] << 16 | (uint64_t)b[6] << 8 | b[7];
}

/* Read up to 56 to 63 bits: a code that is searched with its value, or two lookups and the bits of a
third. */
#define READ_AHEAD() \
    do { \
        bits |= eight(next) >> ahead; \
        next += (63 - ahead) >> 3; \
        ahead |= 56; \
    } while (0)
_Static_assert(2 * (ENTROPY_LOOKUP + MAX_SIZE) + ENTROPY_LOOKUP <= 56, "bits of two lookups");
#define PASS(count) \
    do { \
        bits <<= (count); \
        ahead -= (unsigned)(count); \
    } while (0)
/* Leave the loop if the block ends, or it cannot be said without a search. */
#define LOOK_UP(and_then) \
    pair = ac->pairs[bits >> (64 - ENTROPY_LOOKUP)]; \
    and_then; \
    if (!LIKELY(pair != 0)) \
        break; \
    if (wanted) { \
        block[places[k + FIRST_ADVANCE(pair)]] = FIRST_VALUE(pair); \
        block[places[k + SECOND_ADVANCE(pair)]] = (int16_t)value( \
            bits << SECOND_BEFORE(pair), SECOND_SHIFT(pair)); \
    } \
    k += SECOND_ADVANCE(pair); \
    if (k >= LAST) \
        break; \
    PASS(BITS(pair))

/* Decode the next MCU into blocks, or skip it if they are not `wanted`. */
static INLINE void decode_one(
    Entropy *self, int16_t *const *blocks, const int wanted)
{
    if (!self->stopped && self->copy + self->filled - self->next < ENTROPY_MAX_MCU)
        fill(self);
    const uint8_t *next = self->next;
    uint64_t bits = self->bits;
    unsigned ahead = self->ahead;
    READ_AHEAD();
    for (int b = 0; b < self->blocks; b++) {
        int16_t *const block = wanted ? blocks[b] : NULL;
        const Codes *const dc = self->of[b].dc, *const ac = self->of[b].ac;
        unsigned entry = dc->found[bits >> (64 - ENTROPY_LOOKUP)];
        READ_AHEAD();
        if (!LIKELY(entry != 0)) {
            entry = search(dc, bits);
            self->broken |= !entry;
        }
        int *const last_dc = &self->last_dc[self->of[b].component];
        const int more = value(bits << CODE(entry), 63 - SIZE(entry));
        *last_dc = (int)((unsigned)*last_dc + (unsigned)more); /* sums of invalid files may overflow */
        PASS(LENGTH(entry));
        if (wanted)
            block[0] = (int16_t)*last_dc;
        uint64_t pair, k = 0;
        for (;;) {
            for (;;) {
                LOOK_UP(READ_AHEAD());
                LOOK_UP((void)0);
            }
            if (k == LAST || (k >= END_OF_BLOCK && k < END_OF_BLOCK + LAST)) {
                PASS(BITS(pair));
                break;
            }
            /* A code to be searched, or the block ends, or is too long, before the end of the pair:
            then only the first coefficient is of this block. */
            if (pair)
                k -= SECOND_ADVANCE(pair);
            READ_AHEAD();
            const unsigned found = search(ac, bits);
            self->broken |= !found;
            k += (unsigned)advance(SYMBOL(found));
            if (wanted && k < END_OF_BLOCK)
                block[places[k]] = (int16_t)value(
                    bits << CODE(found), 63 - SIZE(found));
            PASS(LENGTH(found));
            if (k >= LAST)
                break;
        }
        self->broken |= k > LAST && k < END_OF_BLOCK;
    }
    self->next = next;
    self->bits = bits;
    self->ahead = ahead;
    self->mcu++;
    if (self->stopped && (self->copy + self->filled - next) * 8 + (int)ahead < 0)
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

int entropy_scan(
    Entropy *self, const uint8_t *data, size_t bytes, unsigned interval, const Band *band, int ac,
    const uint8_t *ac_table)
{
    entropy_begin(self, data, bytes, interval);
    self->band = *band;
    if (ac < 0 || ac >= ENTROPY_TABLES || !ac_table || band->first < 1 || band->first > band->last
        || band->last > LAST || band->low < 0 || band->low > 13)
        return 0;
    self->within = UINT64_MAX >> (LAST - band->last) & UINT64_MAX << band->first;
    self->scan = &self->ac[ac];
    return build(&self->ac[ac], ac_table, SINGLE);
}

#define FIND(entry) \
    do { \
        READ_AHEAD(); \
        entry = codes->found[bits >> (64 - ENTROPY_LOOKUP)]; \
        if (!LIKELY(entry != 0)) { \
            entry = search(codes, bits); \
            self->broken |= !entry; \
        } \
    } while (0)

/* Read the number of blocks that have no more codes: this one, and those after it. */
#define FIND_END() \
    do { \
        PASS(LENGTH(entry)); \
        self->blocks_to_end = (1u << RUN(entry)) + (unsigned)(bits >> 1 >> (63 - RUN(entry))); \
        PASS(RUN(entry)); \
    } while (0)

/* Collect a bit for each of some coefficients. 32 bits must have been read ahead. */
#define COLLECT(positions) \
    do { \
        unsigned count = 0; \
        for (uint64_t left = (positions); left; left &= left - 1) \
            count++; \
        total += count; \
        if (count > 32) { \
            collected = collected << 32 | bits >> 32; \
            PASS(32); \
            count -= 32; \
            READ_AHEAD(); \
        } \
        collected = collected << count | bits >> 1 >> (63 - count); \
        PASS(count); \
    } while (0)

/* Read the next block of a scan: ITU T.81, G.1.2.2 and G.1.2.3. libjpeg also accepts values beyond the
last coefficient, or that do not fit; these are left to it. */
static INLINE void scan_one(Entropy *self, uint64_t *nonzero, int16_t *block)
{
    if (!self->stopped && self->copy + self->filled - self->next < ENTROPY_MAX_MCU)
        fill(self);
    const uint8_t *next = self->next;
    const Codes *const codes = self->scan;
    uint64_t bits = self->bits;
    unsigned ahead = self->ahead, entry;
    const Band band = self->band;
    const int one = 1 << band.low;
    uint64_t added = 0;
    if (!band.refines) {
        for (int k = band.first; k <= band.last; k++) {
            FIND(entry);
            const unsigned size = SIZE(entry);
            if (!size && RUN(entry) < 15) {
                FIND_END();
                self->blocks_to_end--;
                break;
            }
            k += RUN(entry);
            if (size) {
                if (k > band.last || size + (unsigned)band.low > 15) {
                    self->broken = 1;
                    break;
                }
                added |= (uint64_t)1 << k;
                if (block)
                    block[places[k]] = (int16_t)(
                        value(bits << CODE(entry), 63 - size) * one);
            }
            PASS(LENGTH(entry));
        }
    } else {
        /* The coefficients that are not 0 have one more bit each, in order: added at the end. */
        uint64_t collected = 0, rest = self->within, refined = rest & *nonzero;
        unsigned total = 0;
        while (!self->blocks_to_end && rest) {
            FIND(entry);
            const unsigned size = SIZE(entry);
            if (!size && RUN(entry) < 15) {
                FIND_END();
                break;
            }
            PASS(CODE(entry));
            const int negative = (int)(~bits >> 63);
            PASS(size);
            uint64_t zeros = rest & ~*nonzero;
            int run = RUN(entry);
            for (int k = 0; k < 3; k++) /* without branches */
                zeros &= zeros - (run > k);
            for (; run > 3; run--)
                zeros &= zeros - 1;
            if (!zeros || size > 1) {
                self->broken = 1;
                break;
            }
            const uint64_t place = zeros & (0 - zeros);
            COLLECT(rest & *nonzero & (place - 1));
            rest &= (0 - place) << 1;
            if (size) {
                added |= place;
                if (block)
                    block[places[lowest_bit(place)]] = (int16_t)(negative ? -one : one);
            }
        }
        if (self->blocks_to_end) {
            self->blocks_to_end--;
            READ_AHEAD();
            COLLECT(rest & *nonzero);
        }
        if (block && total)
            for (collected <<= 64 - total; refined; refined &= refined - 1, collected <<= 1) {
                int16_t *const at = &block[places[lowest_bit(refined)]];
                const int sign = *at >> 15;
                *at = (int16_t)(*at + (((one ^ sign) - sign) & -(int)(collected >> 63)));
            }
    }
    *nonzero |= added;
    self->next = next;
    self->bits = bits;
    self->ahead = ahead;
    self->mcu++;
    if (self->stopped && (self->copy + self->filled - next) * 8 + (int)ahead < 0)
        self->broken = 1; /* beyond the end, as above */
}

static void scan_block(Entropy *self, uint64_t *nonzero, int16_t *block)
{
    scan_one(self, nonzero, block);
}
#ifdef __x86_64__
TARGET("bmi,bmi2,popcnt")
static void scan_block_with_bmi2(Entropy *self, uint64_t *nonzero, int16_t *block)
{
    scan_one(self, nonzero, block);
}
#endif

int entropy_scan_block(Entropy *self, uint64_t *nonzero, int16_t *block)
{
    if (self->interval && self->mcu == (self->segment + 1) * self->interval
        && !seek(self, self->segment + 1))
        self->broken = 1;
    if (self->broken)
        return 0;
    if (self->blocks_to_end && !(self->band.refines && self->within & *nonzero)) {
        self->blocks_to_end--; /* no bits are of this block */
        self->mcu++;
        return 1;
    }
#ifdef __x86_64__
    if (self->bmi2)
        scan_block_with_bmi2(self, nonzero, block);
    else
#endif
        scan_block(self, nonzero, block);
    return !self->broken;
}

const uint8_t *entropy_marker(Entropy *self)
{
    if (self->broken || !is_read(self))
        return NULL;
    const uint8_t *kind = self->source;
    while (kind < self->end && *kind == 0xFF)
        kind++; /* over fill bytes */
    const int is_marker = kind < self->end && *kind != 0 && (*kind & 0xF8) != 0xD0;
    return is_marker ? self->source : NULL;
}
