// A model family: what its files say, which tensors they hold, and what its forward pass does
// differently. One file per family or group of near relatives; families.cpp has the list.
#pragma once

#include <string>
#include <vector>

#include "model.h"

namespace powerinfer {

struct Family {
    const char* architecture;   // general.architecture
    ggml::Activation gguf_act;  // where the file names no activation: under the magic GGUF,
    ggml::Activation pwri_act;  // and under PowerInfer's
    // Adds to the common sizes what only this family has. The keys' prefix is c.architecture.
    void (*configure)(const ggml::Gguf& gguf, Config& c);
    // Names every tensor and the member of `model` that it fills; layers have their final number.
    void (*weights)(Model& model, std::vector<WeightSpec>& specs);
};

// The families of each file of this folder.
extern const std::vector<Family> kLlamaFamilies;         // llama.cpp: llama, bamboo, qwen2, qwen3
extern const std::vector<Family> kFalconFamilies;        // falcon.cpp
extern const std::vector<Family> kOptFamilies;           // opt.cpp
extern const std::vector<Family> kSmallThinkerFamilies;  // smallthinker.cpp

// Reads {arch}.* and powerinfer.*; throws Error(unsupported) for a family or feature that is not
// known.
Config read_config(const ggml::Gguf& gguf, int64_t n_vocab);

// The tensors of the model, pointing at the members of `model` that they fill. model.layers must
// have its final size.
std::vector<WeightSpec> weight_specs(Model& model);

// Collects WeightSpecs; the vocabulary of a family's weights().
class Weights {
 public:
    Weights(Model& model, std::vector<WeightSpec>& specs) : m(model), specs_(specs) {}

    bool has(const std::string& name) const { return m.file.gguf.find_tensor(name) != nullptr; }
    // A vector [n] that must be there, or may.
    void vector(Part part, const std::string& name, int64_t n, const float** to);
    void optional(Part part, const std::string& name, int64_t n, const float** to);
    // NAME.weight [n], and NAME.bias [n] where the family's norm has one.
    void norm(const std::string& name, NormWeights* to, int64_t n);
    // A matrix [rows, cols].
    void matrix(Part part, const std::string& name, int64_t rows, int64_t cols, ggml::Matrix* to);
    // A matrix whose rows are looked up.
    void table(Part part, const std::string& name, int64_t rows, int64_t cols, ggml::Matrix* to);
    // Rows [row0, row0 + rows) of a tensor with this shape (fastest first).
    void rows(Part part, const std::string& name, std::vector<int64_t> shape, int64_t row0,
              int64_t rows, Target to);

    // token_embd.weight, output_norm, output.weight (or the embedding again where that is missing).
    void embedding_and_head();
    // attn_q, attn_k, attn_v, attn_output of layer i, each .weight and, if there, .bias.
    void attention(int64_t i);
    // ffn_gate (if gated), ffn_up, ffn_down of layer i, each .weight and, if there, .bias; in
    // neuron-aware files ffn_down_t, fc1, fc2 and ffn_rate.
    void ffn(int64_t i, bool gated);
    // ffn_gate_inp and the experts' ffn_{gate,up,down}_exps of layer i, likewise.
    void experts(int64_t i);

    Model& m;

 private:
    // Neuron rows of layer i, of expert e where the suffix is "_exps": bundles as the file has
    // them, or ffn_gate (if gated), ffn_up and `down`, to be packed into bundles.
    void neurons(int64_t i, const char* suffix, int64_t e, bool gated, const std::string& down,
                 Ffn& ffn);
    // One bundle of them: from the tensor `bundled`, or where that is "" from those of its parts.
    struct Stored {
        const char* name;  // "gate": of the key of its format
        std::string tensor;
        ggml::NeuronRows* rows;
    };
    void bundle(int64_t i, const std::string& bundled, bool stacked, int64_t e,
                const std::vector<Stored>& parts, Bundle& to);
    // The format of a part in a bundled file, from powerinfer.bundle.{gate,up,down}_type.
    ggml::DType bundled_type(int64_t i, const char* part) const;
    // fc1 and fc2 or a sketch, and rates, where the file has them; suffix "" or "_exps", expert e
    // of c.n_expert.
    void predictor(int64_t i, const char* suffix, int64_t e, Ffn& ffn);
    std::vector<WeightSpec>& specs_;
};

// "blk.3." + suffix
std::string blk(int64_t layer, const char* suffix);

}  // namespace powerinfer
