// WordPiece, `tokenizer.ggml.model` = "bert": words are divided into the longest pieces from left
// to right (arXiv 1609.08144). Normalisation and division into words are those of the package
// tokenizers (BertNormalizer, BertPreTokenizer).
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "ggml/gguf.h"
#include "tokenizer/prefix_index.h"
#include "tokenizer/vocab.h"

namespace powerinfer {

struct WordPiece {
    bool lowercase = true, strip_accents = true;
    bool split_ideographs = true;  // each one is a word
    PrefixIndex pieces;            // U+2581 before those that begin a word
};

// Reads what only these vocabularies have; tokens and ids of vocab must be filled. Throws
// Error(format) if there is no token for unknown words.
std::shared_ptr<const WordPiece> read_wordpiece(const ggml::Gguf& gguf, const Vocab& vocab);

void encode_wordpiece(const Vocab& vocab, std::string_view text, std::vector<int32_t>& ids);

}  // namespace powerinfer
