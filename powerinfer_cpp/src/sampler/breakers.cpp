#include "sampler/breakers.h"

#include <algorithm>

#include "ggml/status.h"

namespace powerinfer {

namespace {

constexpr size_t kMostTexts = 256, kMostBytes = 40, kMostTail = 20;

// A token as a text of its own: without the space that SentencePiece puts before a text.
std::string_view alone(const Vocab& vocab, int32_t id) {
    std::string_view text = vocab.text(id, true);
    if (vocab.add_space_prefix && !vocab.bpe && !text.empty() && text[0] == ' ')
        text.remove_prefix(1);
    return text;
}

}  // namespace

Breakers::Breakers(const Vocab& vocab, const std::vector<std::string_view>& texts) {
    if (texts.size() > kMostTexts)
        throw ggml::Error(ggml::Code::argument,
                          ggml::format("DRY takes at most %zu sequence breakers, not %zu",
                                       kMostTexts, texts.size()));
    for (const std::string_view text : texts) {
        if (text.empty())
            throw ggml::Error(ggml::Code::argument, "a sequence breaker of DRY is empty");
        add(vocab, text.substr(0, kMostBytes));
    }
}

void Breakers::add(const Vocab& vocab, std::string_view text) {
    // The tokens of each rest of the text; found once, not for every token that needs it.
    std::vector<Tail> rests(text.size());
    for (size_t n = 1; n < text.size(); n++) {
        rests[n] = vocab.tokenize(text.substr(n), false);
        if (rests[n].size() > kMostTail) rests[n].resize(kMostTail);
    }
    for (int32_t id = 0; id < vocab.size(); id++) {
        const std::string_view token = alone(vocab, id);
        const bool whole = token.find(text) != token.npos;
        // whole: n is 0, and no tokens follow.
        for (size_t n = 0; n < (whole ? 1 : std::min(text.size(), token.size() + 1)); n++) {
            if (!whole && (n == 0 || token.substr(token.size() - n) != text.substr(0, n))) continue;
            std::vector<Tail>& tails = tails_[id];
            if (std::find(tails.begin(), tails.end(), rests[n]) == tails.end())
                tails.push_back(rests[n]);
        }
    }
}

const std::vector<Breakers::Tail>* Breakers::find(int32_t head) const {
    const auto found = tails_.find(head);
    return found == tails_.end() ? nullptr : &found->second;
}

bool Breakers::is_one(int32_t token) const {
    const std::vector<Tail>* tails = find(token);
    return tails &&
           std::any_of(tails->begin(), tails->end(), [](const Tail& tail) { return tail.empty(); });
}

}  // namespace powerinfer
