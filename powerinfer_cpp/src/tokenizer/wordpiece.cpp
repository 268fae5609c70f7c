#include "tokenizer/wordpiece.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "base/utf8.h"
#include "ggml/status.h"
#include "tokenizer/unicode/normal_forms.h"

namespace powerinfer {

namespace {

#include "tokenizer/wordpiece.inc"

constexpr size_t kMostPoints = 100;                  // of a word that is divided
constexpr std::string_view kBegin = "\xE2\x96\x81";  // U+2581
constexpr uint32_t kSpace = ' ';

template <size_t n>
bool in(const int32_t (&ranges)[n][2], uint32_t point) {
    const auto* range = std::upper_bound(
        std::begin(ranges), std::end(ranges), point,
        [](uint32_t value, const int32_t(&r)[2]) { return value < uint32_t(r[0]); });
    return range != std::begin(ranges) && point <= uint32_t(range[-1][1]);
}

bool is_space(uint32_t point) {
    return point < 0x80 ? point == ' ' || point == '\t' || point == '\n' || point == '\r'
                        : in(kSpaces, point);
}

uint32_t lower(uint32_t point) {
    if (point < 0x80) return point >= 'A' && point <= 'Z' ? point + ('a' - 'A') : point;
    const auto* row = std::upper_bound(
        std::begin(kLower), std::end(kLower), point,
        [](uint32_t value, const int32_t(&r)[4]) { return value < uint32_t(r[0]); });
    if (row == std::begin(kLower)) return point;
    const auto& [first, last, step, distance] = row[-1];
    const bool has = point <= uint32_t(last) && (point - uint32_t(first)) % uint32_t(step) == 0;
    return has ? point + uint32_t(distance) : point;
}

// The code points of a text without control characters, with spaces for white space and around
// ideographs. Bytes that are not UTF-8 vanish, as U+FFFD does.
std::vector<uint32_t> cleaned(const WordPiece& how, std::string_view text) {
    std::vector<uint32_t> points;
    points.reserve(text.size());
    while (!text.empty()) {
        const size_t n = utf8_length(text);
        if (n == 0) {
            text.remove_prefix(1);
            continue;
        }
        const uint32_t point = utf8_point(text, n);
        text.remove_prefix(n);
        if (is_space(point)) {
            points.push_back(kSpace);
        } else if (how.split_ideographs && point >= 0x3400 && in(kApart, point)) {
            points.insert(points.end(), {kSpace, point, kSpace});
        } else if ((point >= ' ' && point < 0x7F) || !in(kDropped, point)) {
            points.push_back(point);
        }
    }
    return points;
}

std::vector<uint32_t> normal(const WordPiece& how, std::string_view text) {
    std::vector<uint32_t> points = cleaned(how, text);
    if (how.strip_accents) {
        decompose(points);
        points.erase(std::remove_if(points.begin(), points.end(),
                                    [](uint32_t p) { return p >= 0x300 && in(kMarks, p); }),
                     points.end());
    }
    if (!how.lowercase) return points;
    std::vector<uint32_t> out;
    out.reserve(points.size());
    for (const uint32_t point : points) {
        if (point == 0x130) {  // the only one that becomes two
            out.insert(out.end(), {'i', 0x307});
        } else {
            out.push_back(lower(point));
        }
    }
    return out;
}

void add_word(const Vocab& vocab, const uint32_t* points, size_t n, std::string& text,
              std::vector<int32_t>& ids) {
    const size_t before = ids.size();
    text = kBegin;
    for (size_t i = 0; i < n; i++) append_utf8(points[i], text);
    bool known = n <= kMostPoints;
    for (size_t at = 0; known && at < text.size();) {
        const std::string_view rest = std::string_view(text).substr(at);
        int32_t longest = -1;
        size_t size = 0;
        vocab.wordpiece->pieces.each(rest, [&](int32_t id, size_t bytes) {
            longest = id;
            size = bytes;
        });
        // Within a word U+2581 is a character of the text, and no piece has it.
        known = longest >= 0 && (at == 0 || rest.substr(0, kBegin.size()) != kBegin);
        ids.push_back(longest);
        at += size;
    }
    if (known) return;
    ids.resize(before);
    ids.push_back(vocab.unk);
}

}  // namespace

std::shared_ptr<const WordPiece> read_wordpiece(const ggml::Gguf& gguf, const Vocab& vocab) {
    if (vocab.unk < 0) {
        throw ggml::Error(ggml::Code::format, gguf.path() +
                                                  ": tokenizer.ggml.unknown_token_id: WordPiece "
                                                  "needs a token for unknown words");
    }
    auto w = std::make_shared<WordPiece>();
    w->lowercase = gguf.boolean("tokenizer.ggml.normalizer.lowercase", true);
    w->strip_accents = gguf.boolean("tokenizer.ggml.normalizer.strip_accents", w->lowercase);
    w->split_ideographs = gguf.boolean("powerinfer.tokenizer.split_ideographs", true);
    std::vector<int32_t> ids;
    for (int32_t id = 0; id < vocab.size(); id++) {
        const Vocab::Token& token = vocab.tokens[size_t(id)];
        const bool is_text = token.type == TokenType::normal ||
                             token.type == TokenType::undefined || token.type == TokenType::unused;
        // U+2581 alone begins every word, and is none.
        if (is_text && token.text != kBegin && vocab.find(token.text) == id) ids.push_back(id);
    }
    w->pieces = PrefixIndex(
        ids, [&](int32_t id) { return std::string_view(vocab.tokens[size_t(id)].text); });
    return w;
}

void encode_wordpiece(const Vocab& vocab, std::string_view text, std::vector<int32_t>& ids) {
    const std::vector<uint32_t> points = normal(*vocab.wordpiece, text);
    std::string word;
    size_t begin = 0;
    const auto end_word = [&](size_t end) {
        if (begin < end) add_word(vocab, points.data() + begin, end - begin, word, ids);
        begin = end;
    };
    for (size_t i = 0; i < points.size(); i++) {
        const bool space = is_space(points[i]);
        if (!space && !in(kPunctuation, points[i])) continue;
        end_word(i);
        if (space) {
            begin = i + 1;
        } else {
            end_word(i + 1);
        }
    }
    end_word(points.size());
}

}  // namespace powerinfer
