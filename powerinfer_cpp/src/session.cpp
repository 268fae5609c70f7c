#include "session.h"

#include <algorithm>
#include <cmath>

#include "ffn.h"
#include "ggml/status.h"
#include "plan.h"

namespace powerinfer {

using ggml::Code;
using ggml::Error;
using ggml::format;

namespace {

// Widest input of a product: what InputBuffer must hold. Rounded up to whole blocks.
int64_t widest(const Config& c) {
    const int64_t n = std::max({c.n_embd, c.q_dim(), c.n_ff, c.predictor_rank});
    return (n + ggml::kQ - 1) / ggml::kQ * ggml::kQ;
}

int64_t floats_per_row(const Config& c) {
    const int64_t mixture = c.n_expert ? 2 * c.n_expert + 3 * c.n_embd : 0;
    const int64_t predictor = c.has_predictors ? c.predictor_rank + c.n_ff : 0;
    return 4 * c.n_embd + 2 * c.q_dim() + 2 * c.kv_dim() + 2 * c.n_ff + c.n_rot + mixture +
           predictor + 1;
}

bool sketched(const Config& c) {
    return c.has_predictors && c.sketches;
}

// Why exact mode leaves out no neuron of this model; null where it does.
const char* nothing_to_skip(const Model& m) {
    if (!m.config.neuron_aware) return "the file has no neuron rows (ffn_down_t)";
    const auto has_threshold = [](const Layer& l) {
        return (l.experts.empty() ? l.ffn : l.experts[0]).neurons.threshold > 0;
    };
    if (relu_family(m.config.activation) ||
        std::any_of(m.layers.begin(), m.layers.end(), has_threshold)) {
        return nullptr;
    }
    return "its activation is never exactly zero and there is no threshold "
           "(powerinfer.ffn.threshold)";
}

}  // namespace

uint64_t Scratch::bytes(const Config& c, int64_t n_ubatch, int threads) {
    return uint64_t(floats_per_row(c)) * uint64_t(n_ubatch) * sizeof(float) +
           ggml::InputBuffer::bytes(n_ubatch, widest(c)) +
           uint64_t(n_ubatch) * sizeof(ggml::AttentionRow) +
           (c.neuron_aware ? ggml::NeuronScratch::bytes(n_ubatch, c.n_ff, c.n_embd, threads) : 0) +
           (sketched(c) ? ggml::SketchScratch::bytes(n_ubatch, c.n_embd) : 0);
}

Scratch::Scratch(const Config& c, int64_t n_ubatch, int threads)
    : attention_rows(size_t(n_ubatch)),
      input(n_ubatch, widest(c)),
      memory_(uint64_t(floats_per_row(c)) * uint64_t(n_ubatch) * sizeof(float), "scratch") {
    float* at = memory_.as<float>();
    const auto take = [&](int64_t width) {
        float* begin = at;
        at += width * n_ubatch;
        return begin;
    };
    x = take(c.n_embd);
    normed = take(c.n_embd);
    out = take(c.n_embd);
    ffn_out = take(c.n_embd);
    q = take(c.q_dim());
    attended = take(c.q_dim());
    k = take(c.kv_dim());
    v = take(c.kv_dim());
    gate = take(c.n_ff);
    up = take(c.n_ff);
    cos_sin = take(c.n_rot);
    // Flags take a float's room each.
    masked = reinterpret_cast<bool*>(take(1));
    masking = reinterpret_cast<Masking*>(masked + n_ubatch);
    gathered_masking = masking + n_ubatch;
    if (c.neuron_aware) neurons = ggml::NeuronScratch(n_ubatch, c.n_ff, c.n_embd, threads);
    if (sketched(c)) sketch = ggml::SketchScratch(n_ubatch, c.n_embd);
    if (c.has_predictors) {
        hidden = take(c.predictor_rank);
        score = take(c.n_ff);
    }
    if (!c.n_expert) return;
    gathered_residual = take(c.n_embd);
    router = take(c.n_expert);
    share = take(c.n_expert);
    gathered = take(c.n_embd);
    expert_out = take(c.n_embd);
}

Session::Session(std::shared_ptr<const Model> m, const pi_session_params& asked)
    : model(std::move(m)),
      params(resolve_session_params(model->config, asked)),
      context(std::max(params.n_threads, params.n_threads_batch)) {
    const Config& c = model->config;
    reserved = model->budget->reserve(format("a context of %d positions", params.n_ctx),
                                      total(session_parts(c, params)));
    kv = KvCache(c, params);
    scratch = Scratch(c, params.n_ubatch, context.threads.size());
    results_ = ggml::Memory(uint64_t(params.n_logits) * uint64_t(result_width()) * sizeof(float),
                            "logits");
    rope = RopeTable(*model);
    counts.resize(size_t(c.n_layer));
    row_counts.predicted.resize(size_t(c.n_layer));
    if (params.sparse == PI_SPARSE_PREDICTOR && !c.has_predictors) {
        throw Error(Code::argument, model->file.gguf.path() + ": the file has no predictors");
    }
    record = Recorder(c, params);
    audit = Audit(c, params);
    if (const char* why = nothing_to_skip(*model); why && params.sparse == PI_SPARSE_EXACT) {
        log(2, model->file.gguf.path() + ": exact mode computes every neuron: " + why);
    }
}

void Session::check(const int32_t* token, const int32_t* seq, const bool* keep, int32_t n) const {
    if (n < 1 || n > params.n_batch) {
        throw Error(Code::argument,
                    format("%d rows given, a batch takes 1 to %d", n, params.n_batch));
    }
    std::vector<int64_t> added(size_t(params.n_seq), 0);
    int32_t kept = 0;
    for (int32_t i = 0; i < n; i++) {
        if (token[i] < 0 || token[i] >= model->config.n_vocab) {
            throw Error(Code::argument, format("token %d is outside the vocabulary of %lld",
                                               token[i], (long long)model->config.n_vocab));
        }
        const int32_t sequence = seq ? seq[i] : 0;
        if (sequence < 0 || sequence >= params.n_seq) {
            throw Error(Code::argument,
                        format("sequence %d of a session with %d", sequence, params.n_seq));
        }
        added[size_t(sequence)]++;
        kept += keep ? keep[i] : i == n - 1;
    }
    if (kept > params.n_logits) {
        throw Error(Code::argument,
                    format("logits of %d rows asked for, room is for %d", kept, params.n_logits));
    }
    for (int32_t i = 0; i < params.n_seq; i++) {
        if (kv.length(i) + added[size_t(i)] > params.n_ctx) {
            throw Error(Code::context,
                        format("%lld tokens do not fit a context of %d",
                               (long long)(kv.length(i) + added[size_t(i)]), params.n_ctx));
        }
    }
}

void Session::eval(const int32_t* token, const int32_t* seq, const bool* keep, int32_t n) {
    check(token, seq, keep, n);
    std::vector<int64_t> before(size_t(params.n_seq));
    for (int32_t i = 0; i < params.n_seq; i++) before[size_t(i)] = kv.length(i);
    result_at_.assign(size_t(n), -1);
    // More threads than cores would wait for each other's turns: 4 on 2 cores decoded a quarter
    // slower than 2. Results do not depend on their number.
    const int32_t asked = n == 1 ? params.n_threads : params.n_threads_batch;
    context.threads.limit(std::min(asked, ggml::default_threads()));
    std::vector<int64_t> added(size_t(params.n_seq), 0);  // rows of each sequence in this call
    for (int32_t i = 0; i < n; i++) added[size_t(seq ? seq[i] : 0)]++;
    std::vector<Row> rows;
    int32_t kept = 0;
    record.begin(n);
    try {
        for (int32_t start = 0; start < n; start += params.n_ubatch) {
            const int32_t end = std::min(start + params.n_ubatch, n);
            rows.clear();
            for (int32_t i = start; i < end; i++) {
                const int32_t sequence = seq ? seq[i] : 0;
                Row row{token[i], sequence, kv.length(sequence), masks(added[size_t(sequence)]),
                        nullptr};
                kv.set_length(sequence, row.pos + 1);
                if (keep ? keep[i] : i == n - 1) {
                    row.result = results_.as<float>() + int64_t(kept) * result_width();
                    result_at_[size_t(i)] = kept++;
                }
                rows.push_back(row);
            }
            forward(*this, rows.data(), int64_t(rows.size()));
            record.advance(int64_t(rows.size()));
            row_counts.add(*this, rows.data(), int64_t(rows.size()));
        }
    } catch (...) {
        record.fail();
        for (int32_t i = 0; i < params.n_seq; i++) kv.set_length(i, before[size_t(i)]);
        result_at_.clear();
        throw;
    }
}

bool Session::masks(int64_t n) const {
    if (!model->config.has_predictors) return false;
    return params.sparse == PI_SPARSE_PREDICTOR || (params.sparse == PI_SPARSE_AUTO && n == 1);
}

const float* Session::result(int32_t row) const {
    if (row < 0 || size_t(row) >= result_at_.size() || result_at_[size_t(row)] < 0) {
        throw Error(Code::argument, format("the result of row %d was not kept", row));
    }
    return results_.as<float>() + int64_t(result_at_[size_t(row)]) * result_width();
}

void Session::truncate(int32_t seq, int64_t n) {
    if (seq < 0 || seq >= params.n_seq || n < 0 || n > kv.length(seq)) {
        throw Error(Code::argument,
                    format("sequence %d cannot be cut to %lld positions", seq, (long long)n));
    }
    kv.set_length(seq, n);
}

void Session::log(int32_t level, const std::string& message) const {
    if (params.log) params.log(level, message.c_str(), params.log_data);
}

void Session::check_stop() const {
    if (params.should_stop && params.should_stop(params.should_stop_data)) {
        throw Error(Code::cancelled, "evaluation was cancelled");
    }
}

}  // namespace powerinfer
