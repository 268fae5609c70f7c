// Any bytes as a model file: header, vocabulary, configuration and tensor list must end in a model
// or an Error, never in a crash. Reads the header alone, as `inspect` and `--plan` do.
#include <cstdint>

#include "ggml/gguf.h"
#include "ggml/status.h"
#include "load/load.h"
#include "load/unread.h"
#include "model/families/family.h"
#include "tokenizer/read_vocab.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    try {
        powerinfer::Model model;
        model.file.gguf = ggml::Gguf::parse(data, size, "fuzz.gguf");
        ggml::split_paths(model.file.gguf);
        model.vocab = powerinfer::read_vocab(model.file.gguf);
        const powerinfer::Family* const family = powerinfer::find_family(model.file.gguf);
        if (!family) powerinfer::refuse_unknown_family(model);
        model.config = powerinfer::read_config(model.file.gguf, *family, model.vocab.size());
        model.layers.resize(size_t(model.config.n_layer));
        model.weights = powerinfer::weight_specs(model, *family);
        powerinfer::Notes notes;
        powerinfer::check_unread_keys(model, true, notes);
        powerinfer::resolve_weights(model);
    } catch (const ggml::Error&) {
    }
    return 0;
}
