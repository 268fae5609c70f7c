// Families whose layers are those of decoders, with rows that see both sides: EuroBERT (arXiv
// 2503.05500) and NVIDIA's Llama for vectors. Gemma's is with its relatives.
#include "model/families/family.h"

namespace powerinfer {

namespace {

void configure_llama_embed(const ggml::Gguf& gguf, Config& c) {
    configure_llama(gguf, c);
    encode(gguf, c);
}

void configure_eurobert(const ggml::Gguf& gguf, Config& c) {
    configure_halves(gguf, c);
    encode(gguf, c);
}

void weights_both_sides(Model& m, std::vector<WeightSpec>& specs) {
    llama_weights(m, specs, {}, {0, 0}, [](int64_t, Attention& a) { a.both = true; });
}

}  // namespace

const std::vector<Family> kBothSidedFamilies = {
    Family{"eurobert", configure_eurobert, weights_both_sides},
    Family{"llama-embed", configure_llama_embed, weights_both_sides},
};

}  // namespace powerinfer
