// What a device has no operators for stays on the CPU, and a sentence says why. Each model here
// runs on the device until the one thing is changed.
#include "ggml/device_ops.h"
#include "gpu/splits.h"
#include "plan/device_split.h"
#include "plan/keeps_to_cpu.h"

using namespace splits;

namespace {

bool says(const std::string& why, const char* words) {
    if (why.find(words) == why.npos) std::fprintf(stderr, "says \"%s\"\n", why.c_str());
    return why.find(words) != why.npos;
}

std::unique_ptr<Model> inspected(const Description& d, const pi_session_params& session) {
    const std::string path = folder / "kept.gguf";
    tiny::write(d, path);
    return Model::inspect(path, on_device(1 << 30, session));
}

DeviceSplit split_of(const Model& model, const pi_session_params& session) {
    return split_with_device(model, on_device(1 << 30, session),
                             resolve_session_params(model, session));
}

// Heads as wide as the device's attention has room for give the CPU's logits; wider ones stay.
void test_wide_heads() {
    pi_session_params session = session_params();
    session.type_k = session.type_v = uint32_t(DType::F32);
    const Tokens tokens = random_tokens(5, 1);
    Shape shape;
    shape.n_head = 2, shape.n_head_kv = 1, shape.n_layer = 1;
    const std::string path = folder / "wide.gguf";
    for (int64_t more : {0, 16}) {
        shape.head_dim = ggml::kDeviceHeadDim + more;
        tiny::write(tiny::describe(shape), path);
        std::string said;
        pi_model_params params = on_device(1 << 30, session);
        params.log = [](int32_t, const char* text, void* to) {
            *static_cast<std::string*>(to) += text;
        };
        params.log_data = &said;
        const auto model = Model::load(path, params);
        CHECK((model->device != nullptr) == (more == 0));
        CHECK(more == 0 || says(said, "no layer is on simt0: heads of 272 values keep to the CPU"));
        CHECK(sessions::distance(logits(model, tokens, session),
                                 logits(load(path), tokens, session)) < 2e-5);
    }
}

void test_scores_and_rotations() {
    const pi_session_params session = session_params();
    const auto model = inspected(tiny::describe(Shape{}), session);
    CHECK(keeps_to_cpu(*model, 0).empty());
    Attention& attention = *model->layers[0].find<Attention>();
    attention.softcap = 50;
    attention.rope = 1;
    CHECK(keeps_to_cpu(*model, 0).empty() && split_of(*model, session).has(0));
    attention.softcap = 0;
    attention.rope = 0;
    auto& block = *model->layers[0].find<FeedForward>();
    block.activation = ggml::Activation::swiglu_oai;
    CHECK(keeps_to_cpu(*model, 0).empty());
    block.blocks[0].neurons.n = 96;
    CHECK(says(keeps_to_cpu(*model, 0), "the activation swiglu_oai"));
    CHECK(!split_of(*model, session).has(0));
    block.blocks[0].neurons.n = 0;
    block.activation = ggml::Activation::relu;
    attention.growth = 0.1;
    CHECK(says(keeps_to_cpu(*model, 0), "grow with the position"));
    attention.growth = 0;
    attention.v_norm = true;
    CHECK(says(keeps_to_cpu(*model, 0), "norms of values"));
    attention.v_norm = false;
    attention.kv_of = 0;
    CHECK(says(keeps_to_cpu(*model, 0), "another layer's keys and values"));
    attention.kv_of = -1;
    attention.latent.emplace();
    CHECK(says(keeps_to_cpu(*model, 0), "over latents"));
    attention.latent.reset();
    CHECK(keeps_to_cpu(*model, 0).empty());
    model->layers[0].find<FeedForward>()->xielu.emplace();
    CHECK(says(keeps_to_cpu(*model, 0), "xIELU"));
}

// A layer is any list of parts that a device has operators for.
void test_lists_of_parts() {
    const auto model = inspected(tiny::describe(Shape{}), session_params());
    auto& parts = model->layers[0].parts;
    const auto kept = [&](const char* words) { return says(keeps_to_cpu(*model, 0), words); };
    parts[0].post_norm.emplace();
    CHECK(kept("norms after attention and FFN"));
    parts[0].post_norm.reset();
    parts[1].sum_norm.emplace();
    CHECK(kept("norms after attention and FFN"));
    parts[1].sum_norm.reset();
    parts[0].add = LayerPart::Add::with_next;
    CHECK(keeps_to_cpu(*model, 0).empty());
    parts[1].input = LayerPart::Input::as_before;
    CHECK(keeps_to_cpu(*model, 0).empty());
    parts[1].input = LayerPart::Input::stream;
    const auto norm = parts[1].norm;
    parts[1].norm.reset();
    CHECK(keeps_to_cpu(*model, 0).empty());
    parts[1].norm = norm;
    const auto op = parts[1].op;
    parts[1].op = LayerEmbedding{};
    CHECK(kept("embeddings of each layer"));
    parts[1].op = op;
    const LayerPart last = parts[1], first = parts[0];
    parts.pop_back();
    CHECK(kept("without attention or a feed-forward block"));
    parts = {last};
    CHECK(kept("without attention or a feed-forward block"));
    parts = {first, last, last};
    CHECK(keeps_to_cpu(*model, 0).empty());
    Router router;
    parts[2].op = router;
    CHECK(keeps_to_cpu(*model, 0).empty());
    router.how.n_expert = ggml::kDeviceExperts + 1;
    parts[2].op = router;
    CHECK(kept("routers of 513 experts"));
    router.how.n_expert = 0;
    router.scale = 2;
    parts[2].op = router;
    CHECK(kept("routers whose scores are scaled") && keeps_to_cpu(*model, 1).empty());
}

// The layers are on the device, and the head, which the CPU caps, is not.
void test_capped_logits() {
    const pi_session_params session = session_params();
    const auto model = inspected(tiny::describe(Shape{}), session);
    CHECK(split_of(*model, session).head);
    model->config.logit_softcap = 30;
    const DeviceSplit split = split_of(*model, session);
    CHECK(!split.head && split.has(0));
}

// No device has products of IQ1, IQ2 and IQ3.
void test_grids() {
    Shape shape;
    shape.type = DType::IQ2_XXS, shape.n_embd = shape.n_ff = 256, shape.head_dim = 64;
    const auto model = inspected(tiny::describe(shape), session_params());
    CHECK(says(keeps_to_cpu(*model, 0), "no operator on the device for tensor \"blk.0."));
    CHECK(KeptToCpu(*model).head());
}

// An RMS norm with one weight for all heads is there; a LayerNorm is not, even of a single head,
// whose weights have the same shape.
void test_norms_of_heads() {
    Shape shape;
    shape.architecture = "qwen3", shape.n_head = shape.n_head_kv = 1, shape.head_dim = 64;
    Description d = tiny::describe(shape);
    for (int64_t i = 0; i < shape.n_layer; i++) {
        for (const char* name : {".attn_q_norm.weight", ".attn_k_norm.weight"}) {
            const std::vector<float> ones(size_t(shape.head_dim), 1.0f);
            const auto* bytes = reinterpret_cast<const uint8_t*>(ones.data());
            d.tensors.push_back({"blk." + std::to_string(i) + name,
                                 DType::F32,
                                 {shape.head_dim},
                                 {bytes, bytes + ones.size() * sizeof(float)}});
        }
    }
    const auto model = inspected(d, session_params());
    CHECK(keeps_to_cpu(*model, 1).empty());
    for (Layer& layer : model->layers) layer.find<Attention>()->norm = Norm::layer;
    CHECK(says(keeps_to_cpu(*model, 1), "a LayerNorm over each head"));
    const auto without = inspected(tiny::describe(Shape{}), session_params());
    without->config.norm = Norm::layer;
    CHECK(keeps_to_cpu(*without, 1).empty() && !KeptToCpu(*without).head());
    without->config.norm_bias = false;
    CHECK(says(keeps_to_cpu(*without, 1), "LayerNorm without bias"));
    CHECK(KeptToCpu(*without).head());
}

// A vector with a row for each head stays; a part of a longer one, which is rows of one value, does
// not.
void test_parts_of_vectors() {
    const auto model = inspected(tiny::describe(Shape{}), session_params());
    WeightSpec bias = model->weights.front();
    bias.name = "blk.0.attn_qkv.bias";
    bias.target = Vector{&model->layers[0].find<Attention>()->q_bias};
    bias.rows = 8, bias.cols = 1;
    model->weights.push_back(bias);
    CHECK(keeps_to_cpu(*model, 0).empty());
    model->weights.back().cols = 4;
    CHECK(says(keeps_to_cpu(*model, 0), "tensor \"blk.0.attn_qkv.bias\""));
}

// Convolutions stay, and attention behind the last of them does not. A sequence is cut with the
// pages of both.
void test_layers_with_states() {
    pi_session_params session = session_params();
    session.type_k = session.type_v = uint32_t(DType::F32);
    session.n_seq = 2;
    Shape shape;
    shape.architecture = "lfm2", shape.taps = 3, shape.n_layer = 4;
    const Description d = tiny::describe(shape);
    const auto inspect = inspected(d, session);
    CHECK(says(keeps_to_cpu(*inspect, 2), "layers with a state"));
    CHECK(keeps_to_cpu(*inspect, 3).empty());
    inspect->layers[2].parts[0].op = Mamba2{};
    CHECK(says(keeps_to_cpu(*inspect, 2), "layers with a state"));
    inspect->layers[2].parts[0].op = DeltaNet{};
    CHECK(says(keeps_to_cpu(*inspect, 2), "layers with a state"));

    const std::string path = folder / "states.gguf";
    tiny::write(d, path);
    const auto model = Model::load(path, on_device(1 << 30, session));
    CHECK(model->device && model->device_layers() == 1);
    const Tokens tokens = random_tokens(80, 3);
    const Floats expected = logits(model, tokens, session);
    CHECK(sessions::distance(expected, logits(load(path), tokens, session)) < 2e-5);
    Session cut(model, session);
    const auto part = [&](int64_t begin, int64_t end) {
        return Tokens(tokens.begin() + begin, tokens.begin() + end);
    };
    const auto goes_on = [&](int32_t seq) {
        const int64_t n = cut.length(seq);
        return same(logits(cut, part(n, 80), 9, SIZE_MAX, seq),
                    Floats(expected.begin() + n * tiny::kVocab, expected.end()));
    };
    eval(cut, part(0, 66));
    Tokens draft = part(66, 70);
    draft.insert(draft.end(), {1, 2, 3});
    eval(cut, draft);
    cut.copy(0, 1, 68);
    cut.truncate(0, 70);
    CHECK(goes_on(0) && goes_on(1));
}

// BitNet's norms between products, and numbers that multiply products.
void test_inner_norms_and_scales() {
    Description d = tiny::describe(Shape{});
    const float half = 0.5f;
    const auto* bytes = reinterpret_cast<const uint8_t*>(&half);
    d.tensors.push_back({"blk.0.attn_v.scale", DType::F32, {1}, {bytes, bytes + sizeof(half)}});
    const auto model = inspected(d, session_params());
    CHECK(says(keeps_to_cpu(*model, 0), "a scale of their own"));
    CHECK(keeps_to_cpu(*model, 1).empty());
    model->layers[1].find<FeedForward>()->norms_values = true;
    CHECK(says(keeps_to_cpu(*model, 1), "norms inside feed-forward blocks"));
}

}  // namespace

int main() {
    test_wide_heads();
    test_scores_and_rotations();
    test_lists_of_parts();
    test_capped_logits();
    test_norms_of_heads();
    test_inner_norms_and_scales();
    test_parts_of_vectors();
    test_grids();
    test_layers_with_states();
    return check::summary("test_keeps_to_cpu");
}
