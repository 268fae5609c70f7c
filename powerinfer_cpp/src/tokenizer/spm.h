// SentencePiece BPE, `tokenizer.ggml.model` = "llama".
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/vocab.h"

namespace powerinfer {

void encode_spm(const Vocab& vocab, std::string_view text, std::vector<int32_t>& ids);

}  // namespace powerinfer
