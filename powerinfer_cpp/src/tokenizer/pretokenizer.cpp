// The rules are regular expressions in the models' tokenizer.json. Here each one is a function that
// returns the end of a match at a given place; the expression is in the comment above it.
#include "tokenizer/pretokenizer.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "base/utf8.h"

namespace powerinfer {
namespace {

struct KindRange {
    uint32_t first, last;
    CharKind kind;
};

constexpr CharKind LU = CharKind::upper, LL = CharKind::lower, LO = CharKind::letter,
                   M = CharKind::mark, N = CharKind::number, P = CharKind::punctuation,
                   Y = CharKind::symbol, S = CharKind::space;

const KindRange kind_ranges[] = {
#include "tokenizer/unicode_tables.inc"
};

template <size_t n>
bool in_ranges(const uint32_t (&ranges)[n][2], uint32_t point) {
    const auto* range =
        std::upper_bound(std::begin(ranges), std::end(ranges), point,
                         [](uint32_t value, const uint32_t(&r)[2]) { return value < r[0]; });
    return range != std::begin(ranges) && point <= (*(range - 1))[1];
}

// Decodes a character of n bytes, as found by utf8_length().
uint32_t decode(const char* bytes, size_t n) {
    uint32_t point = uint8_t(bytes[0]) & (n == 1 ? 0x7F : 0xFF >> (n + 1));
    for (size_t i = 1; i < n; i++) point = point << 6 | (uint8_t(bytes[i]) & 0x3F);
    return point;
}

std::vector<Char> decode(std::string_view text) {
    CharKind ascii[128];
    for (uint32_t point = 0; point < 128; point++) ascii[point] = char_kind(point);
    std::vector<Char> chars;
    chars.reserve(text.size() + 1);
    for (size_t i = 0; i < text.size();) {
        const size_t n = utf8_length(text.substr(i));
        if (n == 0) {
            chars.push_back({i, Char::no_point, CharKind::other});
            i++;
            continue;
        }
        const uint32_t point = decode(text.data() + i, n);
        chars.push_back({i, point, point < 128 ? ascii[point] : char_kind(point)});
        i += n;
    }
    chars.push_back({text.size(), Char::no_point, CharKind::other});  // ends the last
    return chars;
}

// ---- Kinds of characters, as the expressions name them ------------------------------------------

// Signatures of character classes and matchers, so that templates can combine them.
using Is = bool (*)(const Char&);
// Returns the end of a match that starts at `at`, or `at` if there is none.
using Match = const Char* (*)(const Char* at, const Char* end);

bool letter(const Char& c) {
    return c.kind == LU || c.kind == LL || c.kind == LO;
}
// [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
bool not_lower(const Char& c) {
    return c.kind == LU || c.kind == LO || c.kind == M;
}
// [\p{Ll}\p{Lm}\p{Lo}\p{M}]
bool not_upper(const Char& c) {
    return c.kind == LL || c.kind == LO || c.kind == M;
}
bool number(const Char& c) {
    return c.kind == N;
}
bool punctuation(const Char& c) {
    return c.kind == P;
}
bool space(const Char& c) {
    return c.kind == S;
}
// [^\s\p{L}\p{N}]
bool symbol(const Char& c) {
    return c.kind == CharKind::other || c.kind == P || c.kind == M || c.kind == Y;
}
// [^\s\p{L}\p{M}\p{N}]
bool symbol_but_mark(const Char& c) {
    return symbol(c) && c.kind != M;
}
// [\p{L}\p{M}]
bool letter_or_mark(const Char& c) {
    return letter(c) || c.kind == M;
}
// [\p{P}\p{S}]
bool punctuation_or_symbol(const Char& c) {
    return c.kind == P || c.kind == Y;
}
bool blank(const Char& c) {
    return c.point == ' ';
}
bool line_break(const Char& c) {
    return c.point == '\r' || c.point == '\n';
}
bool nothing(const Char&) {
    return false;
}
// [\r\n/]
bool line_break_or_slash(const Char& c) {
    return line_break(c) || c.point == '/';
}
// [^\r\n\p{L}\p{N}]
bool word_lead(const Char& c) {
    return !line_break(c) && !letter(c) && !number(c);
}
// [^\r\n\p{L}\p{P}\p{S}]
bool deepseek3_lead(const Char& c) {
    return !line_break(c) && !letter(c) && !punctuation_or_symbol(c);
}
bool ascii_letter(const Char& c) {
    return (c.point | 0x20) >= 'a' && (c.point | 0x20) <= 'z';
}
bool ascii_digit(const Char& c) {
    return c.point >= '0' && c.point <= '9';
}
// [\p{P}\$\+<=>\^~\|]
bool mark_but_backtick(const Char& c) {
    static const std::string_view more = "$+<=>^~|";
    return c.kind == P || (c.point < 128 && more.find(char(c.point)) != more.npos);
}
// [\p{P}\$\+<=>\^~\|`]
bool mark(const Char& c) {
    return c.point == '`' || mark_but_backtick(c);
}

// The letters that DeepSeek LLM lists: letters with case, but not all of them.
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

// [!-/:-~！-／：-～‘-‟　-。]
bool deepseek_mark(const Char& c) {
    static const uint32_t ranges[][2] = {{0x21, 0x2F},     {0x3A, 0x7E},     {0x2018, 0x201F},
                                         {0x3000, 0x3002}, {0xFF01, 0xFF0F}, {0xFF1A, 0xFF5E}};
    return in_ranges(ranges, c.point);
}

// [一-龥ࠀ-一가-퟿], which llama.cpp and tokenizer.json agree on, wide as it is
bool deepseek_ideograph(const Char& c) {
    static const uint32_t ranges[][2] = {{0x800, 0x9FA5}, {0xAC00, 0xD7FF}};
    return in_ranges(ranges, c.point);
}

// [一-龥぀-ゟ゠-ヿ]
bool deepseek3_ideograph(const Char& c) {
    return (c.point >= 0x4E00 && c.point <= 0x9FA5) || (c.point >= 0x3040 && c.point <= 0x30FF);
}

// \p{Han}
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
// [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]], and for lower case
bool not_lower_nor_han(const Char& c) {
    return not_lower(c) && !han(c);
}
bool not_upper_nor_han(const Char& c) {
    return not_upper(c) && !han(c);
}

// ---- Parts of expressions -----------------------------------------------------------------------

template <Is is>
const Char* skip(const Char* at, const Char* end) {
    while (at < end && is(*at)) at++;
    return at;
}

// X+, with one optional character of `lead` before it.
template <Is lead, Is is>
const Char* led_run(const Char* at, const Char* end) {
    const Char* first = at < end && lead(*at) ? at + 1 : at;
    const Char* last = skip<is>(first, end);
    if (last > first) return last;
    return skip<is>(at, end);  // the lead may itself belong to the run
}

// 's 't 're 've 'm 'll 'd. If case is ignored, Unicode also folds U+017F to s.
template <bool any_case>
const Char* contraction(const Char* at, const Char* end) {
    const auto lower = [&](ptrdiff_t i) -> uint32_t {
        if (end - at <= i) return 0;
        const uint32_t c = at[i].point;
        if (any_case && c >= 'A' && c <= 'Z') return c - 'A' + 'a';
        return any_case && c == 0x17F ? 's' : c;
    };
    if (lower(0) != '\'') return at;
    const uint32_t first = lower(1), second = lower(2);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
    const bool pair =
        ((first == 'r' || first == 'v') && second == 'e') || (first == 'l' && second == 'l');
    return pair ? at + 3 : at;
}

// \s+(?!\S)|\s+: a run of white space without its last character, which belongs to the next piece.
// The whole run if it is at the end of the text or has one character.
const Char* spaces(const Char* at, const Char* end) {
    const Char* last = skip<space>(at, end);
    return last < end && last - at > 1 ? last - 1 : last;
}

// ---- Whole expressions --------------------------------------------------------------------------

// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
const Char* gpt2_piece(const Char* at, const Char* end) {
    const Char* last = contraction<false>(at, end);
    if (last == at) last = led_run<blank, letter>(at, end);
    if (last == at) last = led_run<blank, number>(at, end);
    if (last == at) last = led_run<blank, symbol>(at, end);
    return last == at ? spaces(at, end) : last;
}

// \p{N}{1,digits}
template <ptrdiff_t digits>
const Char* some_digits(const Char* at, const Char* end) {
    return skip<number>(at, std::min(end, at + std::min(end - at, digits)));
}

// \s*[\r\n]+|\s+(?!\S)|\s+
const Char* lines_or_spaces(const Char* at, const Char* end) {
    // The last line break of the run of white space ends a piece.
    const Char* last = skip<space>(at, end);
    while (last > at && !line_break(last[-1])) last--;
    return last > at ? last : spaces(at, end);
}

// \p{N}{1,digits}| ?[sign]+[tail]*|\s*[\r\n]+|\s+(?!\S)|\s+
template <ptrdiff_t digits, Is tail, Is sign = symbol>
const Char* not_a_word(const Char* at, const Char* end) {
    const Char* last = some_digits<digits>(at, end);
    if (last > at) return last;
    last = led_run<blank, sign>(at, end);
    return last > at ? skip<tail>(last, end) : lines_or_spaces(at, end);
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|
// \p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
template <ptrdiff_t digits>
const Char* llama3_piece(const Char* at, const Char* end) {
    const Char* last = contraction<true>(at, end);
    if (last == at) last = led_run<word_lead, letter>(at, end);
    return last > at ? last : not_a_word<digits, line_break>(at, end);
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|
// \p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
const Char* qwen35_piece(const Char* at, const Char* end) {
    const Char* last = contraction<true>(at, end);
    if (last == at) last = led_run<word_lead, letter_or_mark>(at, end);
    return last > at ? last : not_a_word<1, line_break, symbol_but_mark>(at, end);
}

// U*D+
template <Is U = not_lower, Is D = not_upper>
const Char* word_to_lower(const Char* at, const Char* end) {
    const Char* const upper = skip<U>(at, end);
    const Char* last = skip<D>(upper, end);
    if (last > upper) return last;
    // The last D among the U's: after it none follows.
    while (last > at && !D(last[-1])) last--;
    return last;
}

// U+D*, where U*D+ does not match: no D follows.
template <Is U = not_lower>
const Char* word_of_upper(const Char* at, const Char* end) {
    return skip<U>(at, end);
}

// [^\r\n\p{L}\p{N}]?X
template <Match match>
const Char* led(const Char* at, const Char* end) {
    const Char* const first = at < end && word_lead(*at) ? at + 1 : at;
    const Char* const last = match(first, end);
    if (last > first || first == at) return last;
    return match(at, end);  // the lead may be a mark, which belongs to words
}

// [^\r\n\p{L}\p{N}]?U*D+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|
// [^\r\n\p{L}\p{N}]?U+D*(?i:'s|'t|'re|'ve|'m|'ll|'d)?
template <Is U, Is D>
const Char* cased_word(const Char* at, const Char* end) {
    const Char* last = led<word_to_lower<U, D>>(at, end);
    if (last == at) last = led<word_of_upper<U>>(at, end);
    return last > at ? contraction<true>(last, end) : at;
}

// such words with U = not_lower and D = not_upper|
// \p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
const Char* gpt4o_piece(const Char* at, const Char* end) {
    const Char* last = cased_word<not_lower, not_upper>(at, end);
    return last > at ? last : not_a_word<3, line_break_or_slash>(at, end);
}

// \p{Han}+|the same words without Han|
// \p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
const Char* kimi_piece(const Char* at, const Char* end) {
    const Char* last = skip<han>(at, end);
    if (last == at) last = cased_word<not_lower_nor_han, not_upper_nor_han>(at, end);
    return last > at ? last : not_a_word<3, line_break>(at, end);
}

// [ASCII punctuation or symbol][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|
//  ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
const Char* deepseek3_piece(const Char* at, const Char* end) {
    if (at->point < 128 && punctuation_or_symbol(*at)) {
        const Char* last = skip<ascii_letter>(at + 1, end);
        if (last > at + 1) return last;
    }
    const Char* last = led_run<deepseek3_lead, letter_or_mark>(at, end);
    if (last > at) return last;
    last = led_run<blank, punctuation_or_symbol>(at, end);
    return last > at ? skip<line_break>(last, end) : lines_or_spaces(at, end);
}

// The same without contractions, and with each digit alone.
const Char* tekken_piece(const Char* at, const Char* end) {
    const Char* last = led<word_to_lower>(at, end);
    if (last == at) last = led<word_of_upper>(at, end);
    return last > at ? last : not_a_word<1, line_break_or_slash>(at, end);
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|
// \p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+
const Char* seed_coder_piece(const Char* at, const Char* end) {
    const Char* last = contraction<true>(at, end);
    if (last == at) last = led_run<word_lead, letter>(at, end);
    return last > at ? last : not_a_word<1, nothing>(at, end);
}

// ---- Passes -------------------------------------------------------------------------------------

// Matches become parts; so does the text between two matches.
template <Match match>
void cut(const Char* begin, const Char* end, std::vector<const Char*>& ends) {
    const Char* open = begin;
    for (const Char* at = begin; at < end;) {
        const Char* last = match(at, end);
        if (last == at) {
            at++;
            continue;
        }
        if (at > open) ends.push_back(at);
        ends.push_back(last);
        open = at = last;
    }
    if (end > open) ends.push_back(end);
}

template <Is is>
void cut_runs(const Char* begin, const Char* end, std::vector<const Char*>& ends) {
    cut<skip<is>>(begin, end, ends);
}

// [set], each character on its own
template <Is is>
const Char* one(const Char* at, const Char*) {
    return is(*at) ? at + 1 : at;
}

// [0-9][0-9][0-9]
const Char* three_digits(const Char* at, const Char* end) {
    const bool found =
        end - at >= 3 && ascii_digit(at[0]) && ascii_digit(at[1]) && ascii_digit(at[2]);
    return found ? at + 3 : at;
}

// \s+$, searched from the end: a forward search takes quadratic time in a text with many runs.
void cut_trailing_spaces(const Char* begin, const Char* end, std::vector<const Char*>& ends) {
    const Char* last = end;
    while (last > begin && space(last[-1])) last--;
    if (last > begin) ends.push_back(last);
    if (end > last) ends.push_back(end);
}

// ---- Rules --------------------------------------------------------------------------------------

// Names as in llama.cpp. It calls the second rule "default" and uses it for files without a name.
// Such files are older than the key; PowerInfer reads them with GPT-2's rule.
const PreTokenizer rules[] = {
    {" gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum"
     " modern-bert roberta-bpe jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code ",
     {cut<gpt2_piece>}},
    {" default ",
     {cut_runs<mark_but_backtick>, cut<gpt2_piece>, cut_runs<number>, cut<three_digits>}},
    {" falcon ", {cut_runs<mark>, cut<gpt2_piece>, cut<three_digits>}},
    {" starcoder refact command-r smollm codeshell exaone minerva-7b ",
     {cut<one<number>>, cut<gpt2_piece>}},
    {" llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano ",
     {cut<llama3_piece<3>>},
     /*ignore_merges*/ true,
     /*add_bos*/ true},
    {" dbrx smaug-bpe ", {cut<llama3_piece<3>>}},
    {" gpt-4o llama4 kanana2 minimax-m2 ", {cut<gpt4o_piece>}},
    {" tekken ", {cut<tekken_piece>}, /*ignore_merges*/ true, /*add_bos*/ true},
    {" seed-coder ", {cut<seed_coder_piece>}},
    {" glm4 glm5 chatglm-bpe ",
     {cut<llama3_piece<3>>},
     /*ignore_merges*/ false,
     /*add_bos*/ false,
     /*has_bos*/ false},
    {" qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan grok-2 solar-open ",
     {cut<llama3_piece<1>>}},
    {" qwen35 ", {cut<qwen35_piece>}},
    {" kimi-k2 ", {cut<kimi_piece>}},
    {" deepseek-v3 hunyuan-dense joyai-llm ",
     {cut<some_digits<3>>, cut_runs<deepseek3_ideograph>, cut<deepseek3_piece>}},
    {" deepseek-llm ",
     {cut<one<line_break>>, cut<led_run<space, deepseek_letter>>,
      cut<led_run<space, deepseek_mark>>, cut_trailing_spaces, cut_runs<deepseek_ideograph>,
      cut_runs<number>}},
    {" deepseek-coder ",
     {cut<one<line_break>>, cut<led_run<space, letter>>, cut<led_run<space, punctuation>>,
      cut_runs<deepseek_ideograph>, cut<one<number>>}},
};

}  // namespace

CharKind char_kind(uint32_t code_point) {
    const KindRange* range =
        std::upper_bound(std::begin(kind_ranges), std::end(kind_ranges), code_point,
                         [](uint32_t value, const KindRange& r) { return value < r.first; });
    if (range == std::begin(kind_ranges) || code_point > range[-1].last) return CharKind::other;
    return range[-1].kind;
}

std::vector<size_t> PreTokenizer::split(std::string_view text) const {
    const std::vector<Char> chars = decode(text);
    std::vector<const Char*> ends, finer;
    if (!text.empty()) ends.push_back(&chars.back());
    for (const Pass pass : passes) {
        if (!pass) break;
        finer.clear();
        const Char* begin = chars.data();
        for (const Char* end : ends) {
            pass(begin, end, finer);
            begin = end;
        }
        ends.swap(finer);
    }
    std::vector<size_t> result;
    result.reserve(ends.size());
    for (const Char* end : ends) result.push_back(end->begin);
    return result;
}

const PreTokenizer* find_pretokenizer(std::string_view name) {
    if (name.empty() || name.find(' ') != name.npos) return nullptr;
    const std::string spaced = " " + std::string(name) + " ";
    for (const PreTokenizer& rule : rules)
        if (std::string_view(rule.names).find(spaced) != std::string_view::npos) return &rule;
    return nullptr;
}

}  // namespace powerinfer
