// Splits texts at special tokens. tokenizer_spm.cpp, tokenizer_unigram.cpp and tokenizer_bpe.cpp
// encode the text between them.
#include "vocab.h"

#include <algorithm>

namespace powerinfer {

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
        if (begin < end) encode(*this, text.substr(begin, end - begin), result);
    };
    for (const SpecialTokens::Found& f : (special ? in_text : in_plain_text).find(text)) {
        between(f.begin);
        result.push_back(f.token);
        begin = f.begin + f.size;
    }
    between(text.size());
    return result;
}

}  // namespace powerinfer
