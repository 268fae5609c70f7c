// Nine models of today as lists of parts, with the sizes that are published: pages of keys and
// values, scratch memory, blocks and recordings take what sums by hand say. Only sizes are here, no
// weights. Parts with a state (Mamba-2, delta nets) are left out of their layers.
#include <ctime>

#include "engine/sessions.h"
#include "memory/kv_pages.h"
#include "memory/workspace.h"
#include "model/families/family.h"
#include "observe/recorder.h"
#include "weights/weight_plan.h"

using namespace powerinfer;

namespace {

LayerPart attention(int64_t n_head, int64_t n_head_kv, int64_t head_dim, int rope = 0,
                    int64_t window = 0) {
    Attention a;
    a.n_head = n_head, a.n_head_kv = n_head_kv, a.head_dim = a.v_head_dim = head_dim;
    a.rope = rope, a.window = window;
    LayerPart part;
    part.norm.emplace();
    part.op = a;
    return part;
}

LayerPart ffn(int64_t n_ff) {
    FeedForward f;
    f.n_ff = n_ff;
    f.blocks.resize(1);
    LayerPart part;
    part.norm.emplace();
    part.op = f;
    return part;
}

LayerPart router(int64_t n_expert, int64_t n_used) {
    Router r;
    r.how.n_expert = n_expert, r.how.n_used = n_used;
    LayerPart part;
    part.norm.emplace();
    part.op = r;
    return part;
}

LayerPart experts(int64_t n_expert, int64_t n_used, int64_t n_ff) {
    FeedForward f;
    f.n_ff = n_ff, f.n_used = n_used;
    f.blocks.resize(size_t(n_expert));
    LayerPart part;
    part.op = f;
    part.input = LayerPart::Input::as_before;
    return part;
}

// A part that reads what the part before has read.
LayerPart beside(LayerPart part) {
    part.norm.reset();
    part.input = LayerPart::Input::as_before;
    return part;
}

LayerPart waiting(LayerPart part) {
    part.add = LayerPart::Add::with_next;
    return part;
}

LayerPart normed_after(LayerPart part) {
    part.post_norm.emplace();
    return part;
}

struct Sums {
    int64_t kv;       // bytes of a position, keys and values in F16
    int64_t scratch;  // floats of a row, of the arrays whose sizes layers decide
    int64_t values;   // neurons of a row that are computed together, at most
    int64_t blocks, ffns;
    int64_t bits;  // bytes of a row's recording
};

template <typename F>
void check(const char* name, int64_t n_embd, int64_t n_layer, std::vector<Rope> ropes,
           const F& add_layer, const Sums& by_hand, int64_t layer_embd = 0) {
    Model m;
    m.layer_embd.width = layer_embd, m.layer_embd.of_tokens = layer_embd > 0;
    m.config.n_embd = n_embd, m.config.n_layer = n_layer, m.config.n_vocab = 1000;
    m.config.n_ctx = 4096, m.config.ropes = std::move(ropes);
    m.layers.resize(size_t(n_layer));
    for (int64_t i = 0; i < n_layer; i++) add_layer(m.layers[size_t(i)].parts, i);
    number_parts(m);

    const std::vector<KvClass> classes = kv_classes(m.layers);
    // The bytes of a page of all classes, of layers [begin, end).
    const auto page = [&](int64_t begin, int64_t end) {
        const KvLayout layout(m.layers, classes, ggml::DType::F16, begin, end);
        int64_t sum = 0;
        for (int64_t kind = 0; kind < layout.n_kinds(); kind++) sum += layout.page_bytes(kind);
        return sum;
    };
    CHECK(page(0, n_layer) == by_hand.kv * kKvPage);
    // What a device has of it is what RAM has not.
    CHECK(page(0, n_layer / 2) + page(n_layer / 2, n_layer) == page(0, n_layer));
    CHECK(m.n_blocks() == by_hand.blocks && int64_t(m.ffns.size()) == by_hand.ffns);

    pi_session_params params = pi_session_default_params();
    params.n_ctx = params.n_kv = 4096, params.n_batch = params.n_ubatch = 512;
    params.n_logits = 1;
    // Without the batch, the 8-bit forms of inputs (of products one after the other, of a layer, of
    // experts) and the room of attention, whose sizes no sum by hand has.
    const LargestSizes sizes = largest_sizes(m.layers);
    const int64_t widest = std::max({n_embd, sizes.out_dim, sizes.by_head, sizes.n_ff});
    const int64_t cols = (widest + ggml::kQ - 1) / ggml::kQ * ggml::kQ;
    const auto bytes = [&](int32_t rows) {
        params.n_ubatch = rows;
        const int64_t at_once = std::max<int64_t>(rows, (rows * by_hand.values + cols - 1) / cols);
        return int64_t(ggml::carved_bytes<Workspace>(m, params, 2, false) -
                       ggml::carved_bytes<Batch>(int64_t(rows), int64_t(classes.size())) -
                       ggml::carved_bytes<ggml::InputBuffer>(at_once, cols) -
                       (1 + (sizes.n_expert > 0)) *
                           ggml::carved_bytes<ggml::InputBuffer>(int64_t(rows), n_embd) -
                       ggml::carved_bytes<ggml::AttentionScratch>(
                           2, int64_t(rows), int64_t(params.n_ctx),
                           ggml::AttentionSizes{sizes.n_head, sizes.head_dim, sizes.v_head_dim,
                                                sizes.attended, kKvPage * 2 * sizes.latent}));
    };
    // 256 more rows, so that what is there once does not count, nor what each expert has.
    const int64_t more = (bytes(1024) - bytes(768)) / 256;
    const int64_t expected = (by_hand.scratch + 2 * by_hand.values) * int64_t(sizeof(float)) +
                             int64_t(sizeof(ggml::AttentionRow));
    CHECK(more >= expected && more <= expected + 8);  // arrays begin at cache lines
    if (more != expected) {
        std::fprintf(stderr, "%s: a row takes %lld bytes, by hand %lld\n", name, (long long)more,
                     (long long)expected);
    }

    params.n_batch = params.n_ubatch = 1;
    params.record = PI_RECORD_BITS;
    std::vector<uint8_t> room(ggml::carved_bytes<Recorder>(m, params));
    ggml::Carver carver(room.data(), room.size());
    CHECK(Recorder(carver, m, params).bits_size() == by_hand.bits);
    CHECK(int64_t(room.size()) >= by_hand.bits && int64_t(room.size()) < by_hand.bits + 128);
}

// scratch by hand: 4 n (stream, its norm, two results) + q + attended + k + v + a table of each
// RoPE; with latents attended and heads apart are those of latents; with experts 2 E (scores, what
// chooses) + 4 used (chosen ones and their weights, as rows and by expert) + 1 (a share) + 2 n
// (rows of one).

void test_falcon_7b() {  // parallel
    check("Falcon 7B", 4544, 32, {{10000, 64}},
          [](auto& parts, int64_t) {
              parts.push_back(waiting(attention(71, 1, 64)));
              parts.push_back(ffn(18176));
          },
          {32 * 2 * 64 * 2, 4 * 4544 + 2 * 4544 + 2 * 64 + 64, 18176, 32, 32, 32 * 2272});
}

void test_smallthinker_21b() {  // the router before attention; a window and RoPE in 3 of 4 layers
    check(
        "SmallThinker 21B-A3B", 2560, 52, {{1500000, 128}},
        [](auto& parts, int64_t i) {
            LayerPart first = router(64, 6);
            first.norm.reset();
            parts.push_back(first);
            parts.push_back(i % 4 ? attention(28, 4, 128, 0, 4096) : attention(28, 4, 128, -1));
            LayerPart last = experts(64, 6, 768);
            last.input = LayerPart::Input::stream;
            last.norm.emplace();
            parts.push_back(last);
        },
        {52 * 2 * 4 * 128 * 2, 4 * 2560 + 2 * 3584 + 2 * 512 + 128 + 2 * 64 + 4 * 6 + 1 + 2 * 2560,
         768, 52 * 64, 52, 52 * 64 * 96});
}

void test_gemma3_270m() {  // norms after parts, two RoPEs
    check("Gemma 3 270M", 640, 18, {{1000000, 256}, {10000, 256, false}},
          [](auto& parts, int64_t i) {
              const bool global = i % 6 == 5;
              parts.push_back(normed_after(attention(4, 1, 256, global ? 0 : 1, global ? 0 : 512)));
              parts.push_back(normed_after(ffn(2048)));
          },
          {18 * 2 * 256 * 2, 4 * 640 + 2 * 1024 + 2 * 256 + 2 * 256, 2048, 18, 18, 18 * 256});
}

void test_gpt_oss_20b() {  // a window in every second layer
    check("gpt-oss 20b", 2880, 24, {{150000, 64}},
          [](auto& parts, int64_t i) {
              parts.push_back(attention(64, 8, 64, 0, i % 2 ? 0 : 128));
              parts.push_back(router(32, 4));
              parts.push_back(experts(32, 4, 2880));
          },
          {24 * 2 * 8 * 64 * 2, 4 * 2880 + 2 * 4096 + 2 * 512 + 64 + 2 * 32 + 4 * 4 + 1 + 2 * 2880,
           2880, 24 * 32, 24, 24 * 32 * 360});
}

void test_deepseek_v2_lite() {  // a latent cache, the first layer dense, shared experts
    check("DeepSeek V2-Lite", 2048, 27, {{10000, 64}},
          [](auto& parts, int64_t i) {
              LayerPart latent = attention(16, 1, 576);
              auto& a = std::get<Attention>(latent.op);
              a.v_head_dim = 512;
              a.latent.emplace();
              a.latent->nope = a.latent->out = 128;
              parts.push_back(latent);
              if (i == 0) {
                  parts.push_back(ffn(10944));
                  return;
              }
              parts.push_back(router(64, 6));
              parts.push_back(waiting(experts(64, 6, 1408)));
              parts.push_back(beside(ffn(2 * 1408)));
          },
          {27 * 576 * 2,
           4 * 2048 + 16 * 576 + 2 * 16 * 512 + 576 + 64 + 2 * 64 + 4 * 6 + 1 + 2 * 2048, 10944,
           1 + 26 * 65, 1 + 26 * 2, 1368 + 26 * (352 + 64 * 176)});
}

void test_nemotron_3_nano() {  // one part a layer: 6 of attention, 23 of experts, 23 of Mamba-2
    check("Nemotron 3 Nano", 2688, 52, {},
          [](auto& parts, int64_t i) {
              if (i < 6) parts.push_back(attention(32, 2, 128, -1));
              if (i < 6 || i >= 29) return;
              parts.push_back(router(128, 6));
              parts.push_back(waiting(experts(128, 6, 1856)));
              parts.push_back(beside(ffn(3712)));
          },
          {6 * 2 * 2 * 128 * 2, 4 * 2688 + 2 * 4096 + 2 * 256 + 2 * 128 + 4 * 6 + 1 + 2 * 2688,
           1856 + 3712, 23 * 129, 46, 23 * (464 + 128 * 232)});
}

void test_qwen3_next() {  // attention in every fourth layer, delta nets in the others
    check(
        "Qwen3-Next 80B-A3B", 2048, 48, {{10000000, 64}},
        [](auto& parts, int64_t i) {
            if (i % 4 == 3) parts.push_back(attention(16, 2, 256));
            parts.push_back(router(512, 10));
            parts.push_back(waiting(experts(512, 10, 512)));
            parts.push_back(beside(ffn(512)));
        },
        {12 * 2 * 2 * 256 * 2, 4 * 2048 + 2 * 4096 + 2 * 512 + 64 + 2 * 512 + 4 * 10 + 1 + 2 * 2048,
         512 + 512, 48 * 513, 96, 48 * 513 * 64});
}

void test_gemma4_a4b() {  // heads of two widths, a dense block and experts side by side
    check("Gemma 4 26B-A4B", 2816, 30, {{1000000, 512}, {10000, 256, false}},
          [](auto& parts, int64_t i) {
              const bool global = i % 6 == 5;
              parts.push_back(
                  normed_after(global ? attention(16, 2, 512, 0) : attention(16, 8, 256, 1, 1024)));
              parts.push_back(waiting(normed_after(ffn(2112))));
              parts.push_back(router(128, 8));
              LayerPart last = normed_after(experts(128, 8, 704));
              last.input = LayerPart::Input::stream;
              last.norm.emplace();
              parts.push_back(last);
          },
          {25 * 2 * 8 * 256 * 2 + 5 * 2 * 2 * 512 * 2,
           4 * 2816 + 2 * 8192 + 2 * 2048 + 512 + 256 + 2 * 128 + 4 * 8 + 1 + 2 * 2816, 2112,
           30 * 129, 60, 30 * (264 + 128 * 88)});
}

void test_gemma4_e2b() {  // embeddings for each layer; the last 20 layers share keys and values
    const auto kv_of = [](int64_t i) { return i < 15 ? -1 : i % 5 == 4 ? 14 : 13; };
    check(
        "Gemma 4 E2B", 1536, 35, {{1000000, 512}, {10000, 256, false}},
        [&](auto& parts, int64_t i) {
            const bool global = i % 5 == 4;
            LayerPart heads = global ? attention(8, 1, 512, 0) : attention(8, 1, 256, 1, 512);
            std::get<Attention>(heads.op).kv_of = kv_of(i);
            parts.push_back(normed_after(heads));
            parts.push_back(normed_after(ffn(i < 15 ? 6144 : 12288)));
            LayerPart embedding;
            embedding.op = LayerEmbedding();
            parts.push_back(normed_after(embedding));
        },
        {12 * 2 * 256 * 2 + 3 * 2 * 512 * 2,
         4 * 1536 + 2 * 4096 + 2 * 512 + 512 + 256 + 35 * 256 + 256, 12288, 35, 35,
         15 * 768 + 20 * 1536},
        256);
}

// Processor time of a plan of n layers, with three kinds of weights in each, in seconds.
double seconds_of_plan(int64_t n) {
    ggml::TensorInfo tensor{"", ggml::DType::F32, 1, {64, 1, 1, 1}, 0, 256, 0};
    const float* to = nullptr;
    std::vector<WeightSpec> weights;
    for (int64_t i = 0; i < n; i++) {
        for (Part part : {Part::norms, Part::attention, Part::ffn}) {
            weights.push_back({part, blk(i, "x"), {64}, 0, 1, 64, Vector{&to}, nullptr, {}});
            weights.back().tensor = &tensor;
        }
    }
    const std::clock_t begin = std::clock();
    const WeightPlan plan = plan_weights(weights, true, nullptr, OnDisk::nothing);
    const std::clock_t end = std::clock();
    CHECK(int64_t(plan.parts.size()) == 3 * n &&
          total(plan.parts, Tier::ram) == uint64_t(3 * n * 256));
    return double(end - begin) / CLOCKS_PER_SEC;
}

// A file may have 65,536 layers.
void test_plan_is_linear() {
    const auto least = [](int64_t n) {
        double found = seconds_of_plan(n);
        for (int i = 0; i < 4; i++) found = std::min(found, seconds_of_plan(n));
        return found;
    };
    CHECK(least(16000) < 9 * least(4000));
}

}  // namespace

int main() {
    test_plan_is_linear();
    test_falcon_7b();
    test_smallthinker_21b();
    test_gemma3_270m();
    test_gpt_oss_20b();
    test_deepseek_v2_lite();
    test_nemotron_3_nano();
    test_qwen3_next();
    test_gemma4_a4b();
    test_gemma4_e2b();
    return check::summary("test_layer_lists");
}
