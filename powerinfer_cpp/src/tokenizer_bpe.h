// Byte-level BPE, `tokenizer.ggml.model` = "gpt2".
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ggml/gguf.h"
#include "pretokenizer.h"
#include "vocab.h"

namespace powerinfer {

struct Bpe {
    struct Merge {
        int32_t rank;    // lower ones go first
        int32_t result;  // symbol
    };

    const PreTokenizer* pre;
    // What merging works on: ids of tokens, and from the number of tokens on other texts that
    // merges name. Keyed by left << 32 | right.
    std::unordered_map<uint64_t, Merge, VocabHash> merges;
    std::vector<std::vector<int32_t>> spelt;  // tokens for each symbol that is no token itself
    int32_t byte_symbols[256];
};

// The rule that tokenizer.ggml.pre names, GPT-2's where the key is missing. Throws
// Error(unsupported) for a name that is not known.
const PreTokenizer& read_pretokenizer(const ggml::Gguf& gguf);

// Reads the merges; vocab's tokens and ids must be there. Throws Error(format) where there are
// none. Like llama.cpp it ignores those that cannot be read and repeated ones.
std::shared_ptr<const Bpe> read_bpe(const ggml::Gguf& gguf, const Vocab& vocab);

// The bytes that a token's text stands for: every byte has a printable character of its own. A text
// with other characters in it stands for itself.
std::string decode_bpe_text(std::string_view text);

void encode_bpe(const Vocab& vocab, std::string_view text, std::vector<int32_t>& ids);

}  // namespace powerinfer
