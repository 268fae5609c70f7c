// The rules are regular expressions in the models' tokenizer.json. Here each one is a function that
// returns the end of a match at a given place; the expression is in the comment above it.
#include "tokenizer/pretokenizer.h"

#include <algorithm>
#include <string>

#include "base/utf8.h"

namespace powerinfer {
namespace {

constexpr CharKind LU = CharKind::upper, LL = CharKind::lower, LO = CharKind::letter,
                   M = CharKind::mark, P = CharKind::punctuation, Y = CharKind::symbol,
                   S = CharKind::space;

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
        const uint32_t point = utf8_point(text.substr(i), n);
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
bool digit(const Char& c) {
    return c.kind == CharKind::digit;
}
bool number(const Char& c) {
    return digit(c) || c.kind == CharKind::letter_number || c.kind == CharKind::number;
}
bool mark_of_letter(const Char& c) {
    return c.kind == M;
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
// \w of Oniguruma, which counts all numbers of Latin-1
bool word(const Char& c) {
    return is_word(c.point) || (c.point < 256 && number(c));
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

// X?
template <Is is>
const Char* one(const Char* at, const Char* end) {
    return at < end && is(*at) ? at + 1 : at;
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

// \p{N}{1,digits}| ?[sign]+ and a tail|\s*[\r\n]+|\s+(?!\S)|\s+
template <ptrdiff_t digits, Match tail, Is sign = symbol>
const Char* not_a_word(const Char* at, const Char* end) {
    const Char* last = some_digits<digits>(at, end);
    if (last > at) return last;
    last = led_run<blank, sign>(at, end);
    return last > at ? tail(last, end) : lines_or_spaces(at, end);
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|
// \p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
template <ptrdiff_t digits>
const Char* llama3_piece(const Char* at, const Char* end) {
    const Char* last = contraction<true>(at, end);
    if (last == at) last = led_run<word_lead, letter>(at, end);
    return last > at ? last : not_a_word<digits, skip<line_break>>(at, end);
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|
// \p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
const Char* qwen35_piece(const Char* at, const Char* end) {
    const Char* last = contraction<true>(at, end);
    if (last == at) last = led_run<word_lead, letter_or_mark>(at, end);
    return last > at ? last : not_a_word<1, skip<line_break>, symbol_but_mark>(at, end);
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
    return last > at ? last : not_a_word<3, skip<line_break_or_slash>>(at, end);
}

// \p{Han}+|the same words without Han|
// \p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
const Char* kimi_piece(const Char* at, const Char* end) {
    const Char* last = skip<han>(at, end);
    if (last == at) last = cased_word<not_lower_nor_han, not_upper_nor_han>(at, end);
    return last > at ? last : not_a_word<3, skip<line_break>>(at, end);
}

// \p{L}\p{M}*(?: ?\p{L}\p{M}*)*
const Char* phrase(const Char* at, const Char* end) {
    const Char* last = at;
    while (at < end && letter(*at)) {
        last = skip<mark_of_letter>(at + 1, end);
        at = one<blank>(last, end);
    }
    return last;
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|
// \p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+
const Char* exaone_moe_piece(const Char* at, const Char* end) {
    const Char* last = contraction<true>(at, end);
    if (last == at) last = led<phrase>(at, end);
    return last > at ? last : not_a_word<1, one<line_break_or_slash>>(at, end);
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
    return last > at ? last : not_a_word<1, skip<line_break_or_slash>>(at, end);
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|
// \p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+
const Char* seed_coder_piece(const Char* at, const Char* end) {
    const Char* last = contraction<true>(at, end);
    if (last == at) last = led_run<word_lead, letter>(at, end);
    return last > at ? last : not_a_word<1, skip<nothing>>(at, end);
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

// A run of line breaks, of one kind or of two, begins a part: (?:\r?\n)+(?!\r?\n)
void cut_before_lines(const Char* begin, const Char* end, std::vector<const Char*>& ends) {
    const auto behind_break = [end](const Char* at) {
        const Char* const feed = at + (at < end && at->point == '\r');
        return feed < end && feed->point == '\n' ? feed + 1 : at;
    };
    for (const Char* at = begin; at < end;) {
        const Char* next = behind_break(at);
        if (next == at) {
            at++;
            continue;
        }
        if (at > begin) ends.push_back(at);
        while (next > at) {
            at = next;
            next = behind_break(at);
        }
    }
    if (end > begin) ends.push_back(end);
}

// Runs of digits from the right in threes, where no X follows: with \w, \d{1,3}(?=(?:\d{3})*\b).
template <Is follows>
void cut_threes(const Char* begin, const Char* end, std::vector<const Char*>& ends) {
    const Char* open = begin;
    for (const Char* at = begin; at < end;) {
        const Char* const last = skip<digit>(at, end);
        if (last == at) {
            at++;
            continue;
        }
        if (last == end || !follows(*last)) {
            if (at > open) ends.push_back(at);
            for (at += (last - at - 1) % 3 + 1; at < last; at += 3) ends.push_back(at);
            ends.push_back(last);
            open = last;
        }
        at = last;
    }
    if (end > open) ends.push_back(end);
}

// White space without a line break at its end, in the largest of these sizes.
void cut_spaces(const Char* begin, const Char* end, std::vector<const Char*>& ends) {
    if (begin < end && space(end[-1]) && !line_break(end[-1])) {
        for (ptrdiff_t size = 512; begin < end; size = size > 1 ? size / 2 : 1) {
            for (; end - begin >= size; begin += size) ends.push_back(begin + size);
        }
    } else {
        ends.push_back(end);
    }
}

// [script]+
const Char* script_run(const Char* at, const Char* end) {
    const int script = spaceless_script(*at);
    while (script && at < end && spaceless_script(*at) == script) at++;
    return at;
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
    {" starcoder refact command-r smollm codeshell exaone minerva-7b mellum2 ",
     {cut<one<number>>, cut<gpt2_piece>}},
    {" llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano ",
     {cut<llama3_piece<3>>},
     /*ignore_merges*/ true,
     /*add_bos*/ true},
    {" dbrx smaug-bpe ", {cut<llama3_piece<3>>}},
    {" jais-2 ", {cut<llama3_piece<3>>, cut_spaces}},
    {" nanochat ", {cut<llama3_piece<2>>}},
    {" gpt-4o llama4 kanana2 minimax-m2 ", {cut<gpt4o_piece>}},
    {" tiny_aya cohere2moe ", {cut_threes<word>, cut<gpt4o_piece>}},
    {" tekken ", {cut<tekken_piece>}, /*ignore_merges*/ true, /*add_bos*/ true},
    {" seed-coder ", {cut<seed_coder_piece>}},
    {" glm4 glm5 chatglm-bpe ",
     {cut<llama3_piece<3>>},
     /*ignore_merges*/ false,
     /*add_bos*/ false,
     /*has_bos*/ false},
    {" qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan grok-2 solar-open"
     " bailingmoe bailingmoe2 llada-moe ",
     {cut<llama3_piece<1>>}},
    {" laguna ", {cut_before_lines, cut<llama3_piece<1>>}},
    {" exaone-moe ", {cut<exaone_moe_piece>}},
    {" qwen35 ", {cut<qwen35_piece>}},
    {" kimi-k2 ", {cut<kimi_piece>}},
    {" deepseek-v3 hunyuan-dense joyai-llm ",
     {cut<some_digits<3>>, cut_runs<deepseek3_ideograph>, cut<deepseek3_piece>}},
    {" afmoe ", {cut_threes<nothing>, cut<script_run>, cut<deepseek3_piece>}},
    {" deepseek-llm ",
     {cut<one<line_break>>, cut<led_run<space, deepseek_letter>>,
      cut<led_run<space, deepseek_mark>>, cut_trailing_spaces, cut_runs<deepseek_ideograph>,
      cut_runs<number>}},
    {" deepseek-coder ",
     {cut<one<line_break>>, cut<led_run<space, letter>>, cut<led_run<space, punctuation>>,
      cut_runs<deepseek_ideograph>, cut<one<number>>}},
};

}  // namespace

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
