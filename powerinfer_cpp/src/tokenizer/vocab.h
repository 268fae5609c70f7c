// A vocabulary: texts of tokens, and conversion between text and ids.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/notes.h"
#include "tokenizer/slots.h"
#include "tokenizer/special_tokens.h"
#include "tokenizer/vocab_hash.h"

namespace powerinfer {

// Values of tokenizer.ggml.token_type in GGUF files.
enum class TokenType : int32_t {
    undefined = 0,
    normal = 1,
    unknown = 2,
    control = 3,
    user_defined = 4,
    unused = 5,
    byte = 6,
};

struct Bpe;        // bpe.h
struct Unigram;    // unigram.h
struct WordPiece;  // wordpiece.h

struct Vocab {
    struct Token {
        std::string text;   // as stored: U+2581 for a space, <0x0A> for a byte; U+0120 in BPE
        std::string bytes;  // what it represents in a text; for control tokens the stored text
        float score;        // never NaN
        TokenType type;
    };
    std::vector<Token> tokens;
    Slots ids;              // of find()
    int32_t byte_ids[256];  // token of each byte, -1: none
    int32_t bos = -1, eos = -1, unk = -1, nl = -1;
    bool add_bos = true, add_eos = false, add_space_prefix = true;
    bool composes = false;      // texts between special tokens are put into NFC first
    std::vector<int32_t> ends;  // EOS, EOT and other tokens that end a generation, sorted
    size_t longest = 0;         // bytes of the longest text in tokens
    // How some special tokens are found in a text, as the package tokenizers has it: with the white
    // space before or behind them, or only where no letter, digit or _ touches them.
    enum Flag : uint8_t { lstrip = 1, rstrip = 2, single_word = 4 };
    std::unordered_map<int32_t, uint8_t> flags;
    Notes notes;  // from reading it

    // Tokens that are searched for in the raw text: control, unknown and user-defined ones.
    std::unordered_map<std::string_view, int32_t, VocabHash> specials;  // by stored text
    SpecialTokens in_text, in_plain_text;  // all of them; only user-defined ones

    // Appends the ids of a text without special tokens. The function depends on the tokenizer's
    // family.
    using Encode = void (*)(const Vocab&, std::string_view text, std::vector<int32_t>& ids);
    Encode encode = nullptr;
    std::shared_ptr<const Bpe> bpe;              // of encode_bpe()
    std::shared_ptr<const Unigram> unigram;      // of encode_unigram()
    std::shared_ptr<const WordPiece> wordpiece;  // of encode_wordpiece()

    Vocab() = default;
    Vocab(Vocab&&) = default;
    Vocab& operator=(Vocab&&) = default;
    Vocab(const Vocab&) = delete;  // the maps point into tokens
    Vocab& operator=(const Vocab&) = delete;

    int32_t size() const { return int32_t(tokens.size()); }
    bool is_end(int32_t id) const;
    // The first token with this stored text; -1: none, or the text is empty.
    int32_t find(std::string_view text) const;
    // The bytes of a token in a text; "" for control and unknown tokens, unless special.
    std::string_view text(int32_t id, bool special) const;
    // special: texts of control tokens become those tokens (user-defined ones always do).
    // Adds neither BOS nor EOS. The text may hold any bytes.
    std::vector<int32_t> tokenize(std::string_view text, bool special) const;
};

}  // namespace powerinfer
