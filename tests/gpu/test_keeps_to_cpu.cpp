// What a device has no operators for stays on the CPU, and a sentence says why. Each model here
// runs on the device until the one thing is changed.
#include <deque>

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
        CHECK(more == 0 ||
              says(said, "no layer is on simt0: layer 0: heads of 592 values keep to the CPU"));
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
    attention.gated = true;
    CHECK(keeps_to_cpu(*model, 0).empty());
    attention.latent.emplace();
    CHECK(says(keeps_to_cpu(*model, 0), "over latents with gates"));
    attention.gated = false;
    CHECK(keeps_to_cpu(*model, 0).empty());
    attention.latent.reset();
    auto& block = *model->layers[0].find<FeedForward>();
    block.activation = ggml::Activation::swiglu_oai;
    CHECK(keeps_to_cpu(*model, 0).empty());
    block.blocks[0].neurons.n = 96;
    CHECK(says(keeps_to_cpu(*model, 0), "the activation swiglu_oai"));
    CHECK(!split_of(*model, session).has(0));
    block.blocks[0].neurons.n = 0;
    block.activation = ggml::Activation::relu;
    // Experts in matrices have no activation with parameters, and no norm inside.
    block.n_used = 1;
    block.xielu.emplace();
    CHECK(says(keeps_to_cpu(*model, 0), "an activation of their own"));
    block.xielu.reset();
    block.norms_values = true;
    CHECK(says(keeps_to_cpu(*model, 0), "experts with norms"));
    block.n_used = 0;
    CHECK(keeps_to_cpu(*model, 0).empty());
    block.blocks[0].neurons.n = 96;
    CHECK(says(keeps_to_cpu(*model, 0), "neuron rows whose values are normed"));
}

// Experts in neuron rows are there, and what stands beside them, unless they have predictors.
void test_experts_in_rows() {
    Shape shape;
    shape.n_expert = 8, shape.down_t = true, shape.activation = "relu";
    const auto rows = inspected(tiny::describe(shape), session_params());
    CHECK(keeps_to_cpu(*rows, 0).empty());
    LayerPart beside = rows->layers[0].parts.back();
    std::get<FeedForward>(beside.op).n_used = 0;
    rows->layers[0].parts.push_back(beside);
    CHECK(keeps_to_cpu(*rows, 0).empty());
    std::get<FeedForward>(rows->layers[0].parts[rows->layers[0].parts.size() - 2].op).n_used = 0;
    CHECK(says(keeps_to_cpu(*rows, 0), "several feed-forward parts in neuron rows"));
    for (bool sketch : {false, true}) {
        shape.predictor_rank = sketch ? 0 : 32;
        shape.sketch = sketch;
        const auto predicted = inspected(tiny::describe(shape), session_params());
        CHECK(says(keeps_to_cpu(*predicted, 0), "experts with predictors"));
    }
}

// A layer is any list of parts that a device has operators for.
void test_lists_of_parts() {
    const auto model = inspected(tiny::describe(Shape{}), session_params());
    auto& parts = model->layers[0].parts;
    const auto kept = [&](const char* words) { return says(keeps_to_cpu(*model, 0), words); };
    parts[0].add = LayerPart::Add::with_next;
    CHECK(keeps_to_cpu(*model, 0).empty());
    parts[1].input = LayerPart::Input::as_before;
    CHECK(keeps_to_cpu(*model, 0).empty());
    parts[1].input = LayerPart::Input::stream;
    const auto norm = parts[1].norm;
    parts[1].norm.reset();
    CHECK(keeps_to_cpu(*model, 0).empty());
    parts[1].norm = norm;
    const LayerPart last = parts[1], first = parts[0];
    parts.pop_back();
    CHECK(keeps_to_cpu(*model, 0).empty());
    // Tensors are known by where they are, so other parts do not take the place of these.
    std::deque<LayerPart> before;
    before.swap(parts);
    parts = {last};
    CHECK(keeps_to_cpu(*model, 0).empty());
    parts = {first, last, last};
    CHECK(keeps_to_cpu(*model, 0).empty());
    Router router;
    parts[2].op = router;
    CHECK(keeps_to_cpu(*model, 0).empty());
    router.how.n_expert = ggml::kDeviceExperts + 1;
    parts[2].op = router;
    CHECK(kept("routers of 513 experts"));
    CHECK(keeps_to_cpu(*model, 1).empty());
}

// No device has products of IQ1, IQ2 and IQ3.
void test_grids() {
    Shape shape;
    shape.type = DType::IQ2_XXS, shape.n_embd = shape.n_ff = 256, shape.head_dim = 64;
    const auto model = inspected(tiny::describe(shape), session_params());
    CHECK(says(keeps_to_cpu(*model, 0), "no operator on the device for tensor \"blk.0."));
    CHECK(says(KeptToCpu(*model).head(), "no operator on the device for tensor \"output.weight\""));
}

// A layer that reads the keys and values of one before it comes to the device with that one.
void test_heads_of_another_layer() {
    const pi_session_params session = session_params();
    const auto model = inspected(tiny::describe(Shape{}), session);
    const int64_t last = model->config.n_layer - 1;
    pi_model_params params = on_device(1 << 30, session);
    params.n_gpu_layers = 1;
    const auto split = [&] {
        return split_with_device(*model, params, resolve_session_params(*model, session));
    };
    CHECK(split().first_layer == last);
    CHECK(split().left.layer == "n_gpu_layers is 1");
    model->layers[size_t(last)].find<Attention>()->kv_of = 0;
    CHECK(split().first_layer == last + 1);
    CHECK(split().left.layer == ggml::format("layer %lld reads the keys and values of layer 0; "
                                             "n_gpu_layers is 1",
                                             (long long)last));
    params.n_gpu_layers = int32_t(last) + 1;
    CHECK(split().first_layer == 0);
    params.n_gpu_layers = -1;
    auto& wide = *model->layers[0].find<Attention>();
    wide.head_dim = wide.v_head_dim = ggml::kDeviceHeadDim + 16;
    CHECK(split().first_layer == last + 1);
    CHECK(says(split().left.layer, "of layer 0; layer 0: heads of 592 values"));
}

// What a device does not have, and why: in plans, and in a warning if an operator is missing.
void test_reasons() {
    const pi_session_params session = session_params();
    const std::string path = folder / "reasons.gguf";
    Shape shape;
    shape.n_layer = 3;
    tiny::write(tiny::describe(shape), path);
    struct Said {
        int32_t level = 0;
        std::string text;
    } said;
    pi_model_params params = on_device(1 << 30, session);
    params.log_data = &said;
    params.log = [](int32_t level, const char* text, void* to) {
        *static_cast<Said*>(to) = {level, text};
    };
    const auto plan = [&] { return make_plan(*Model::inspect(path, params), session); };
    Plan found = plan();
    CHECK(found.device_layers == 3 && found.n_layer == 3 && found.device_head);
    CHECK(found.left.layer.empty() && found.left.head.empty() && said.text.empty());
    const Range range = budgets(path, session);
    params.vram_budget = range.least;
    found = plan();
    CHECK(found.device_layers == 1 && !found.device_head);
    CHECK(says(found.left.layer, "layer 1 does not fit ("));
    CHECK(says(found.left.head, "it does not fit (it takes "));
    CHECK(said.level == 3 && says(said.text, ": 1 of 3 layers are on simt0: layer 1 does not fit"));
    CHECK(says(said.text, "; the head is not: it does not fit"));
    params.vram_budget = 1 << 30;
    params.n_gpu_layers = 3;
    found = plan();
    CHECK(found.device_layers == 3 && found.left.layer.empty() && !found.device_head);
    CHECK(found.left.head == "n_gpu_layers is 3" && said.level == 3);
    params.n_gpu_layers = -1;
    shape = Shape{};
    shape.type = DType::IQ2_XXS, shape.n_embd = shape.n_ff = 256, shape.head_dim = 64;
    tiny::write(tiny::describe(shape), path);
    found = plan();
    CHECK(found.device_layers == 0 && found.vram_budget == 0 && found.left.head.empty());
    CHECK(
        says(found.left.layer, "layer 1: there is no operator on the device for tensor \"blk.1."));
    CHECK(said.level == 2 && says(said.text, ": no layer is on simt0: layer 1: there is no"));
}

// Layers with a state are there, unless a head's state has more rows than the operators have room
// for. One that stays keeps all before it; a sequence is cut with the pages and states of both.
void test_layers_with_states() {
    pi_session_params session = session_params();
    session.type_k = session.type_v = uint32_t(DType::F32);
    session.n_seq = 2;
    Shape shape;
    shape.architecture = "lfm2", shape.taps = 3, shape.n_layer = 4;
    const Description d = tiny::describe(shape);
    const auto inspect = inspected(d, session);
    CHECK(keeps_to_cpu(*inspect, 2).empty() && keeps_to_cpu(*inspect, 3).empty());
    inspect->layers[2].parts[0].op = Mamba2{};
    CHECK(keeps_to_cpu(*inspect, 2).empty());
    std::get<Mamba2>(inspect->layers[2].parts[0].op).n_state = ggml::kDeviceScanRows + 1;
    CHECK(says(keeps_to_cpu(*inspect, 2), "states of 513 values"));
    inspect->layers[2].parts[0].op = DeltaNet{};
    std::get<DeltaNet>(inspect->layers[2].parts[0].op).head_dim = ggml::kDeviceDeltaRows + 1;
    CHECK(says(keeps_to_cpu(*inspect, 2), "keys of 257 values"));

    const std::string path = folder / "states.gguf";
    tiny::write(d, path);
    pi_model_params some = on_device(1 << 30, session);
    some.n_gpu_layers = 2;
    const auto model = Model::load(path, some);
    CHECK(model->device && model->device_layers() == 2);
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

// Numbers that multiply products of experts.
void test_scales_of_experts() {
    Description d = tiny::describe(Shape{});
    const float half = 0.5f;
    const auto* bytes = reinterpret_cast<const uint8_t*>(&half);
    d.tensors.push_back({"blk.0.ffn_down.scale", DType::F32, {1}, {bytes, bytes + sizeof(half)}});
    const auto model = inspected(d, session_params());
    CHECK(keeps_to_cpu(*model, 0).empty());
    model->layers[0].find<FeedForward>()->n_used = 1;
    CHECK(says(keeps_to_cpu(*model, 0), "experts whose matrices are tensors with a scale each"));
}

}  // namespace

int main() {
    test_wide_heads();
    test_scores_and_rotations();
    test_experts_in_rows();
    test_lists_of_parts();
    test_scales_of_experts();
    test_heads_of_another_layer();
    test_reasons();
    test_grids();
    test_layers_with_states();
    return check::summary("test_keeps_to_cpu");
}
