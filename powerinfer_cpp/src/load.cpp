// From a path to a Model, step by step.
#include "load.h"

#include <numeric>
#include <set>

#include "families/family.h"
#include "ggml/status.h"
#include "gpu_index.h"
#include "tokenizer.h"

namespace powerinfer {

using ggml::Code;
using ggml::Error;
using ggml::format;

namespace {

// A placement beside the model must be this model's, even though without a GPU it changes nothing.
void check_gpu_index(const Model& model, const std::string& path, const pi_model_params& params) {
    const std::string index = gpu_index_path(path);
    if (!params.use_gpu_index || !ggml::file_exists(index)) return;
    const Config& c = model.config;
    if (c.n_expert) {
        throw Error(Code::format, index + ": placements of PowerInfer's know no experts, and " +
                                      path + " has them");
    }
    const std::vector<int64_t> n_gpu = read_gpu_index(index, c.n_layer, c.n_ff);
    if (!params.log) return;
    const int64_t marked = std::accumulate(n_gpu.begin(), n_gpu.end(), int64_t(0));
    params.log(3,
               format("%s marks %.0f%% of the neurons for a GPU; this build places none there",
                      index.c_str(), 100.0 * double(marked) / double(c.n_layer * c.n_ff))
                   .c_str(),
               params.log_data);
}

// Tells the log which tensors of the file play no part, once and together.
void log_unused(const Model& model, const pi_model_params& params) {
    if (!params.log) return;
    std::set<const ggml::TensorInfo*> used;
    for (const WeightSpec& w : model.weights) used.insert(w.tensor);
    const size_t unused = model.file.gguf.tensors().size() - used.size();
    if (!unused) return;
    params.log(3, format("%zu of the file's tensors have no part in this model", unused).c_str(),
               params.log_data);
}

}  // namespace

std::unique_ptr<Model> Model::inspect(const std::string& path, const pi_model_params& params) {
    auto model = std::make_unique<Model>();
    model->budget = Budget::make(params.ram_budget);
    model->file = ModelFile::open(path);
    model->vocab = read_vocab(model->file.gguf);
    if (params.vocab_only) {
        const std::string arch(model->file.gguf.string("general.architecture"));
        model->config.architecture = arch;
        model->config.n_vocab = model->vocab.size();
        model->config.n_ctx = model->file.gguf.integer(arch + ".context_length", 0, INT32_MAX, 0);
        model->config.n_embd =
            model->file.gguf.integer(arch + ".embedding_length", 0, INT32_MAX, 0);
        return model;
    }
    model->config = read_config(model->file.gguf, model->vocab.size());
    model->layers.resize(model->config.n_layer);
    refuse_further_layers(*model);
    model->weights = weight_specs(*model);
    resolve_weights(*model);
    model->plan = plan_weights(model->weights, params.use_mmap);
    return model;
}

std::shared_ptr<const Model> Model::load(const std::string& path, const pi_model_params& params) {
    std::unique_ptr<Model> model = inspect(path, params);
    if (params.vocab_only) return model;
    model->reserved =
        model->budget->reserve(model->file.gguf.path() + ": the weights", total(model->plan.parts));
    check_gpu_index(*model, path, params);
    log_unused(*model, params);
    load_weights(*model, params);
    return model;
}

}  // namespace powerinfer
