#include "tokenizer/unicode/characters.h"

#include <algorithm>
#include <iterator>

namespace powerinfer {
namespace {

struct KindRange {
    uint32_t first, last;
    CharKind kind;
};

constexpr CharKind LU = CharKind::upper, LL = CharKind::lower, LO = CharKind::letter,
                   M = CharKind::mark, ND = CharKind::digit, NL = CharKind::letter_number,
                   NO = CharKind::number, P = CharKind::punctuation, Y = CharKind::symbol,
                   S = CharKind::space;

const KindRange kind_ranges[] = {
#include "tokenizer/unicode/unicode_tables.inc"
};

template <size_t n>
bool in_ranges(const uint32_t (&ranges)[n][2], uint32_t point) {
    const auto* range =
        std::upper_bound(std::begin(ranges), std::end(ranges), point,
                         [](uint32_t value, const uint32_t(&r)[2]) { return value < r[0]; });
    return range != std::begin(ranges) && point <= (*(range - 1))[1];
}

}  // namespace

CharKind char_kind(uint32_t code_point) {
    const KindRange* range =
        std::upper_bound(std::begin(kind_ranges), std::end(kind_ranges), code_point,
                         [](uint32_t value, const KindRange& r) { return value < r.first; });
    if (range == std::begin(kind_ranges) || code_point > range[-1].last) return CharKind::other;
    return range[-1].kind;
}

bool is_word(uint32_t code_point) {
    switch (char_kind(code_point)) {
        case CharKind::upper:
        case CharKind::lower:
        case CharKind::letter:
        case CharKind::mark:
        case CharKind::digit:
        case CharKind::letter_number:
            return true;
        default:
            break;
    }
    // Punctuation that connects words, and letters in circles and squares.
    static const uint32_t more[][2] = {
        {0x5F, 0x5F},       {0x203F, 0x2040},   {0x2054, 0x2054}, {0x24B6, 0x24E9},
        {0xFE33, 0xFE34},   {0xFE4D, 0xFE4F},   {0xFF3F, 0xFF3F}, {0x1F130, 0x1F149},
        {0x1F150, 0x1F169}, {0x1F170, 0x1F189},
    };
    return in_ranges(more, code_point);
}

bool deepseek_letter(const Char& c) {
    static const uint32_t ranges[][2] = {
        {0x41, 0x5A},       {0x61, 0x7A},       {0xB5, 0xB5},       {0xC0, 0xD6},
        {0xD8, 0xF6},       {0xF8, 0x1BA},      {0x1BC, 0x1BF},     {0x1C4, 0x293},
        {0x295, 0x2AF},     {0x370, 0x373},     {0x376, 0x377},     {0x37B, 0x37D},
        {0x37F, 0x37F},     {0x386, 0x386},     {0x388, 0x38A},     {0x38C, 0x38C},
        {0x38E, 0x3A1},     {0x3A3, 0x3F5},     {0x3F7, 0x481},     {0x48A, 0x52F},
        {0x531, 0x556},     {0x10A0, 0x10C5},   {0x13A0, 0x13F5},   {0x13F8, 0x13FD},
        {0x1C90, 0x1CBA},   {0x1CBD, 0x1CBF},   {0x1D00, 0x1D2B},   {0x1D6B, 0x1D77},
        {0x1D79, 0x1D9A},   {0x1E00, 0x1F15},   {0x1F18, 0x1F1D},   {0x1F20, 0x1F45},
        {0x1F48, 0x1F4D},   {0x1F50, 0x1F57},   {0x1F59, 0x1F59},   {0x1F5B, 0x1F5B},
        {0x1F5D, 0x1F5D},   {0x1F5F, 0x1F7D},   {0x1F80, 0x1FB4},   {0x1FB6, 0x1FBC},
        {0x1FBE, 0x1FBE},   {0x1FC2, 0x1FC4},   {0x1FC6, 0x1FCC},   {0x1FD0, 0x1FD3},
        {0x1FD6, 0x1FDB},   {0x1FE0, 0x1FEC},   {0x1FF2, 0x1FF4},   {0x1FF6, 0x1FFC},
        {0x2102, 0x2102},   {0x2107, 0x2107},   {0x210A, 0x2113},   {0x2115, 0x2115},
        {0x2119, 0x211D},   {0x2124, 0x2124},   {0x2126, 0x2126},   {0x2128, 0x2128},
        {0x212A, 0x212D},   {0x212F, 0x2134},   {0x2139, 0x2139},   {0x213C, 0x213F},
        {0x2145, 0x2149},   {0x214E, 0x214E},   {0x2183, 0x2184},   {0x2C00, 0x2C7B},
        {0x2C7E, 0x2CE4},   {0x2CEB, 0x2CEE},   {0x2CF2, 0x2CF3},   {0xA640, 0xA66D},
        {0xA680, 0xA69B},   {0xA722, 0xA76F},   {0xA771, 0xA787},   {0xA78B, 0xA78E},
        {0xAB70, 0xABBF},   {0xFB00, 0xFB06},   {0xFB13, 0xFB17},   {0xFF21, 0xFF3A},
        {0xFF41, 0xFF5A},   {0x10400, 0x1044F}, {0x104B0, 0x104D3}, {0x104D8, 0x104FB},
        {0x10C80, 0x10CB2}, {0x10CC0, 0x10CF2}, {0x118A0, 0x118DF}, {0x1E900, 0x1E943},
    };
    return in_ranges(ranges, c.point);
}

bool deepseek_mark(const Char& c) {
    static const uint32_t ranges[][2] = {{0x21, 0x2F},     {0x3A, 0x7E},     {0x2018, 0x201F},
                                         {0x3000, 0x3002}, {0xFF01, 0xFF0F}, {0xFF1A, 0xFF5E}};
    return in_ranges(ranges, c.point);
}

bool deepseek_ideograph(const Char& c) {
    static const uint32_t ranges[][2] = {{0x800, 0x9FA5}, {0xAC00, 0xD7FF}};
    return in_ranges(ranges, c.point);
}

bool deepseek3_ideograph(const Char& c) {
    return (c.point >= 0x4E00 && c.point <= 0x9FA5) || (c.point >= 0x3040 && c.point <= 0x30FF);
}

bool han(const Char& c) {
    static const uint32_t ranges[][2] = {
        {0x2E80, 0x2E99},   {0x2E9B, 0x2EF3},   {0x2F00, 0x2FD5},   {0x3005, 0x3005},
        {0x3007, 0x3007},   {0x3021, 0x3029},   {0x3038, 0x303B},   {0x3400, 0x4DBF},
        {0x4E00, 0x9FFF},   {0xF900, 0xFA6D},   {0xFA70, 0xFAD9},   {0x16FE2, 0x16FE3},
        {0x16FF0, 0x16FF1}, {0x20000, 0x2A6DF}, {0x2A700, 0x2B739}, {0x2B740, 0x2B81D},
        {0x2B820, 0x2CEA1}, {0x2CEB0, 0x2EBE0}, {0x2EBF0, 0x2EE5D}, {0x2F800, 0x2FA1D},
        {0x30000, 0x3134A}, {0x31350, 0x323AF},
    };
    return in_ranges(ranges, c.point);
}

int spaceless_script(const Char& c) {
    struct Script {
        uint32_t first, last;
        int number;
    };
    static const Script scripts[] = {
        {0xE00, 0xE7F, 2},   {0xE80, 0xEFF, 3},   {0x1000, 0x109F, 5}, {0x1100, 0x11FF, 6},
        {0x1780, 0x17FF, 4}, {0x2F00, 0x2FDF, 1}, {0x3040, 0x30FF, 1}, {0x3400, 0x4DBF, 1},
        {0x4E00, 0x9FFF, 1}, {0xA9E0, 0xA9FF, 5}, {0xAA60, 0xAA7F, 5}, {0xAC00, 0xD7AF, 6},
        {0xF900, 0xFAFF, 1}, {0xFF65, 0xFF9F, 1},
    };
    if (c.point < scripts[0].first) return 0;
    const Script* script =
        std::upper_bound(std::begin(scripts), std::end(scripts), c.point,
                         [](uint32_t value, const Script& s) { return value < s.first; });
    return c.point <= script[-1].last ? script[-1].number : 0;
}

}  // namespace powerinfer
