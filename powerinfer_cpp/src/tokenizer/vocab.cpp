// Splits texts at special tokens. spm.cpp, unigram.cpp, bpe.cpp and wordpiece.cpp encode the text
// between them.
#include "tokenizer/vocab.h"

#include <algorithm>

#include "base/utf8.h"
#include "tokenizer/unicode/characters.h"
#include "tokenizer/unicode/normal_forms.h"

namespace powerinfer {

namespace {

constexpr size_t kNone = SIZE_MAX;

// The code point at the start of a text; U+FFFFFFFF for invalid UTF-8 or an empty text.
uint32_t first_point(std::string_view text) {
    const size_t n = utf8_length(text);
    return n ? utf8_point(text, n) : Char::no_point;
}

// Where the last character of a text begins; kNone for an empty text.
size_t last_char(std::string_view text) {
    size_t at = text.size();
    while (at > 0 && text.size() - at < 4) {
        at--;
        if ((uint8_t(text[at]) & 0xC0) != 0x80) return at;
    }
    return text.empty() ? kNone : text.size() - 1;
}

// \w of the added tokens' rule.
bool joins_words(uint32_t point) {
    return is_word(point) || point == 0x200C || point == 0x200D;
}

bool is_space(uint32_t point) {
    return char_kind(point) == CharKind::space;
}

}  // namespace

int32_t Vocab::find(std::string_view text) const {
    return ids.find(VocabHash()(text), [&](int32_t id) { return tokens[size_t(id)].text == text; });
}

bool Vocab::is_end(int32_t id) const {
    return std::binary_search(ends.begin(), ends.end(), id);
}

std::string_view Vocab::text(int32_t id, bool special) const {
    if (id < 0 || id >= size()) return {};
    const Token& token = tokens[id];
    const bool hidden = token.type == TokenType::control || token.type == TokenType::unknown;
    return hidden && !special ? std::string_view() : std::string_view(token.bytes);
}

std::vector<int32_t> Vocab::tokenize(std::string_view text, bool special) const {
    std::vector<int32_t> result;
    size_t begin = 0;
    const auto between = [&](size_t end) {
        if (begin == end) return;
        const std::string_view part = text.substr(begin, end - begin);
        if (composes) return encode(*this, composed(part), result);
        encode(*this, part, result);
    };
    for (const SpecialTokens::Found& f : (special ? in_text : in_plain_text).find(text)) {
        size_t from = f.begin, to = f.begin + f.size;
        if (const auto found = flags.find(f.token); found != flags.end()) {
            const std::string_view before = text.substr(0, from), behind = text.substr(to);
            if (found->second & single_word) {
                const size_t last = last_char(before);
                if (last != kNone && joins_words(first_point(before.substr(last)))) continue;
                if (joins_words(first_point(behind))) continue;
            }
            while ((found->second & lstrip) && from > begin) {
                const size_t last = last_char(text.substr(0, from));
                if (last < begin || !is_space(first_point(text.substr(last, from - last)))) break;
                from = last;
            }
            while ((found->second & rstrip) && to < text.size() &&
                   is_space(first_point(text.substr(to)))) {
                to += utf8_length(text.substr(to));
            }
        }
        between(from);
        result.push_back(f.token);
        begin = to;
    }
    between(text.size());
    return result;
}

}  // namespace powerinfer
