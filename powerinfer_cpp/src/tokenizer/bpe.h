// BPE by a list of merges: of bytes, `tokenizer.ggml.model` = "gpt2", or of characters, "gemma4".
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ggml/gguf.h"
#include "tokenizer/pretokenizer.h"
#include "tokenizer/vocab.h"

namespace powerinfer {

struct Bpe {
    struct Merge {
        uint64_t pair;   // left << 32 | right
        int32_t rank;    // lower ones go first
        int32_t result;  // symbol
    };

    const PreTokenizer* pre = nullptr;  // of bytes
    bool ignore_merges = false;         // of bytes: a piece that is a token is that token
    // Symbols are token ids; texts of merges that are no tokens are numbered from the number of
    // tokens on.
    std::vector<Merge> merges;
    Slots by_pair;                            // of find()
    std::vector<std::vector<int32_t>> spelt;  // tokens for each symbol that is not a token
    // Of characters: of the bytes of those that are no tokens; -1: none.
    int32_t byte_symbols[256];

    // The merge of a pair, null: none.
    const Merge* find(uint64_t pair) const {
        const int32_t i = by_pair.find(VocabHash()(pair),
                                       [&](int32_t at) { return merges[size_t(at)].pair == pair; });
        return i < 0 ? nullptr : &merges[size_t(i)];
    }
};

// The rule named by tokenizer.ggml.pre; GPT-2's if the key is missing. Throws Error(unsupported)
// for an unknown name.
const PreTokenizer& read_pretokenizer(const ggml::Gguf& gguf);

// Whether a piece that is a token is not merged, where the rule does not say so itself: a key of
// our own, which only BPE of bytes obeys.
constexpr const char* key_ignore_merges = "powerinfer.tokenizer.ignore_merges";

// Reads the merges; tokens, ids and `unk` of vocab must be filled. Throws Error(format) if there
// are none. Like llama.cpp, ignores malformed and repeated ones.
std::shared_ptr<const Bpe> read_bpe(const ggml::Gguf& gguf, const Vocab& vocab, bool of_bytes);

// The bytes that a token's text represents; each byte has its own printable character. A text with
// other characters represents itself.
std::string decode_bpe_text(std::string_view text);

void encode_bpe(const Vocab& vocab, std::string_view text, std::vector<int32_t>& ids);

// Of characters, U+2581 for a space: merges may cross words, and a text is one piece.
void encode_character_bpe(const Vocab& vocab, std::string_view text, std::vector<int32_t>& ids);

}  // namespace powerinfer
