// Encoders: rows see both sides, what the rows of a text become together, and files that say what
// cannot be. tests/python/test_vectors.py compares every family's vectors with other code.
#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>

#include "engine/sessions.h"
#include "memory/pooled.h"
#include "model/families/family.h"

using namespace sessions;

namespace {

constexpr int64_t kWidth = 64;  // of Shape

void add(Description& d, const std::string& name, std::vector<int64_t> ne, float scale = 0.1f,
         float mean = 0, DType type = DType::F32) {
    std::mt19937 rng(uint32_t(d.tensors.size()));
    std::normal_distribution<float> normal;
    int64_t n = 1;
    for (const int64_t size : ne) n *= size;
    std::vector<float> values(static_cast<size_t>(n));
    for (float& v : values) v = mean + scale * normal(rng);
    d.tensors.push_back({name, type, std::move(ne), ggml::random_blocks(type, values)});
}

// A norm with a bias.
void add_norm(Description& d, const std::string& name, int64_t width = kWidth) {
    add(d, name + ".weight", {width}, 0.2f, 1);
    add(d, name + ".bias", {width});
}

// Llama's layers with what BERT has in place of it.
Description bert(const std::string& architecture = "bert", bool types = true) {
    Shape shape;
    shape.architecture = architecture, shape.biases = true, shape.tied = true;
    Description d = tiny::describe(shape);
    for (int64_t i = 0; i < shape.n_layer; i++) {
        for (const char* name : {"attn_norm.weight", "ffn_norm.weight", "ffn_gate.weight"}) {
            d.remove(blk(i, name));
        }
        d.remove(blk(i, "ffn_gate.bias"));
        add_norm(d, blk(i, "attn_output_norm"));
        add_norm(d, blk(i, "layer_output_norm"));
    }
    d.remove("output_norm.weight");
    add_norm(d, "token_embd_norm");
    add(d, "position_embd.weight", {kWidth, 128}, 0.5f);
    if (types) add(d, "token_types.weight", {kWidth, 2}, 0.5f);
    d.keys[architecture + ".attention.layer_norm_epsilon"] = 1e-12f;
    d.keys.erase(architecture + ".attention.layer_norm_rms_epsilon");
    return d;
}

pi_session_params pooling(int32_t kind, int32_t n_threads = 1, int32_t n_seq = 4) {
    pi_session_params params = session_params(n_threads);
    params.embedding = true;
    params.pooling = kind;
    params.n_seq = n_seq;
    return params;
}

// The rows of a call: of several texts, one after another.
struct Texts {
    std::vector<Tokens> texts;

    void eval(Session& session, bool in_turn = false) const {
        Tokens tokens;
        std::vector<int32_t> seqs;
        const auto row = [&](size_t text, size_t i) {
            tokens.push_back(texts[text][i]);
            seqs.push_back(int32_t(text));
        };
        size_t longest = 0;
        for (const Tokens& text : texts) longest = std::max(longest, text.size());
        for (size_t i = 0; in_turn && i < longest; i++) {
            for (size_t text = 0; text < texts.size(); text++) {
                if (i < texts[text].size()) row(text, i);
            }
        }
        for (size_t text = 0; !in_turn && text < texts.size(); text++) {
            for (size_t i = 0; i < texts[text].size(); i++) row(text, i);
        }
        sessions::eval(session, tokens, {seqs.data()});
    }
};

Floats pooled(const Session& session, int32_t seq) {
    const int64_t width = PooledTexts::width(*session.model, session.params);
    const float* const found = session.pooled(seq);
    return Floats(found, found + width);
}

// The rows of a text.
Floats rows_of(const std::shared_ptr<const Model>& model, const Tokens& text) {
    pi_session_params params = pooling(PI_POOLING_NONE);
    params.n_logits = 0;
    Session session(model, params);
    const std::vector<char> keep(text.size(), 1);
    eval(session, text, {nullptr, reinterpret_cast<const bool*>(keep.data())});
    Floats out;
    for (size_t i = 0; i < text.size(); i++) {
        const float* const row = session.result(int32_t(i));
        out.insert(out.end(), row, row + kWidth);
    }
    return out;
}

Floats row(const Floats& rows, size_t i) {
    const auto from = rows.begin() + int64_t(i) * kWidth;
    return Floats(from, from + kWidth);
}

// In the order of the rows, in floats.
Floats mean(const Floats& rows) {
    const size_t n = rows.size() / size_t(kWidth);
    Floats sum(size_t(kWidth), 0.0f);
    for (size_t i = 0; i < n; i++) {
        for (size_t c = 0; c < size_t(kWidth); c++) sum[c] += rows[i * size_t(kWidth) + c];
    }
    for (float& value : sum) value /= float(n);
    return sum;
}

void rows_become_one(const std::shared_ptr<const Model>& model) {
    const Texts given{{random_tokens(70, 1), random_tokens(1, 2), random_tokens(17, 3)}};
    std::map<int32_t, std::vector<Floats>> want;
    for (const Tokens& text : given.texts) {
        const Floats rows = rows_of(model, text);
        want[PI_POOLING_MEAN].push_back(mean(rows));
        want[PI_POOLING_FIRST].push_back(row(rows, 0));
        want[PI_POOLING_LAST].push_back(row(rows, text.size() - 1));
    }
    for (const auto& [kind, vectors] : want) {
        for (const int32_t n_threads : {1, 3}) {
            Session session(model, pooling(kind, n_threads));
            for (const bool in_turn : {false, true}) {
                given.eval(session, in_turn);
                for (size_t i = 0; i < vectors.size(); i++) {
                    CHECK(same(pooled(session, int32_t(i)), vectors[i]));
                }
                CHECK_THROWS(argument, session.pooled(3));  // it had no row
                for (const int32_t seq : {0, 1, 2}) {
                    if (!model->config.encoder) session.truncate(seq, 0);
                    CHECK(session.length(seq) == 0);  // what an encoder keeps
                }
            }
            for (size_t i = 0; i < vectors.size(); i++) {
                Texts{{given.texts[i]}}.eval(session);
                CHECK(same(pooled(session, 0), vectors[i]));
                CHECK_THROWS(argument, session.pooled(1));
                if (!model->config.encoder) session.truncate(0, 0);
            }
        }
    }
}

// A row depends on those behind it, in a decoder only on those before.
void both_sides(const std::shared_ptr<const Model>& model, bool sees) {
    Tokens text = random_tokens(75, 5);
    const Floats before = rows_of(model, text);
    text.back() = (text.back() + 1) % tiny::kVocab;
    const Floats after = rows_of(model, text);
    for (const size_t i : {0, 10, 63, 64, 73}) CHECK(same(row(before, i), row(after, i)) != sees);
    CHECK(!same(row(before, 74), row(after, 74)));
}

// EmbeddingGemma's window of 24: 12 on each side.
void windows() {
    Shape shape;
    shape.architecture = "gemma-embedding", shape.tied = true, shape.n_layer = 1;
    shape.window = 24;
    Description d = tiny::describe(shape);
    for (const char* name : {"post_attention_norm", "post_ffw_norm"}) {
        add(d, blk(0, (std::string(name) + ".weight").c_str()), {kWidth}, 0.2f, 1);
    }
    for (const char* name : {"attn_q_norm.weight", "attn_k_norm.weight"}) {
        add(d, blk(0, name), {shape.head_dim}, 0.2f, 1);
    }
    const auto model = load(d);
    Tokens text = random_tokens(80, 6);
    const Floats before = rows_of(model, text);
    for (const size_t changed : {0, 40, 64, 79}) {
        Tokens other = text;
        other[changed] = (other[changed] + 1) % tiny::kVocab;
        const Floats after = rows_of(model, other);
        bool as_far = true;
        for (size_t i = 0; i < text.size(); i++) {
            const size_t distance = i > changed ? i - changed : changed - i;
            as_far &= same(row(before, i), row(after, i)) == (distance > 12);
        }
        CHECK(as_far);
    }
}

void token_types() {
    const auto model = load(bert());
    Session session(model, pooling(PI_POOLING_MEAN));
    const Tokens text = random_tokens(9, 7);
    const auto run = [&](const std::vector<int32_t>& types) {
        pi_batch batch{};
        batch.struct_size = sizeof(batch);
        batch.n = int32_t(text.size());
        batch.token = text.data();
        batch.type = types.empty() ? nullptr : types.data();
        session.eval(batch);
        return pooled(session, 0);
    };
    const std::vector<int32_t> zeros(9, 0), some{0, 0, 0, 0, 1, 1, 1, 1, 1};
    const Floats usual = run({});
    CHECK(same(run(zeros), usual) && !same(run(some), usual));
    for (const int32_t wrong : {2, -1, INT32_MAX}) {
        std::vector<int32_t> types = zeros;
        types[4] = wrong;
        CHECK_THROWS(argument, run(types));
    }
    CHECK(same(run({}), usual));
    // A model without a table has type 0 alone.
    Session plain(load(bert("bert", false)), pooling(PI_POOLING_MEAN));
    pi_batch batch{};
    batch.struct_size = sizeof(batch);
    batch.n = int32_t(text.size());
    batch.token = text.data(), batch.type = zeros.data();
    plain.eval(batch);
    batch.type = some.data();
    CHECK_THROWS(argument, plain.eval(batch));
}

// A header without `type` is an older one.
void older_batches() {
    Session session(load(bert()), pooling(PI_POOLING_MEAN));
    const Tokens text = random_tokens(9, 7);
    Texts{{text}}.eval(session);
    const Floats want = pooled(session, 0);
    pi_batch batch{};
    batch.struct_size = offsetof(pi_batch, type);
    batch.n = int32_t(text.size());
    batch.token = text.data();
    int32_t never = 77;
    batch.type = &never;
    pi_batch read{};
    std::memcpy(&read, &batch, batch.struct_size);
    session.eval(read);
    CHECK(same(pooled(session, 0), want));
}

// What is behind the pooling: wider than everything in the layers, in 8 bits, for more texts than a
// pass has rows.
void dense_layers() {
    for (const DType type : {DType::F32, DType::Q8_0}) {
        Description d = bert();
        add(d, "dense_2.weight", {kWidth, 1024}, 0.1f, 0, type);
        add(d, "dense_3.weight", {1024, 32}, 0.1f, 0, type);
        const auto model = load(d);
        pi_session_params params = pooling(PI_POOLING_MEAN, 2, 8);
        params.n_ctx = params.n_batch = params.n_ubatch = 8;
        Session session(model, params);
        const Texts texts{{{1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}}};
        texts.eval(session);
        std::vector<Floats> together;
        for (int32_t i = 0; i < 8; i++) together.push_back(pooled(session, i));
        for (size_t i = 0; i < 8; i++) {
            Texts{{texts.texts[i]}}.eval(session);
            CHECK(same(pooled(session, 0), together[i]) && together[i].size() == 32);
        }
    }
}

void scores() {
    Description d = bert();
    add(d, "cls.weight", {kWidth, kWidth});
    add(d, "cls.bias", {kWidth});
    add(d, "cls.output.weight", {kWidth, 1});
    add(d, "cls.output.bias", {1});
    const auto model = load(d);
    CHECK(model->config.notes.empty());
    Session session(model, pooling(PI_POOLING_RANK));
    const Texts texts{{random_tokens(9, 1), random_tokens(30, 2)}};
    texts.eval(session);
    const Floats first = pooled(session, 0), second = pooled(session, 1);
    CHECK(first.size() == 1 && first != second);
    Texts{{texts.texts[1]}}.eval(session);
    CHECK(same(pooled(session, 0), second));
    // Its vectors are there, too.
    Session vectors(model, pooling(PI_POOLING_FIRST));
    texts.eval(vectors);
    CHECK(same(pooled(vectors, 0), row(rows_of(model, texts.texts[0]), 0)));
    // A file of a ranker may have lost its pooler.
    d.remove("cls.weight"), d.remove("cls.bias");
    const auto lost = load(d);
    CHECK(lost->config.notes.size() == 1 && lost->config.notes[0].level == 2);
    CHECK(lost->config.notes[0].text.find("cls.weight") != std::string::npos);
}

void refused_sessions() {
    const auto encoder = load(bert()), decoder = load(tiny::describe({}));
    const auto open = [](const std::shared_ptr<const Model>& model, pi_session_params params) {
        Session session(model, params);
    };
    CHECK_THROWS(unsupported, open(encoder, session_params()));  // it has no logits
    CHECK_THROWS(unsupported, open(encoder, pooling(PI_POOLING_RANK)));
    CHECK_THROWS(unsupported, open(decoder, pooling(PI_POOLING_RANK)));
    for (const int32_t kind : {-1, 5}) CHECK_THROWS(argument, open(encoder, pooling(kind)));
    pi_session_params tokens = session_params();
    tokens.pooling = PI_POOLING_MEAN;
    CHECK_THROWS(argument, open(decoder, tokens));
    pi_session_params long_one = pooling(PI_POOLING_MEAN);
    long_one.n_ctx = 129;  // its positions are 128
    CHECK_THROWS(argument, open(encoder, long_one));

    // A table that is shorter than the context ends it.
    Description short_table = bert();
    short_table.remove("position_embd.weight");
    add(short_table, "position_embd.weight", {kWidth, 90});
    const auto short_one = load(short_table);
    pi_session_params whole = pooling(PI_POOLING_MEAN);
    CHECK_THROWS(argument, open(short_one, whole));
    whole.n_ctx = 0;
    CHECK(short_one->config.n_ctx == 90 && Session(short_one, whole).params.n_ctx == 90);

    // A call takes whole texts, whatever the sizes of passes.
    pi_session_params narrow = pooling(PI_POOLING_MEAN);
    narrow.n_batch = narrow.n_ubatch = 4;
    Session session(encoder, narrow), usual(encoder, pooling(PI_POOLING_MEAN));
    const Texts text{{random_tokens(96, 9)}};
    text.eval(session);
    text.eval(usual);
    CHECK(same(pooled(session, 0), pooled(usual, 0)));
    const auto eval_long = [&](size_t n) { Texts{{random_tokens(n, 9)}}.eval(session); };
    CHECK_THROWS(argument, eval_long(97));
    for (const int32_t seq : {4, -1}) CHECK_THROWS(argument, session.pooled(seq));
}

using Change = std::function<void(Description&)>;

void hostile_files() {
    const auto with = [](const Change& change, const char* architecture = "bert") {
        Description d = bert(architecture);
        change(d);
        return d;
    };
    const auto without = [&](const std::string& name) {
        refused(with([&](Description& d) { d.remove(name); }), Code::format, {name});
    };
    without("token_embd_norm.weight");
    without("token_embd_norm.bias");
    without("position_embd.weight");
    without("blk.1.attn_output_norm.weight");
    without("blk.0.layer_output_norm.bias");
    without("blk.1.ffn_down.weight");
    const auto shaped = [&](const std::string& name, std::vector<int64_t> ne) {
        refused(with([&](Description& d) {
                    for (auto at = d.tensors.begin(); at != d.tensors.end(); ++at) {
                        if (at->name == name) {
                            d.tensors.erase(at);
                            break;
                        }
                    }
                    add(d, name, ne);
                }),
                Code::format, {name});
    };
    shaped("token_embd_norm.weight", {kWidth - 1});
    shaped("position_embd.weight", {kWidth / 2, 256});
    shaped("token_types.weight", {kWidth + 1, 2});
    shaped("blk.0.layer_output_norm.weight", {kWidth * 2});
    shaped("dense_2.weight", {kWidth - 2, 8});
    shaped("dense_2.weight", {kWidth, 4, 2});
    shaped("dense_3.weight", {kWidth - 2, 8});
    shaped("cls.output.weight", {kWidth + 1, 1});
    // Parts of a head that do not fit each other.
    const auto head = [&](std::vector<int64_t> cls, std::vector<int64_t> bias,
                          std::vector<int64_t> output, const char* name) {
        refused(with([&](Description& d) {
                    add(d, "cls.weight", cls);
                    add(d, "cls.bias", bias);
                    add(d, "cls.output.weight", output);
                }),
                Code::format, {name});
    };
    head({kWidth, 32}, {32}, {kWidth, 1}, "cls.output.weight");
    head({kWidth, 32}, {31}, {32, 1}, "cls.bias");
    head({32, kWidth}, {kWidth}, {kWidth, 1}, "cls.weight");
    refused(with([](Description& d) {
                add(d, "dense_2.weight", {kWidth, 8});
                d.keys["bert.dense_2_feat_in"] = uint32_t(63);
            }),
            Code::format, {"bert.dense_2_feat_in"});

    refused(with([](Description& d) { d.keys.erase("bert.attention.layer_norm_epsilon"); }),
            Code::format, {"bert.attention.layer_norm_epsilon"});
    refused(with([](Description& d) { d.keys["bert.attention.causal"] = true; }), Code::unsupported,
            {"bert.attention.causal", "both sides"});
    refused(with([](Description& d) {
                add(d, "dense_2.weight", {kWidth, 8});
                d.keys["powerinfer.dense.activations"] = std::string("tanh");
            }),
            Code::unsupported, {"powerinfer.dense.activations"});

    // MPNet's buckets: of each head, and at least two for each side.
    const auto mpnet = [&](std::vector<int64_t> ne) {
        return with([&](Description& d) { add(d, "attn_rel_b.weight", ne); }, "mpnet");
    };
    const auto opened = [](const std::shared_ptr<const Model>& model) {
        return model->config.encoder && bool(model->score_bias);
    };
    CHECK(opened(load(mpnet({4, 32}))));
    for (const auto& ne :
         std::vector<std::vector<int64_t>>{{3, 32}, {4, 3}, {4, 0}, {32, 4}, {4}}) {
        if (ne.size() == 2 && ne[1] == 0) continue;  // no such tensor
        refused(mpnet(ne), Code::format, {"attn_rel_b.weight"});
    }
    refused(with([](Description&) {}, "mpnet"), Code::format, {"attn_rel_b.weight"});
}

}  // namespace

int main() {
    Shape deep;
    deep.n_layer = 3;
    for (const auto& model : {load(bert()), load(tiny::describe(deep))}) {
        rows_become_one(model);
        both_sides(model, model->config.encoder);
    }
    windows();
    token_types();
    older_batches();
    dense_layers();
    scores();
    refused_sessions();
    hostile_files();
    return check::summary("test_encoders");
}
