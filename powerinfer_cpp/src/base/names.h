// Tiers of memory, parts of a model, and activations, with their names.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "ggml/ops.h"

namespace powerinfer {

enum class Tier : uint8_t { ram, gpu, storage };

// A part of a model or a session, for memory plans, profiles and byte counts.
enum class Part : uint8_t {
    attention,
    ffn,
    embedding,
    head,
    norms,
    predictor,
    kv,
    kv_old,  // keys and values behind windows that are kept while there is room
    states,  // of sequences, where layers have one
    scratch,
    results,  // logits or embeddings that are kept
    record,
    exchange,  // with a device
    context,   // of a device: what its driver takes there
    cache,     // neurons of a model that stays on the disk
    staging,   // where reads of others arrive
    tables,    // which of them are where
    process,   // code, stacks and vocabulary, where neurons stay on the disk
    experts,   // of mixtures, on a device that has room for some
};

const char* name(Tier tier);
const char* name(Part part);
const char* name(ggml::Activation activation);
std::optional<ggml::Activation> find_activation(std::string_view name);

}  // namespace powerinfer
