// Splits texts at special tokens. What happens between them is the family's business:
// tokenizer_spm.cpp, tokenizer_bpe.cpp.
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
    // Longer special tokens are matched before shorter ones, wherever they stand. found[i] is the
    // token that starts at byte i.
    constexpr int32_t none = -1, inside = -2;
    std::vector<int32_t> found(text.size(), none);
    for (const size_t length : special_lengths) {
        for (size_t i = 0; i + length <= text.size(); i++) {
            // What was matched before is at least as long as this: it covers one of the two ends.
            if (!special_first[uint8_t(text[i])] || found[i] != none ||
                found[i + length - 1] != none)
                continue;
            const auto match = specials.find(text.substr(i, length));
            if (match == specials.end()) continue;
            if (!special && tokens[match->second].type != TokenType::user_defined) continue;
            std::fill_n(found.begin() + ptrdiff_t(i), length, inside);
            found[i] = match->second;
        }
    }

    std::vector<int32_t> result;
    for (size_t i = 0; i < text.size();) {
        if (found[i] != none) {
            result.push_back(found[i]);
            i += tokens[size_t(found[i])].text.size();
        } else {
            size_t end = i;
            while (end < text.size() && found[end] == none) end++;
            encode(*this, text.substr(i, end - i), result);
            i = end;
        }
    }
    return result;
}

}  // namespace powerinfer
