// Byte-level BPE splits the text into pieces and merges neighbours within each piece. The pair that
// is earliest in the file's list of merges is merged first. BPE of characters has one piece.
#include "tokenizer/bpe.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "base/utf8.h"
#include "ggml/status.h"

namespace powerinfer {
namespace {

using ggml::Code;
using ggml::Error;
using ggml::Gguf;
using ggml::Value;

const char* const key_merges = "tokenizer.ggml.merges";
const char* const key_pre = "tokenizer.ggml.pre";

// Each merge adds at most three symbols of a few hundred bytes. Public files have up to 500,000.
constexpr uint64_t kMostMerges = 1 << 22;

[[noreturn]] void refuse(const Gguf& gguf, const char* key, const std::string& why) {
    throw Error(Code::format, gguf.path() + ": " + key + ": " + why);
}

// GPT-2 writes printable Latin-1 bytes as themselves, and the other bytes, in order, as the
// characters from U+0100 on.
struct ByteAlphabet {
    std::string texts[256];  // UTF-8
    int16_t bytes[0x144];    // by code point; -1: stands for none

    ByteAlphabet() {
        std::fill(std::begin(bytes), std::end(bytes), int16_t(-1));
        uint32_t next = 0x100;
        for (int byte = 0; byte < 256; byte++) {
            const bool itself = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
            const uint32_t point = itself ? uint32_t(byte) : next++;
            bytes[point] = int16_t(byte);
            if (point < 0x80) {
                texts[byte] = {char(point)};
            } else {
                texts[byte] = {char(0xC0 | point >> 6), char(0x80 | (point & 0x3F))};
            }
        }
    }
};

const ByteAlphabet& alphabet() {
    static const ByteAlphabet it;
    return it;
}

// The token with this text, -1 if there is none. Control tokens are not text: "<|im_end|>" in a
// user's message must not end the turn, whatever the merges are.
int32_t find_token(const Vocab& vocab, std::string_view text) {
    const int32_t id = vocab.find(text);
    if (id < 0) return -1;
    const TokenType type = vocab.tokens[size_t(id)].type;
    return type == TokenType::control || type == TokenType::unknown ? -1 : id;
}

uint64_t pair_key(int32_t left, int32_t right) {
    return uint64_t(uint32_t(left)) << 32 | uint32_t(right);
}

// Numbers texts: the id of their token, or a new number.
class Symbols {
 public:
    Symbols(const Vocab& vocab, Bpe& bpe) : vocab_(vocab), bpe_(bpe) {}

    int32_t number(std::string_view text) {
        const int32_t token = find_token(vocab_, text);
        if (token >= 0) return token;
        const int32_t next = vocab_.size() + int32_t(others_.size());
        const auto [place, is_new] = others_.emplace(std::string(text), next);
        if (is_new) bpe_.spelt.push_back(spell(text));
        return place->second;
    }

 private:
    // Tokens of single characters, so that no bytes are lost if a merge forms no token.
    std::vector<int32_t> spell(std::string_view text) const {
        std::vector<int32_t> ids;
        while (!text.empty()) {
            const size_t n = std::max<size_t>(utf8_length(text), 1);
            const int32_t token = find_token(vocab_, text.substr(0, n));
            const int32_t instead = token >= 0 ? token : vocab_.unk;
            if (instead >= 0) ids.push_back(instead);
            text.remove_prefix(n);
        }
        return ids;
    }

    const Vocab& vocab_;
    Bpe& bpe_;
    std::unordered_map<std::string, int32_t, VocabHash> others_;
};

// Merges the pieces of a text one after the other, and reuses its memory.
class Merger {
 public:
    Merger(const Vocab& vocab, std::vector<int32_t>& ids)
        : vocab_(vocab), bpe_(*vocab.bpe), ids_(ids) {}

    void append(std::string_view piece) {
        parts_.clear();
        for (const char c : piece) add_byte(c);
        merge();
    }

    void append_characters(std::string_view text) {
        parts_.clear();
        while (!text.empty()) {
            const size_t n = std::max<size_t>(utf8_length(text), 1);
            const std::string_view character = text.substr(0, n);
            if (const int32_t token = find_token(vocab_, character); token >= 0) {
                add(token, n);
            } else {
                for (const char c : character) add_byte(c);
            }
            text.remove_prefix(n);
        }
        merge();
    }

 private:
    void add(int32_t symbol, size_t size) {
        parts_.push_back({symbol, size, ptrdiff_t(parts_.size()) - 1, -1});
    }
    void add_byte(char c) {
        const int32_t symbol = bpe_.byte_symbols[uint8_t(c)];
        if (symbol >= 0) add(symbol, 1);
    }

    void merge() {
        for (size_t i = 1; i < parts_.size(); i++) parts_[i - 1].next = ptrdiff_t(i);
        for (ptrdiff_t i = 1; i < ptrdiff_t(parts_.size()); i++) consider(i - 1, i);
        while (!pairs_.empty()) {
            std::pop_heap(pairs_.begin(), pairs_.end());
            const Pair pair = pairs_.back();
            pairs_.pop_back();
            Part& left = parts_[size_t(pair.left)];
            Part& right = parts_[size_t(pair.right)];
            // Parts only grow or vanish, so the sizes show whether this pair is still current.
            if (left.size == 0 || right.size == 0 || left.size + right.size != pair.size) continue;
            left.symbol = pair.result;
            left.size = pair.size;
            left.next = right.next;
            right.size = 0;
            if (left.next >= 0) parts_[size_t(left.next)].previous = pair.left;
            consider(left.previous, pair.left);
            consider(pair.left, left.next);
        }
        for (ptrdiff_t i = parts_.empty() ? -1 : 0; i >= 0; i = parts_[size_t(i)].next)
            append_symbol(parts_[size_t(i)].symbol);
    }

    // A run of merged bytes of the piece. A merge extends the left part; the right part becomes
    // empty.
    struct Part {
        int32_t symbol;
        size_t size;               // bytes; 0: merged into its left neighbour
        ptrdiff_t previous, next;  // -1: none
    };

    // Two neighbours that can merge, with their state when they were found.
    struct Pair {
        int32_t rank, result;
        ptrdiff_t left, right;
        size_t size;

        // The heap returns the largest: the lowest rank, and of equal ones the leftmost.
        bool operator<(const Pair& other) const {
            return rank != other.rank ? rank > other.rank : left > other.left;
        }
    };

    void consider(ptrdiff_t left, ptrdiff_t right) {
        if (left < 0 || right < 0) return;
        const Part &a = parts_[size_t(left)], &b = parts_[size_t(right)];
        const Bpe::Merge* const merge = bpe_.find(pair_key(a.symbol, b.symbol));
        if (!merge) return;
        pairs_.push_back({merge->rank, merge->result, left, right, a.size + b.size});
        std::push_heap(pairs_.begin(), pairs_.end());
    }

    void append_symbol(int32_t symbol) {
        if (symbol < vocab_.size()) {
            ids_.push_back(symbol);
            return;
        }
        const std::vector<int32_t>& spelt = bpe_.spelt[size_t(symbol - vocab_.size())];
        ids_.insert(ids_.end(), spelt.begin(), spelt.end());
    }

    const Vocab& vocab_;
    const Bpe& bpe_;
    std::vector<int32_t>& ids_;
    std::vector<Part> parts_;
    std::vector<Pair> pairs_;
};

}  // namespace

const PreTokenizer& read_pretokenizer(const Gguf& gguf) {
    const std::string name(gguf.string(key_pre, ""));
    const PreTokenizer* rule = find_pretokenizer(name.empty() ? "gpt-2" : name);
    if (!rule)
        throw Error(Code::unsupported, gguf.path() + ": the pre-tokenizer '" + name + "' (" +
                                           key_pre + ") is not supported");
    return *rule;
}

std::shared_ptr<const Bpe> read_bpe(const Gguf& gguf, const Vocab& vocab, bool of_bytes) {
    const Value* merges = gguf.find(key_merges);
    if (!merges) refuse(gguf, key_merges, "is missing");
    if (merges->type() != ggml::ValueType::array || !merges->is_string())
        refuse(gguf, key_merges, "is not an array of strings");
    if (merges->count() > kMostMerges)
        refuse(gguf, key_merges,
               ggml::format("has %llu elements, more than %llu",
                            (unsigned long long)merges->count(), (unsigned long long)kMostMerges));

    const auto bpe = std::make_shared<Bpe>();
    if (of_bytes) {
        bpe->pre = &read_pretokenizer(gguf);
        bpe->ignore_merges = gguf.boolean(key_ignore_merges, bpe->pre->ignore_merges);
    }
    Symbols symbols(vocab, *bpe);
    for (int byte = 0; byte < 256; byte++) {
        const int32_t token = vocab.byte_ids[byte];
        bpe->byte_symbols[byte] = of_bytes     ? symbols.number(alphabet().texts[byte])
                                  : token >= 0 ? token
                                               : vocab.unk;
    }
    bpe->merges.reserve(merges->count());
    bpe->by_pair = Slots(merges->count());
    std::string both;
    merges->each_string([&](uint64_t i, std::string_view text) {
        const size_t gap = text.find(' ', 1);
        if (gap == text.npos || gap + 1 == text.size()) return;
        const std::string_view left = text.substr(0, gap), right = text.substr(gap + 1);
        const uint64_t pair = pair_key(symbols.number(left), symbols.number(right));
        both.assign(left).append(right);
        const int32_t result = symbols.number(both);
        if (bpe->find(pair)) return;
        bpe->by_pair.add(VocabHash()(pair), int32_t(bpe->merges.size()));
        bpe->merges.push_back({pair, int32_t(i), result});
    });
    return bpe;
}

std::string decode_bpe_text(std::string_view text) {
    const ByteAlphabet& letters = alphabet();
    std::string bytes;
    for (size_t i = 0; i < text.size();) {
        // Characters of the alphabet take one byte below U+0080 and two bytes up to U+0143.
        const size_t n = utf8_length(text.substr(i));
        uint32_t point = uint8_t(text[i]);
        if (n == 2) point = (point & 0x1F) << 6 | (uint8_t(text[i + 1]) & 0x3F);
        const bool known = (n == 1 || n == 2) && point < std::size(letters.bytes);
        if (!known || letters.bytes[point] < 0) return std::string(text);
        bytes += char(letters.bytes[point]);
        i += n;
    }
    return bytes;
}

// The text is not empty, and gets no second space, as in the package tokenizers.
void encode_bpe(const Vocab& vocab, std::string_view text, std::vector<int32_t>& ids) {
    Merger merger(vocab, ids);
    std::string written, prefixed;
    if (vocab.add_space_prefix && text[0] != ' ') text = prefixed.append(" ").append(text);
    size_t begin = 0;
    for (const size_t end : vocab.bpe->pre->split(text)) {
        const std::string_view piece = text.substr(begin, end - begin);
        begin = end;
        if (vocab.bpe->ignore_merges) {
            written.clear();
            for (const char c : piece) written += alphabet().texts[uint8_t(c)];
            const int32_t token = find_token(vocab, written);
            if (token >= 0) {
                ids.push_back(token);
                continue;
            }
        }
        merger.append(piece);
    }
}

void encode_character_bpe(const Vocab& vocab, std::string_view text, std::vector<int32_t>& ids) {
    static const char space[] = "\xE2\x96\x81";
    std::string escaped = vocab.add_space_prefix ? space : "";
    for (const char c : text) {
        if (c == ' ') {
            escaped += space;
        } else {
            escaped += c;
        }
    }
    Merger(vocab, ids).append_characters(escaped);
}

}  // namespace powerinfer
