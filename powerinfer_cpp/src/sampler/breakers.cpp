#include "sampler/breakers.h"

#include <algorithm>
#include <utility>

#include "ggml/status.h"

namespace powerinfer {

namespace {

constexpr size_t kMostTexts = 256, kMostBytes = 40, kMostTail = 20;

// A token as a text of its own: without the space that some vocabularies put before a text.
std::string_view alone(const Vocab& vocab, int32_t id) {
    std::string_view text = vocab.text(id, true);
    if (vocab.add_space_prefix && !text.empty() && text[0] == ' ') text.remove_prefix(1);
    return text;
}

}  // namespace

Breakers::Breakers(std::shared_ptr<const Vocab> vocab, const std::vector<std::string_view>& texts)
    : vocab_(std::move(vocab)) {
    if (texts.size() > kMostTexts)
        throw ggml::Error(ggml::Code::argument,
                          ggml::format("DRY takes at most %zu sequence breakers, not %zu",
                                       kMostTexts, texts.size()));
    for (const std::string_view text : texts) {
        if (text.empty())
            throw ggml::Error(ggml::Code::argument, "a sequence breaker of DRY is empty");
        texts_.push_back({std::string(text.substr(0, kMostBytes)), {}});
    }
    const auto before = [](const Text& a, const Text& b) { return a.bytes < b.bytes; };
    const auto same = [](const Text& a, const Text& b) { return a.bytes == b.bytes; };
    std::sort(texts_.begin(), texts_.end(), before);
    texts_.erase(std::unique(texts_.begin(), texts_.end(), same), texts_.end());
    for (int byte = 0; byte < 256; byte++)
        first_[byte] = going_on({0, texts_.size()}, 0, char(byte));
    for (Text& text : texts_) {
        text.rests.resize(text.bytes.size());
        for (size_t n = 1; n < text.bytes.size(); n++) {
            text.rests[n] = vocab_->tokenize(std::string_view(text.bytes).substr(n), false);
            if (text.rests[n].size() > kMostTail) text.rests[n].resize(kMostTail);
        }
    }
}

Breakers::Range Breakers::going_on(Range range, size_t n, char byte) const {
    const auto at = [&](size_t i) { return texts_.begin() + ptrdiff_t(i); };
    // The byte behind the first n; -1, before all others, where a text ends.
    const auto next = [n](const Text& t) {
        return n < t.bytes.size() ? int(uint8_t(t.bytes[n])) : -1;
    };
    const int wanted = uint8_t(byte);
    const auto begin = std::partition_point(at(range.begin), at(range.end),
                                            [&](const Text& t) { return next(t) < wanted; });
    const auto end = std::partition_point(begin, at(range.end),
                                          [&](const Text& t) { return next(t) == wanted; });
    return {size_t(begin - texts_.begin()), size_t(end - texts_.begin())};
}

std::vector<const Breakers::Tail*> Breakers::find(int32_t head) const {
    static const Tail nothing;
    const std::string_view token = alone(*vocab_, head);
    struct Ending {  // the token ends with the first n bytes of these texts
        Range of;
        size_t n;
    };
    std::vector<Ending> endings;
    std::vector<size_t> whole;  // texts that the token contains
    for (size_t i = 0; i < token.size(); i++) {
        const std::string_view rest = token.substr(i);
        Range range = first_[uint8_t(rest[0])];
        size_t n = 1;
        for (; range.begin < range.end; n++) {
            if (texts_[range.begin].bytes.size() == n) whole.push_back(range.begin++);
            if (n == rest.size()) break;
            range = going_on(range, n, rest[n]);
        }
        if (range.begin < range.end) endings.push_back({range, n});
    }
    std::vector<const Tail*> tails;
    if (!whole.empty()) tails.push_back(&nothing);
    for (const Ending& ending : endings) {
        for (size_t t = ending.of.begin; t < ending.of.end; t++) {
            if (std::find(whole.begin(), whole.end(), t) == whole.end())
                tails.push_back(&texts_[t].rests[ending.n]);
        }
    }
    return tails;
}

}  // namespace powerinfer
