// The best division by dynamic programming (Viterbi) from left to right. Scores are added in floats
// as sentencepiece adds them, so that of nearly equal ways the same one is found.
#include "tokenizer/unigram.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "base/utf8.h"
#include "ggml/status.h"

namespace powerinfer {

namespace {

const char* const key_charsmap = "tokenizer.ggml.precompiled_charsmap";

// Real tables have up to 300 kB.
constexpr uint64_t kMostCharsmap = 1 << 24;
constexpr float kUnknownPenalty = 10;  // below the smallest score

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581

[[noreturn]] void refuse(const ggml::Gguf& gguf, const std::string& why) {
    throw ggml::Error(ggml::Code::format, gguf.path() + ": " + key_charsmap + ": " + why);
}

Charsmap read_charsmap(const ggml::Gguf& gguf) {
    const ggml::Value* value = gguf.find(key_charsmap);
    if (!value) return {};
    const ggml::ValueType kind = value->element_type();
    if (!value->is_array() || (kind != ggml::ValueType::i8 && kind != ggml::ValueType::u8)) {
        refuse(gguf, "is not an array of bytes");
    }
    if (value->count() > kMostCharsmap) refuse(gguf, "has more than 16 MiB");
    std::string bytes;
    for (uint64_t i = 0; i < value->count(); i++) bytes += char(value->integer(i));
    if (bytes.empty()) return {};
    try {
        return Charsmap(bytes);
    } catch (const std::invalid_argument& e) {
        refuse(gguf, e.what());
    }
}

bool ends_with(const std::string& text, std::string_view end) {
    return text.size() >= end.size() && !text.compare(text.size() - end.size(), end.size(), end);
}

// The text as tokens spell it: characters replaced, spaces as U+2581.
std::string normal(const Vocab& vocab, std::string_view text) {
    const Unigram& u = *vocab.unigram;
    std::string out;
    if (vocab.add_space_prefix) out = kSpace;
    bool after_space = u.join_spaces;
    while (!text.empty()) {
        const Charsmap::Found found = u.charsmap.find(text);
        text.remove_prefix(found.size);
        std::string_view part = found.instead;
        if (after_space) part.remove_prefix(std::min(part.find_first_not_of(' '), part.size()));
        for (const char c : part) {
            if (c == ' ') {
                out += kSpace;
            } else {
                out += c;
            }
        }
        if (!part.empty()) after_space = u.join_spaces && part.back() == ' ';
    }
    while (u.join_spaces && ends_with(out, kSpace)) out.resize(out.size() - kSpace.size());
    return out;
}

// The best way to a place in the text: the sum of scores, and its last token.
struct Best {
    float score = 0;
    int32_t id = -1;       // -1: a character without a token
    ptrdiff_t begin = -1;  // of the last token; -1: no way leads here yet

    void offer(double way, int32_t token, size_t from) {
        if (begin >= 0 && !(way > double(score))) return;
        score = float(way);
        id = token;
        begin = ptrdiff_t(from);
    }
};

class Lattice {
 public:
    Lattice(const Vocab& vocab, std::string_view text)
        : vocab_(vocab), unigram_(*vocab.unigram), text_(text), best_(text.size() + 1) {
        for (size_t at = 0; at < text.size(); at += character(at)) extend(at);
    }

    // The tokens of the best way, first to last: calls use(id, text).
    template <typename F>
    void each(const F& use) const {
        std::vector<size_t> ends;
        for (size_t end = text_.size(); end > 0; end = size_t(best_[end].begin))
            ends.push_back(end);
        for (size_t i = ends.size(); i-- > 0;) {
            const Best& last = best_[ends[i]];
            const auto begin = size_t(last.begin);
            use(last.id, text_.substr(begin, ends[i] - begin));
        }
    }

 private:
    size_t character(size_t at) const { return std::max<size_t>(utf8_length(text_.substr(at)), 1); }

    // Every token that begins here.
    void extend(size_t at) {
        const float so_far = best_[at].score;
        const size_t one = character(at);
        bool has_character = false;
        unigram_.pieces.each(text_.substr(at), [&](int32_t id, size_t n) {
            has_character |= n == one;
            best_[at + n].offer(score(id, n) + double(so_far), id, at);
        });
        if (!has_character) {
            best_[at + one].offer(double(unigram_.unknown + so_far), -1, at);
        }
    }

    // A user-defined token wins against all divisions into others.
    double score(int32_t id, size_t size) const {
        const Vocab::Token& token = vocab_.tokens[size_t(id)];
        if (token.type != TokenType::user_defined) return double(token.score);
        return double(float(size) * unigram_.largest) - 0.1;
    }

    const Vocab& vocab_;
    const Unigram& unigram_;
    const std::string_view text_;
    std::vector<Best> best_;  // by the number of bytes
};

}  // namespace

std::shared_ptr<const Unigram> read_unigram(const ggml::Gguf& gguf, const Vocab& vocab) {
    auto u = std::make_shared<Unigram>();
    u->charsmap = read_charsmap(gguf);
    u->join_spaces = gguf.boolean("tokenizer.ggml.remove_extra_whitespaces", false);
    const int32_t zero = vocab.byte_ids[0];
    u->byte_fallback = zero >= 0 && vocab.tokens[size_t(zero)].type == TokenType::byte;
    float smallest = 0;
    bool any = false;
    std::vector<int32_t> ids;
    for (int32_t id = 0; id < vocab.size(); id++) {
        if (vocab.find(vocab.tokens[size_t(id)].text) != id) continue;  // another one has its text
        const TokenType type = vocab.tokens[size_t(id)].type;
        if (type != TokenType::normal && type != TokenType::undefined &&
            type != TokenType::user_defined) {
            continue;
        }
        ids.push_back(id);
        if (type == TokenType::user_defined) continue;
        const float score = vocab.tokens[size_t(id)].score;
        smallest = any ? std::min(smallest, score) : score;
        u->largest = std::max(u->largest, score);
        any = true;
    }
    u->unknown = smallest - kUnknownPenalty;
    u->pieces = PrefixIndex(
        ids, [&](int32_t id) { return std::string_view(vocab.tokens[size_t(id)].text); });
    return u;
}

void encode_unigram(const Vocab& vocab, std::string_view text, std::vector<int32_t>& ids) {
    const std::string spelt = normal(vocab, text);
    bool after_unknown = false;
    Lattice(vocab, spelt).each([&](int32_t id, std::string_view piece) {
        const bool unknown = id < 0;
        if (!unknown) {
            ids.push_back(id);
        } else if (vocab.unigram->byte_fallback) {
            for (const char c : piece) {
                const int32_t byte = vocab.byte_ids[uint8_t(c)];
                const int32_t instead = byte >= 0 ? byte : vocab.unk;
                if (instead >= 0) ids.push_back(instead);
            }
        } else if (!after_unknown && vocab.unk >= 0) {
            ids.push_back(vocab.unk);  // one for all characters in a row
        }
        after_unknown = unknown;
    });
}

}  // namespace powerinfer
