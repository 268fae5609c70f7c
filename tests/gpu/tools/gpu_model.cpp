// Writes a Llama of any size whose FFN is sparse by design, to measure speed. Its text is noise.
//
//   gpu_model --out F [--embd 4096 --ff 11008 --layers 32 --heads 32 --kv 32 --vocab 32000]
//             [--type F16] [--density 0.1] [--predictor sharp] [--dense 0] [--seed 1]
//   gpu_model --index MODEL --share 0.4 [--layers 32 --ff 11008]      # a random placement
//   gpu_model --out F --experts 128 [--used 8 --embd 2048 --ff 768 --layers 12 --heads 32 --kv 4
//             --head-dim 128 --vocab 32000 --type Q4_K --skew 1 --seed 1]     # a mixture
//
// The input of an FFN is normed, and a gate row has length 1: their product is close to normally
// distributed over tokens, so a bias of -z(1 - p) lets a neuron fire with probability p. The
// probabilities fall off exponentially, such that 26% of the neurons make 80% of the activations,
// as PowerInfer reports of trained models. Predictors are sketches (the signs of the gates).
// --predictor sharp: gates are all signs, so that only the rounding of inputs misleads them.
// --predictor plain: gates are normal, which a sketch sees with a correlation of 0.8, about as
// well as trained predictors see theirs.
//
// --dense 1: plain matrices, which other engines read, of the same size.
//
// Layers share their matrices and permute their neurons, so that a model of 13 GB takes seconds.
//
// --experts: a mixture of the shape of Qwen3's. The first 32 columns of the stream hold a constant,
// by which a router has a bias for each expert: normally distributed, --skew times as widely as
// what follows the token. Experts have the same weights, in memory of their own.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>

#include "ggml/dtype.h"
#include "ggml/gguf.h"
#include "gpu/tools/arguments.h"

namespace {

using ggml::DType;
using Floats = std::vector<float>;
using Bytes = std::vector<uint8_t>;

// The point that a normal variable exceeds with probability p.
double exceeded(double p) {
    double low = -8, high = 8;
    for (int i = 0; i < 60; i++) {
        const double middle = (low + high) / 2;
        (0.5 * std::erfc(middle / std::sqrt(2.0)) > p ? low : high) = middle;
    }
    return low;
}

// Firing rates of n neurons with a mean, hottest first.
Floats rates(int64_t n, double mean) {
    constexpr double kFalling = 6.2;  // (1 - exp(-0.26 k)) / (1 - exp(-k)) = 0.8
    Floats rate(static_cast<size_t>(n));
    double scale = mean * kFalling;
    for (int round = 0; round < 50; round++) {
        double sum = 0;
        for (size_t i = 0; i < rate.size(); i++) {
            rate[i] = float(std::min(0.95, scale * std::exp(-kFalling * double(i) / double(n))));
            sum += rate[i];
        }
        scale *= mean / (sum / double(n));
    }
    return rate;
}

struct Maker {
    explicit Maker(uint32_t seed) : rng(seed) {
        std::normal_distribution<float> normal;
        for (float& v : pool) v = normal(rng);
    }
    // n normal values, from a pool that begins elsewhere each time.
    Floats normals(int64_t n, float scale) {
        Floats values(static_cast<size_t>(n));
        for (size_t i = 0; i < values.size();) {
            size_t at = rng() % pool.size();
            for (; at < pool.size() && i < values.size() && i % 65536 != 65535; i++, at++) {
                values[i] = pool[at] * scale;
            }
            if (i < values.size()) values[i++] = pool[rng() % pool.size()] * scale;
        }
        return values;
    }
    Bytes encoded(DType type, const Floats& values) {
        const ggml::DTypeInfo& t = ggml::info(type);
        Bytes bytes(size_t(t.size(int64_t(values.size()))));
        t.encode(values.data(), bytes.data(), int64_t(values.size()));
        return bytes;
    }
    Bytes matrix(DType type, int64_t rows, int64_t cols, double size) {
        return encoded(type, normals(rows * cols, float(size / std::sqrt(double(cols)))));
    }

    std::mt19937 rng;
    Floats pool = Floats(1 << 20);
};

// Rows of a matrix in another order.
Bytes permuted(const Bytes& rows, const std::vector<int32_t>& order) {
    const size_t row = rows.size() / order.size();
    Bytes out(rows.size());
    for (size_t i = 0; i < order.size(); i++) {
        std::copy_n(rows.data() + size_t(order[i]) * row, row, out.data() + i * row);
    }
    return out;
}
Bytes as_bytes(const Floats& values) {
    const auto* begin = reinterpret_cast<const uint8_t*>(values.data());
    return Bytes(begin, begin + values.size() * sizeof(float));
}

void add_vocabulary(ggml::GgufWriter& writer, int64_t n) {
    std::vector<std::string> texts = {"<unk>", "<s>", "</s>"};
    std::vector<int32_t> types = {2, 3, 3};
    for (int i = 0; i < 256; i++) {
        char text[8];
        std::snprintf(text, sizeof text, "<0x%02X>", unsigned(i));
        texts.push_back(text);
        types.push_back(6);
    }
    while (int64_t(texts.size()) < n) {
        texts.push_back("\xe2\x96\x81" + std::to_string(texts.size()));
        types.push_back(1);
    }
    writer.add_string("tokenizer.ggml.model", "llama");
    writer.add_strings("tokenizer.ggml.tokens", texts);
    writer.add_f32s("tokenizer.ggml.scores", Floats(texts.size(), -1));
    writer.add_i32s("tokenizer.ggml.token_type", types);
    writer.add_u32("tokenizer.ggml.bos_token_id", 1);
    writer.add_u32("tokenizer.ggml.eos_token_id", 2);
}

void make_model(tools::Arguments& given, const std::string& out) {
    const int64_t embd = given.whole("embd", 4096), ff = given.whole("ff", 11008);
    const int64_t n_layer = given.whole("layers", 32), heads = given.whole("heads", 32);
    const int64_t kv = given.whole("kv", heads), vocab = given.whole("vocab", 32000);
    const double density = given.number("density", 0.1);
    const std::string type_name = given.text("type", "F16");
    const bool sharp = given.text("predictor", "sharp") == "sharp";
    const bool dense = given.whole("dense", 0) != 0;
    Maker make(uint32_t(given.whole("seed", 1)));
    given.no_more();
    const ggml::DTypeInfo* found = ggml::find_dtype(type_name);
    if (!found || !found->encode) throw std::invalid_argument("no format " + type_name);
    if (embd % 32 || embd % heads || heads % kv || vocab < 300) {
        throw std::invalid_argument("embd must be a multiple of 32 and of heads, heads of kv");
    }
    const DType type = found->type;
    const int64_t kv_dim = embd / heads * kv;

    ggml::GgufWriter w(out, "GGUF");
    w.add_string("general.architecture", "llama");
    w.add_string("general.name", "sparse by design, density " + std::to_string(density));
    w.add_string("powerinfer.ffn.activation", "relu");
    if (!dense) {
        w.add_u32("powerinfer.version", 1);
        w.add_string("powerinfer.predictor.kind", "sketch");
        w.add_string("powerinfer.predictor.input", "normed");
    }
    w.add_u32("llama.context_length", 4096);
    w.add_u32("llama.embedding_length", uint32_t(embd));
    w.add_u32("llama.block_count", uint32_t(n_layer));
    w.add_u32("llama.feed_forward_length", uint32_t(ff));
    w.add_u32("llama.attention.head_count", uint32_t(heads));
    w.add_u32("llama.attention.head_count_kv", uint32_t(kv));
    w.add_f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    w.add_u32("llama.rope.dimension_count", uint32_t(embd / heads));
    add_vocabulary(w, vocab);

    struct Named {
        std::string name;
        DType type;
        std::vector<int64_t> ne;
    };
    std::vector<Named> of_layer = {
        {"attn_norm.weight", DType::F32, {embd}},
        {"attn_q.weight", type, {embd, embd}},
        {"attn_k.weight", type, {embd, kv_dim}},
        {"attn_v.weight", type, {embd, kv_dim}},
        {"attn_output.weight", type, {embd, embd}},
        {"ffn_norm.weight", DType::F32, {embd}},
        {"ffn_gate.weight", type, {embd, ff}},
        {"ffn_up.weight", type, {embd, ff}},
        {"ffn_down_t.weight", type, {embd, ff}},
        {"ffn_gate.bias", DType::F32, {ff}},
        {"ffn_rate", DType::F32, {ff}},
        {"sketch.weight", DType::I8, {embd / 8, ff}},
        {"sketch.bias", DType::F32, {ff}},
    };
    if (dense) {
        of_layer.resize(of_layer.size() - 4);
        of_layer.back() = {"ffn_down.weight", type, {ff, embd}};
    }
    w.add_tensor("token_embd.weight", type, {embd, vocab});
    for (int64_t i = 0; i < n_layer; i++) {
        for (const Named& t : of_layer) {
            w.add_tensor("blk." + std::to_string(i) + "." + t.name, t.type, t.ne);
        }
    }
    w.add_tensor("output_norm.weight", DType::F32, {embd});
    w.add_tensor("output.weight", type, {embd, vocab});

    // What a layer adds is small beside the token's embedding: the share that fires stays the
    // same in every layer, and differs from token to token.
    constexpr double kAdded = 0.02;
    const Bytes ones = as_bytes(Floats(size_t(embd), 1.0f));
    const Bytes q = make.matrix(type, embd, embd, 1), k = make.matrix(type, kv_dim, embd, 1);
    const Bytes v = make.matrix(type, kv_dim, embd, 1);
    const Bytes o = make.matrix(type, embd, embd, kAdded);
    const Bytes up = make.matrix(type, ff, embd, 1);
    const Bytes down = make.encoded(
        type, make.normals(ff * embd, float(kAdded / std::sqrt(double(ff) * density))));
    Floats gate = make.normals(ff * embd, float(1 / std::sqrt(double(embd))));
    const float magnitude = float(1 / std::sqrt(double(embd)));
    Bytes sign_bits(size_t(ff * embd / 8));
    for (size_t i = 0; i < gate.size(); i++) {
        if (gate[i] < 0) sign_bits[i / 8] = uint8_t(sign_bits[i / 8] | 1 << i % 8);
        if (sharp) gate[i] = gate[i] < 0 ? -magnitude : magnitude;
    }
    const Bytes gates = make.encoded(type, gate);
    const Floats rate = rates(ff, density);
    // A score is the product divided by the mean magnitude. What a sketch does not see well is
    // proposed rather than missed: its threshold is lower by a part of what it cannot see.
    const double mean_magnitude = (sharp ? 1 : std::sqrt(2 / 3.14159265)) * magnitude;
    const double margin = sharp ? 0.15 : 0.66;
    Floats bias(rate.size()), offset(rate.size());
    for (size_t i = 0; i < rate.size(); i++) {
        bias[i] = float(-exceeded(rate[i]));
        offset[i] = float((double(bias[i]) + margin) / mean_magnitude);
        // The signs' part of a normal gate has a smaller spread than the gate.
        if (!sharp) offset[i] = float((double(bias[i]) + margin) / magnitude);
    }
    const Bytes signs = std::move(sign_bits);
    const Bytes biases = as_bytes(bias), offsets = as_bytes(offset), shares = as_bytes(rate);

    const auto put = [&](const Bytes& bytes) { w.write(bytes.data(), bytes.size()); };
    put(make.matrix(type, vocab, embd, std::sqrt(double(embd))));
    std::vector<int32_t> order(static_cast<size_t>(ff));
    std::iota(order.begin(), order.end(), 0);
    for (int64_t i = 0; i < n_layer; i++) {
        std::shuffle(order.begin(), order.end(), make.rng);
        for (const Bytes* plain : {&ones, &q, &k, &v, &o, &ones}) put(*plain);
        if (dense) {
            for (const Bytes* plain : {&gates, &up, &down}) put(*plain);
            continue;
        }
        for (const Bytes* rows : {&gates, &up, &down, &biases, &shares, &signs, &offsets}) {
            put(permuted(*rows, order));
        }
    }
    put(ones);
    put(make.matrix(type, vocab, embd, 1));
    w.finish();
}

struct Tensor {
    std::string name;
    DType type;
    std::vector<int64_t> ne;
    const Bytes* bytes;
};

Bytes repeated(const Bytes& bytes, int64_t times) {
    Bytes all;
    for (int64_t i = 0; i < times; i++) all.insert(all.end(), bytes.begin(), bytes.end());
    return all;
}

void make_mixture(tools::Arguments& given, const std::string& out, int64_t experts) {
    const int64_t embd = given.whole("embd", 2048), ff = given.whole("ff", 768);
    const int64_t n_layer = given.whole("layers", 12), heads = given.whole("heads", 32);
    const int64_t kv = given.whole("kv", 4), dim = given.whole("head-dim", 128);
    const int64_t vocab = given.whole("vocab", 32000), used = given.whole("used", 8);
    const double skew = given.number("skew", 1);
    const std::string type_name = given.text("type", "Q4_K");
    Maker make(uint32_t(given.whole("seed", 1)));
    given.no_more();
    const ggml::DTypeInfo* found = ggml::find_dtype(type_name);
    if (!found || !found->encode) throw std::invalid_argument("no format " + type_name);
    const DType type = found->type;
    if (embd % found->block || ff % found->block || embd < 64 || heads % kv || vocab < 300) {
        throw std::invalid_argument("embd and ff must be whole blocks, and heads a multiple of kv");
    }

    ggml::GgufWriter w(out, "GGUF");
    const std::string arch = "qwen3moe.";
    w.add_string("general.architecture", "qwen3moe");
    w.add_string("general.name", "a mixture with random weights");
    w.add_u32(arch + "context_length", 4096);
    w.add_u32(arch + "embedding_length", uint32_t(embd));
    w.add_u32(arch + "block_count", uint32_t(n_layer));
    w.add_u32(arch + "feed_forward_length", uint32_t(ff));
    w.add_u32(arch + "expert_feed_forward_length", uint32_t(ff));
    w.add_u32(arch + "expert_count", uint32_t(experts));
    w.add_u32(arch + "expert_used_count", uint32_t(used));
    w.add_u32(arch + "attention.head_count", uint32_t(heads));
    w.add_u32(arch + "attention.head_count_kv", uint32_t(kv));
    w.add_u32(arch + "attention.key_length", uint32_t(dim));
    w.add_u32(arch + "attention.value_length", uint32_t(dim));
    w.add_f32(arch + "attention.layer_norm_rms_epsilon", 1e-6f);
    w.add_f32(arch + "rope.freq_base", 1e6f);
    add_vocabulary(w, vocab);

    constexpr int64_t kConstant = 32;  // columns
    constexpr double kAdded = 0.02;    // as in make_model()
    Floats stream = make.normals(vocab * embd, 1);
    for (int64_t t = 0; t < vocab; t++) std::fill_n(stream.data() + t * embd, kConstant, 1.0f);
    const Bytes tokens = make.encoded(type, stream);
    const Bytes ones = as_bytes(Floats(size_t(embd), 1.0f));
    const Bytes of_heads = as_bytes(Floats(size_t(dim), 1.0f));
    const Bytes q = make.matrix(type, heads * dim, embd, 1),
                k = make.matrix(type, kv * dim, embd, 1);
    const Bytes v = make.matrix(type, kv * dim, embd, 1);
    const Bytes o = make.matrix(type, embd, heads * dim, kAdded);
    const Bytes gate = repeated(make.matrix(type, ff, embd, 1), experts);
    const Bytes up = repeated(make.matrix(type, ff, embd, 1), experts);
    const Bytes down = repeated(make.matrix(type, embd, ff, kAdded), experts);
    const Bytes head = make.matrix(type, vocab, embd, 1);
    std::vector<Bytes> routers;
    for (int64_t i = 0; i < n_layer; i++) {
        Floats router = make.normals(experts * embd, float(1 / std::sqrt(double(embd))));
        const Floats liked = make.normals(experts, float(skew / kConstant));
        for (int64_t e = 0; e < experts; e++) {
            std::fill_n(router.data() + e * embd, kConstant, liked[size_t(e)]);
        }
        routers.push_back(as_bytes(router));
    }
    std::vector<Tensor> tensors = {{"token_embd.weight", type, {embd, vocab}, &tokens}};
    for (int64_t i = 0; i < n_layer; i++) {
        const std::string blk = "blk." + std::to_string(i) + ".";
        for (const Tensor& t : {
                 Tensor{"attn_norm.weight", DType::F32, {embd}, &ones},
                 Tensor{"attn_q.weight", type, {embd, heads * dim}, &q},
                 Tensor{"attn_k.weight", type, {embd, kv * dim}, &k},
                 Tensor{"attn_v.weight", type, {embd, kv * dim}, &v},
                 Tensor{"attn_q_norm.weight", DType::F32, {dim}, &of_heads},
                 Tensor{"attn_k_norm.weight", DType::F32, {dim}, &of_heads},
                 Tensor{"attn_output.weight", type, {heads * dim, embd}, &o},
                 Tensor{"ffn_norm.weight", DType::F32, {embd}, &ones},
                 Tensor{"ffn_gate_inp.weight", DType::F32, {embd, experts}, &routers[size_t(i)]},
                 Tensor{"ffn_gate_exps.weight", type, {embd, ff, experts}, &gate},
                 Tensor{"ffn_up_exps.weight", type, {embd, ff, experts}, &up},
                 Tensor{"ffn_down_exps.weight", type, {ff, embd, experts}, &down},
             }) {
            tensors.push_back({blk + t.name, t.type, t.ne, t.bytes});
        }
    }
    tensors.push_back({"output_norm.weight", DType::F32, {embd}, &ones});
    tensors.push_back({"output.weight", type, {embd, vocab}, &head});
    for (const Tensor& t : tensors) w.add_tensor(t.name, t.type, t.ne);
    for (const Tensor& t : tensors) w.write(t.bytes->data(), t.bytes->size());
    w.finish();
}

// A placement that knows nothing: so many neurons of each layer, drawn.
void make_index(tools::Arguments& given, const std::string& model) {
    const int64_t n_layer = given.whole("layers", 32), ff = given.whole("ff", 11008);
    const auto n = int64_t(given.number("share", 0.5) * double(ff));
    std::mt19937 rng(uint32_t(given.whole("seed", 1)));
    given.no_more();
    ggml::GgufWriter w(model + ".generated.gpuidx", "GGUF");
    w.add_string("general.architecture", "generic.gpu_index");
    w.add_u32("split.vram_capacity", 0);
    for (int64_t i = 0; i < n_layer; i++) {
        const std::string blk = "blk." + std::to_string(i) + ".gpu_";
        w.add_tensor(blk + "idx", DType::I32, {ff});
        w.add_tensor(blk + "bucket", DType::I32, {n});
    }
    for (int64_t i = 0; i < n_layer; i++) {
        std::vector<int32_t> marks(static_cast<size_t>(ff)), ids;
        std::fill_n(marks.begin(), n, 1);
        std::shuffle(marks.begin(), marks.end(), rng);
        for (int64_t j = 0; j < ff; j++) {
            if (marks[size_t(j)]) ids.push_back(int32_t(j));
        }
        w.write(marks.data(), marks.size() * 4);
        w.write(ids.data(), ids.size() * 4);
    }
    w.finish();
}

}  // namespace

int main(int argc, char** argv) {
    try {
        tools::Arguments given(argc, argv);
        const std::string index = given.text("index", ""), out = given.text("out", "");
        if (!index.empty()) {
            make_index(given, index);
        } else if (const int64_t experts = given.whole("experts", 0); experts && !out.empty()) {
            make_mixture(given, out, experts);
        } else if (!out.empty()) {
            make_model(given, out);
        } else {
            throw std::invalid_argument("--out or --index is needed");
        }
        return 0;
    } catch (const std::exception& e) {
        std::fprintf(stderr, "gpu_model: %s\n", e.what());
        return 1;
    }
}
