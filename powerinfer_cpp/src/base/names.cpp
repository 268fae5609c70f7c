#include "base/names.h"

namespace powerinfer {

using ggml::Activation;

namespace {

template <typename T>
struct Named {
    T value;
    const char* name;
};

constexpr Named<Tier> kTiers[] = {
    {Tier::ram, "ram"}, {Tier::gpu, "gpu"}, {Tier::storage, "storage"}};

constexpr Named<Part> kParts[] = {{Part::attention, "attention"},
                                  {Part::ffn, "ffn"},
                                  {Part::embedding, "embedding"},
                                  {Part::head, "head"},
                                  {Part::norms, "norms"},
                                  {Part::predictor, "predictor"},
                                  {Part::kv, "kv"},
                                  {Part::kv_old, "kv_old"},
                                  {Part::states, "states"},
                                  {Part::scratch, "scratch"},
                                  {Part::results, "results"},
                                  {Part::record, "record"},
                                  {Part::exchange, "exchange"},
                                  {Part::context, "context"},
                                  {Part::cache, "cache"},
                                  {Part::staging, "staging"},
                                  {Part::tables, "tables"},
                                  {Part::process, "process"},
                                  {Part::experts, "experts"}};

constexpr Named<Activation> kActivations[] = {{Activation::relu, "relu"},
                                              {Activation::drelu, "drelu"},
                                              {Activation::relu2, "relu2"},
                                              {Activation::silu, "silu"},
                                              {Activation::gelu, "gelu"},
                                              {Activation::gelu_tanh, "gelu_tanh"},
                                              {Activation::swiglu_oai, "swiglu_oai"},
                                              {Activation::xielu, "xielu"}};

template <typename T, size_t n>
const char* find_name(const Named<T> (&table)[n], T value) {
    for (const Named<T>& row : table) {
        if (row.value == value) return row.name;
    }
    return "";
}

}  // namespace

const char* name(Tier tier) {
    return find_name(kTiers, tier);
}

const char* name(Part part) {
    return find_name(kParts, part);
}

const char* name(Activation activation) {
    return find_name(kActivations, activation);
}

std::optional<Activation> find_activation(std::string_view name) {
    for (const Named<Activation>& row : kActivations) {
        if (name == row.name) return row.value;
    }
    return std::nullopt;
}

}  // namespace powerinfer
