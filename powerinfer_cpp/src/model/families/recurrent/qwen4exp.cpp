// Qwen3.8 Flash Next: delta nets in most layers, gated attention in the others, experts. Parts read
// and add to several residual streams in the place of norms, and the last tokens say something to
// the streams of one layer (n-grams). Attention sees the positions that an indexer chooses: as long
// as there are no more than it keeps, all of them, and contexts end there.
#include <algorithm>

#include "ggml/status.h"
#include "model/families/recurrent/delta_nets.h"

namespace powerinfer {

namespace {

// These prevent overflow in later products.
constexpr int64_t kMostStreams = 64, kMostRank = 1 << 16, kMostGramHeads = 1 << 10,
                  kWidestRow = 1 << 16;

[[noreturn]] void refuse_flash(const ggml::Gguf& gguf, ggml::Code code, const std::string& why) {
    throw ggml::Error(code, gguf.path() + ": " + why);
}

// The integers of a key, n of them.
std::vector<int64_t> integers_of(const ggml::Gguf& gguf, const std::string& key, int64_t n,
                                 int64_t least) {
    const ggml::Value* v = gguf.find(key);
    if (!v) refuse_flash(gguf, ggml::Code::format, key + " is missing");
    if (!v->is_array() || !v->is_integer() || int64_t(v->count()) != n) {
        refuse_flash(gguf, ggml::Code::format,
                     key + " is not an array of " + std::to_string(n) + " integers");
    }
    std::vector<int64_t> found;
    for (int64_t i = 0; i < n; i++) {
        found.push_back(v->integer(uint64_t(i)));
        if (found.back() >= least) continue;
        refuse_flash(gguf, ggml::Code::format,
                     ggml::format("%s holds %lld, which is less than %lld", key.c_str(),
                                  (long long)found.back(), (long long)least));
    }
    return found;
}

// The positions of which each row sees all: its indexer keeps top_k of them in whole blocks of as
// many as the layer says, and those behind the last whole block. 0: there is no indexer.
int64_t indexed_positions(const ggml::Gguf& gguf, const Config& c) {
    const std::string ratios = c.architecture + ".attention.compress_ratios";
    const std::string indexer = c.architecture + ".attention.indexer.";
    for (const char* size : {"head_count", "key_length"}) {
        gguf.integer(indexer + size, 1, INT32_MAX, 1);  // of what is not computed
    }
    int64_t most = 0;
    for (const float of_layer : per_layer(gguf, ratios, c.n_layer)) {
        const auto block = int64_t(of_layer);
        if (block < 0 || float(block) != of_layer || block > kWidestRow) {
            refuse_flash(gguf, ggml::Code::format, ratios + " are not sizes of blocks");
        }
        if (block == 0) continue;
        const int64_t kept = gguf.integer(indexer + "top_k", block, INT32_MAX - kWidestRow);
        const int64_t seen = kept / block * block + block - 1;
        most = most ? std::min(most, seen) : seen;
    }
    if (!most && gguf.find(indexer + "top_k")) {
        refuse_flash(gguf, ggml::Code::format, ratios + " is missing, or 0 in all layers");
    }
    return most;
}

void configure_qwen4exp(const ggml::Gguf& gguf, Config& c) {
    configure_halves(gguf, c);
    c.n_streams = gguf.integer(c.architecture + ".hyper_connection.count", 2, kMostStreams);
    c.n_indexed = indexed_positions(gguf, c);
    if (c.n_indexed) c.n_ctx = std::min(c.n_ctx, c.n_indexed);
}

// The tensors NAME_norm, NAME_down, NAME_up and, if something is added to the streams, NAME_inject.
void add_mix(Weights& w, Part part, const std::string& name, bool injects, StreamMix* mix) {
    const Config& c = w.m.config;
    const int64_t n = c.n_streams, width = c.stream_width();
    mix->rank = w.m.file.gguf.integer(c.architecture + ".hyper_connection.low_rank", 1, kMostRank);
    mix->norm_eps = c.norm_eps;
    w.vector(Part::norms, name + "_norm.weight", width, &mix->norm);
    w.matrix(part, name + "_down.weight", mix->rank, width, &mix->down);
    w.matrix(part, name + "_up.weight", width, mix->rank, &mix->up);
    if (injects) w.matrix(part, name + "_inject.weight", n, width, &mix->inject);
}

// The layer with n-grams; -1: none has them.
int64_t layer_of_grams(const Model& m) {
    const ggml::Gguf& gguf = m.file.gguf;
    const std::string key = m.config.architecture + ".ple.layers";
    const ggml::Value* v = gguf.find(key);
    if (!v || (v->is_array() && v->count() == 0)) return -1;
    if (!v->is_integer()) refuse_flash(gguf, ggml::Code::format, key + " holds no integers");
    if (v->count() > 1) {
        refuse_flash(gguf, ggml::Code::unsupported,
                     key + ": n-grams in more than one layer are not supported");
    }
    const int64_t layer = v->integer(0);
    if (layer >= 0 && layer < m.config.n_layer) return layer;
    refuse_flash(gguf, ggml::Code::format,
                 ggml::format("%s: there is no layer %lld", key.c_str(), (long long)layer));
}

// The sizes of n-grams and their hashes, whose rows are all in a table of n_rows.
NGrams grams_of(const Model& m, int64_t n_rows) {
    const ggml::Gguf& gguf = m.file.gguf;
    const Config& c = m.config;
    const std::string prefix = c.architecture + ".ple.";
    NGrams g;
    g.order = gguf.integer(prefix + "ngram_size", 2, ggml::kMostTaps);
    g.heads = gguf.integer(prefix + "heads_per_ngram", 1, kMostGramHeads);
    g.taps = gguf.integer(prefix + "conv_kernel", 1, ggml::kMostTaps / g.order + 1);
    g.end = int32_t(gguf.integer(prefix + "eos_token_id", 0, c.n_vocab - 1));
    gguf.integer(prefix + "image_token_id", 0, INT32_MAX, 0);  // of texts with pictures
    g.n_streams = c.n_streams;
    g.n_embd = c.n_embd;
    g.head_dim = gguf.integer(c.architecture + ".embedding_length_per_layer_input", 1, kWidestRow);
    g.multiplier = integers_of(gguf, prefix + "layer_multipliers", g.order, INT64_MIN);
    g.offset = integers_of(gguf, prefix + "head_offsets", g.n_heads(), 0);
    g.size = integers_of(gguf, prefix + "head_vocab_sizes", g.n_heads(), 1);
    for (size_t head = 0; head < g.size.size(); head++) {
        if (g.size[head] <= n_rows && g.offset[head] <= n_rows - g.size[head]) continue;
        refuse_flash(gguf, ggml::Code::format,
                     ggml::format("%shead_offsets and %shead_vocab_sizes: %lld rows from %lld on "
                                  "are not in a table of %lld",
                                  prefix.c_str(), prefix.c_str(), (long long)g.size[head],
                                  (long long)g.offset[head], (long long)n_rows));
    }
    return g;
}

void add_grams(Weights& w, int64_t i) {
    const std::string table = "per_layer_token_embd.weight";
    const ggml::TensorInfo* there = w.m.file.gguf.find_tensor(table);
    const int64_t n_rows = there ? there->ne[1] : 0;
    if (!there) {
        refuse_flash(w.m.file.gguf, ggml::Code::format, "tensor \"" + table + "\" is missing");
    }
    NGrams& g = w.add_state(i, "", grams_of(w.m, n_rows));
    w.rows(Part::embedding, table, {g.head_dim, n_rows}, 0, n_rows,
           Table{&g.table, &w.m.own_rows_stored, true});
    w.matrix(Part::embedding, blk(i, "ple_key.weight"), g.width(), g.joined(), &g.key);
    w.matrix(Part::embedding, blk(i, "ple_value.weight"), g.n_embd, g.joined(), &g.value);
    w.rows(Part::embedding, blk(i, "ple_conv1d.weight"), {g.taps, g.width()}, 0, g.width(),
           Decoded{&g.conv});
    w.vector(Part::norms, blk(i, "ple_norm_key.weight"), g.width(), &g.key_norm);
    w.vector(Part::norms, blk(i, "ple_norm_query.weight"), g.width(), &g.query_norm);
    w.vector(Part::norms, blk(i, "ple_norm_conv.weight"), g.width(), &g.conv_norm);
}

// llama.cpp's files do not say how delta nets are gated: by the sigmoid.
bool gates_by_sigmoid(const ggml::Gguf& gguf) {
    const std::string key = "powerinfer.delta_net.gate";
    const std::string_view gate = gguf.string(key, "sigmoid");
    if (gate == "sigmoid" || gate == "silu") return gate == "sigmoid";
    refuse_flash(gguf, ggml::Code::unsupported, key + " is neither sigmoid nor silu");
}

void weights_qwen4exp(Model& m, std::vector<WeightSpec>& specs) {
    LayerForm form;
    form.attention_norm = form.ffn_norm = "";
    form.head_norms = Attention::Norms::by_head;
    form.gates_attention = true;
    Weights w(m, specs);
    w.embedding_and_head("");
    const std::vector<bool> recurrent = recurrent_layers(m);
    DeltaNet sizes = delta_net(m, true);
    sizes.sigmoid_gate = gates_by_sigmoid(m.file.gguf);
    const int64_t with_grams = layer_of_grams(m);
    for (int64_t i = 0; i < m.config.n_layer; i++) {
        std::deque<LayerPart>& parts = m.layers[size_t(i)].parts;
        if (i == with_grams) add_grams(w, i);
        const size_t block = parts.size();
        if (recurrent[size_t(i)]) {
            add_delta_net(w, i, sizes, "");
        } else {
            w.attend(i, form);
        }
        add_mix(w, Part::attention, blk(i, "hc_attn"), true, &parts[block].mix.emplace());
        const size_t experts = parts.size();
        w.feed_forward(i, form);
        add_mix(w, Part::ffn, blk(i, "hc_ffn"), true, &parts[experts].mix.emplace());
    }
    add_mix(w, Part::head, "output_hc", false, &m.output_mix.emplace());
}

}  // namespace

const std::vector<Family> kQwen4ExpFamilies = {
    Family{"qwen4exp", configure_qwen4exp, weights_qwen4exp}.of_experts()};

}  // namespace powerinfer
