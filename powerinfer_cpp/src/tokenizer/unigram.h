// SentencePiece unigram, `tokenizer.ggml.model` = "t5": of all ways to divide a text into tokens,
// the one with the largest sum of scores (arXiv 1804.10959).
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "ggml/gguf.h"
#include "tokenizer/charsmap.h"
#include "tokenizer/prefix_index.h"
#include "tokenizer/vocab.h"

namespace powerinfer {

struct Unigram {
    Charsmap charsmap;
    bool join_spaces = false;    // removes spaces at both ends of a text and repeated ones
    bool byte_fallback = false;  // characters without a token become byte tokens
    float largest = 0;           // of the scores of ordinary tokens, and 0
    float unknown = 0;           // score of a character without a token
    PrefixIndex pieces;          // tokens that are text; the first of equal ones
};

// Reads what only these vocabularies have; tokens, ids and byte tokens of vocab must be filled.
// Throws Error(format) for a malformed table of characters.
std::shared_ptr<const Unigram> read_unigram(const ggml::Gguf& gguf, const Vocab& vocab);

void encode_unigram(const Vocab& vocab, std::string_view text, std::vector<int32_t>& ids);

}  // namespace powerinfer
