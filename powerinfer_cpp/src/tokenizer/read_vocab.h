// Reads vocabularies. Each tokenizer family has its own algorithm.
#pragma once

#include "ggml/gguf.h"
#include "tokenizer/vocab.h"

namespace powerinfer {

// Reads tokenizer.ggml.*. Throws Error(format) for contradictions, Error(unsupported) for an
// unknown tokenizer family. What has one obvious meaning is read, with a note (Vocab::notes).
Vocab read_vocab(const ggml::Gguf& gguf);

}  // namespace powerinfer
