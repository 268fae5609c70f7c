// From a file to a vocabulary. One algorithm per tokenizer family.
#pragma once

#include "ggml/gguf.h"
#include "vocab.h"

namespace powerinfer {

// Reads tokenizer.ggml.*; throws Error(format) where it contradicts itself, Error(unsupported) for
// a tokenizer family that is not known.
Vocab read_vocab(const ggml::Gguf& gguf);

}  // namespace powerinfer
