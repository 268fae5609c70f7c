#include "session/session.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "forward/forward.h"
#include "forward/nextn.h"
#include "forward/parts/ffn.h"
#include "forward/parts/recurrent.h"
#include "ggml/math.h"
#include "ggml/status.h"

namespace powerinfer {

using ggml::Code;
using ggml::Error;
using ggml::format;

namespace {

// The reason why exact mode skips no neuron of this model; null if it skips some.
const char* nothing_to_skip(const Model& m) {
    if (!m.config.neuron_aware) return "the file has no neuron rows (ffn_down_t)";
    if (m.skips_neurons()) return nullptr;
    return "its activation is never exactly zero and there is no threshold "
           "(powerinfer.ffn.threshold)";
}

bool is_generated(const pi_batch& b, int32_t i) {
    return b.generated && b.generated[i];
}

bool is_kept(const pi_batch& b, int32_t i) {
    return b.keep ? b.keep[i] : i == b.n - 1;
}

int32_t sequence_of(const pi_batch& b, int32_t i) {
    return b.seq ? b.seq[i] : 0;
}

// Of rows that a token needs several of. Past the system's cache where memory is for other weights
// that stay on the disk; else the system keeps what is read often. Null: the table is in memory.
std::unique_ptr<TableRows> open_rows(const Model& m, const StoredTable& stored) {
    if (!stored.file) return nullptr;
    std::unique_ptr<ggml::Reader> reader;
    if (stored.file->is_named()) {
        const ggml::ReaderOptions how = TableRows::options(m.storage.has_value());
        reader = ggml::open_reader(stored.file->path(), how);
    }
    return std::make_unique<TableRows>(*stored.file, std::move(reader), stored.offset,
                                       stored.table);
}

// Of one row a token.
std::unique_ptr<TableRows> single_rows(const StoredTable& stored) {
    if (!stored.file) return nullptr;
    return std::make_unique<TableRows>(*stored.file, nullptr, stored.offset, stored.table);
}

}  // namespace

Session::Session(std::shared_ptr<const Model> m, const pi_session_params& asked)
    : model(std::move(m)),
      params(session_params_for(*model, asked)),
      context(std::max(params.n_threads, params.n_threads_batch)),
      predicted_(is_predicted(*model, params.sparse)) {
    const Config& c = model->config;
    if (c.encoder && !params.embedding) {
        throw Error(Code::unsupported, model->file.gguf.path() +
                                           ": this model gives vectors of texts, and no tokens "
                                           "(embedding of pi_session_params)");
    }
    if (params.sparse == PI_SPARSE_PREDICTOR && !c.has_predictors) {
        throw Error(Code::argument, model->file.gguf.path() + ": the file has no predictors");
    }
    const int64_t n_device = model->device_layers();
    const std::vector<PlanPart> parts =
        session_parts(*model, params, n_device, model->stores_neurons());
    const std::string what = format("a context of %d positions", params.n_ctx);
    reserved_ = model->budget->reserve(what, total(parts, Tier::ram));
    if (n_device) {
        if (params.record) throw Error(Code::unsupported, "recording needs device cpu");
        device_reserved_ = model->device->budget->reserve(what, total(parts, Tier::gpu));
    }
    if (params.record == PI_RECORD_NEEDS && model->storage) {
        throw Error(Code::unsupported,
                    "recording which neurons tokens need takes a model whose neurons are all in "
                    "RAM");
    }
    const auto bytes_of = [&](Part of) {
        uint64_t bytes = 0;
        for (const PlanPart& p : parts) bytes += p.tier == Tier::ram && p.part == of ? p.bytes : 0;
        return bytes;
    };
    for (const PlanPart& part : parts) {
        // See DeviceForward; and pages behind windows are with the others.
        if (part.tier != Tier::ram || part.part == Part::exchange || part.part == Part::kv_old ||
            part.part == Part::staging)
            continue;
        const uint64_t beside = part.part == Part::kv ? bytes_of(Part::kv_old) : 0;
        memory_.emplace_back(part.bytes + beside, name(part.part));
        ggml::Carver carver(memory_.back());
        switch (part.part) {
            case Part::kv:
                sequences_ = Sequences(carver, model->layers, params,
                                       int64_t(model->layers.size()) - n_device);
                break;
            case Part::states:
                sequences_.attach(
                    States(carver, model->layers, params, c.n_layer - n_device, c.n_layer));
                break;
            case Part::scratch:
                work_ = Workspace(carver, *model, params, context.threads.size(),
                                  model->stores_neurons());
                break;
            case Part::results:
                carver.take(results_, {kept_rows(params), kept_width(c, params)});
                if (params.pooling) pooled_ = PooledTexts(carver, *model, params);
                break;
            case Part::record:
                record = Recorder(carver, *model, params);
                break;
            default:
                break;  // parts of the model
        }
    }
    ropes_ = rope_tables(*model, params);
    if (model->score_bias) model->score_bias.fill(params.n_ctx, work_.heads.score_bias);
    token_rows_ = single_rows(model->token_embd_stored);
    own_rows_ = open_rows(*model, model->own_rows_stored);
    if (n_device) {
        device_ = std::make_unique<DeviceForward>(*model, params, ropes_);
        sequences_.attach(device_.get());
        // Those of generated tokens, and not all of a prompt's: the system has to find the pages.
        constexpr uint64_t kPinned = 32 << 20;
        const uint64_t bytes = uint64_t(kept_rows(params) * kept_width(c, params)) * sizeof(float);
        const std::lock_guard<ggml::DeviceCard> lock(model->device->card);
        model->device->device->enter();
        pinned_ = {*model->device->device, results_, std::min(bytes, kPinned)};
    }
    counts = Counts(model->ffns.size());
    audit = Audit(model->ffns.size());
    const int32_t threads = std::max(asked.n_threads, asked.n_threads_batch);
    if (threads > context.threads.size()) {
        log(2, format("%d threads were asked for, %d are used: this process may use no more "
                      "processors at a time",
                      threads, context.threads.size()));
    }
    if (params.n_ctx > c.n_ctx && c.n_ctx > 0) {
        log(2, format("%s: a context of %d positions goes beyond the %lld of its training; texts "
                      "get worse there",
                      model->file.gguf.path().c_str(), params.n_ctx, (long long)c.n_ctx));
    }
    if (const char* why = nothing_to_skip(*model); why && params.sparse == PI_SPARSE_EXACT) {
        log(2, model->file.gguf.path() + ": exact mode computes every neuron: " + why);
    }
}

std::vector<int64_t> Session::check(const pi_batch& b) {
    if (b.n < 1 || b.n > params.n_batch) {
        throw Error(Code::argument,
                    format("%d rows given, a batch takes 1 to %d", b.n, params.n_batch));
    }
    int32_t kept = 0;
    std::vector<int64_t> added(size_t(params.n_seq), 0);
    for (int32_t i = 0; i < b.n; i++) {
        require_token(b.token[i]);
        require_type(b.type ? b.type[i] : 0);
        require_sequence(sequence_of(b, i));
        added[size_t(sequence_of(b, i))]++;
        kept += is_kept(b, i);
    }
    if (!params.pooling && kept > params.n_logits) {
        throw Error(Code::argument, format("results of %d rows are to be kept, n_logits is %d",
                                           kept, params.n_logits));
    }
    for (int32_t i = 0; i < params.n_seq; i++) {
        if (added[size_t(i)] && !sequences_.find(i, sequences_.length(i))) {
            throw Error(Code::argument,
                        format("the state of sequence %d, or a window, is not known at its end: it "
                               "has to be cut (pi_sequence_match tells where), or loaded up to a "
                               "position at which it was saved with them",
                               i));
        }
        require_room(sequences_.length(i) + added[size_t(i)]);
    }
    sequences_.require_pages("these rows", sequences_.pages_for(added.data()), 0);
    sequences_.wake(added.data());
    for (int32_t i = 0; i < params.n_seq; i++) {
        if (added[size_t(i)]) sequences_.restore_end(i);
    }
    return added;
}

int32_t Session::end_of_pass(const pi_batch& b, int32_t begin, int32_t end) const {
    // Without states a checkpoint in the midst of a pass is kept behind it.
    if (!b.checkpoint || !sequences_.keeps_checkpoints() || !sequences_.states()) return end;
    std::vector<char> has_rows(size_t(params.n_seq), 0);
    for (int32_t i = begin; i < end; i++) {
        char& here = has_rows[size_t(sequence_of(b, i))];
        if (here && b.checkpoint[i]) return i;
        here = 1;
    }
    return end;
}

int32_t Session::rows_at_once(int32_t n, uint64_t& bytes) const {
    bytes = 0;
    // The pools of windows have room for passes of n_ubatch rows.
    if (!model->store || device_ || sequences_.kv().forgets()) return params.n_ubatch;
    for (int32_t parts = 1; n / parts > params.n_ubatch; parts++) {
        pi_session_params wide = params;
        wide.n_ubatch = (n + parts - 1) / parts;
        bytes = scratch_bytes(*model, wide, true);
        if (bytes <= model->store->shape().lendable()) return wide.n_ubatch;
    }
    bytes = 0;
    return params.n_ubatch;
}

void Session::fill(Batch& batch, const pi_batch& b, int32_t begin, int32_t end) {
    const int64_t width = kept_width(model->config, params);
    batch.n = end - begin;
    for (int32_t i = begin; i < end; i++) {
        const int32_t t = i - begin, seq = sequence_of(b, i);
        if (b.checkpoint && b.checkpoint[i] && sequences_.states()) {
            sequences_.keep_checkpoint(seq, sequences_.length(seq));
        }
        batch.token[t] = b.token[i];
        batch.seq[t] = seq;
        batch.generated[t] = is_generated(b, i);
        batch.masked[t] = masks(batch.generated[t]);
        batch.uploads_cold[t] = uploads_cold(batch.generated[t]);
        batch.position[t] = int32_t(sequences_.length(seq));
        sequences_.append(seq, b.token[i], batch.generated[t],
                          [&](int64_t kind, ggml::KvSlot slot) {
                              batch.slots_of(kind)[t] = slot;
                              batch.pages_of(kind)[t] = sequences_.pages(kind, seq);
                          });
        batch.type[t] = b.type ? b.type[i] : 0;
        batch.result[t] = params.pooling ? results_ + t * width : nullptr;
        if (params.pooling || !is_kept(b, i)) continue;
        batch.result[t] = results_ + n_kept_ * width;
        result_at_[size_t(i)] = n_kept_++;
    }
    for (int64_t t = 0; t < batch.n; t++) batch.end[t] = int32_t(sequences_.length(batch.seq[t]));
}

void Session::eval(const pi_batch& b) {
    const std::vector<int64_t> added = check(b);
    result_at_.assign(size_t(b.n), -1);
    n_kept_ = 0;
    context.threads.limit(b.n == 1 ? params.n_threads : params.n_threads_batch);
    record.begin(b.n);
    NeuronSource source(model->store.get(), model->experts.get(), counts.stored);
    uint64_t lent = 0;
    const int32_t rows = rows_at_once(b.n, lent);
    Workspace wide;
    if (lent) {
        pi_session_params how = params;
        how.n_ubatch = rows;
        ggml::Carver carver = source.lend(lent);
        wide = Workspace(carver, *model, how, context.threads.size(), true);
    }
    Workspace& work = lent ? wide : work_;
    sequences_.begin(added.data());
    if (params.pooling) pooled_.begin(added);
    try {
        for (int32_t begin = 0, end; begin < b.n; begin = end) {
            end = end_of_pass(b, begin, std::min(begin + rows, b.n));
            sequences_.begin_pass();
            fill(work.batch, b, begin, end);
            if (sequences_.states()) {
                work.state.by_sequence.group(work.batch.seq, work.batch.n);
                sequences_.assign_states(work.state.by_sequence);
            }
            source.begin(work.batch.n);
            forward({*model, params, context, sequences_.kv(), sequences_.states(), ropes_, work,
                     record, audit, counts, device_.get(), source, adapters_, rows_on_disk()});
            if (params.pooling) pooled_.add(work.batch);
            record.advance(work.batch.n);
            counts.add(*model, work.batch, sequences_.kv());
            for (int32_t i = begin; b.checkpoint && !sequences_.states() && i < end; i++) {
                if (!b.checkpoint[i]) continue;
                sequences_.keep_checkpoint(sequence_of(b, i), work.batch.position[i - begin]);
            }
        }
    } catch (...) {
        record.fail();
        sequences_.rollback();
        result_at_.clear();
        if (params.pooling) pooled_.begin(std::vector<int64_t>(size_t(params.n_seq), 0));
        source.reset();  // last, since it waits for the disk and may throw
        throw;
    }
    sequences_.commit();
    if (params.pooling) pooled_.end(context, work.input);
    for (int32_t i = 0; model->config.encoder && i < params.n_seq; i++) sequences_.truncate(i, 0);
    if (const std::string warning = audit.warning(*model); !warning.empty()) log(2, warning);
}

Guess Session::guess(int32_t seq, int32_t token) {
    const int64_t n = length(seq), n_vocab = model->config.n_vocab;
    if (!model->guesses()) {
        throw Error(Code::unsupported, model->file.gguf.path() +
                                           ": the model was opened without a layer that guesses "
                                           "tokens (nextn)");
    }
    require_token(token);
    const std::optional<Sequences::Known> state = sequences_.find(seq, n);
    if (n == 0 || !state || state->rows) {
        throw Error(Code::argument,
                    format("a guess needs a sequence whose last row is known, and sequence %d has "
                           "%lld positions",
                           seq, (long long)n));
    }
    std::vector<int64_t> added(size_t(params.n_seq), 0);
    added[size_t(seq)] = 1;
    require_room(n + 1);
    sequences_.require_pages("a guess", sequences_.pages_for(added.data()), 0);
    sequences_.wake(added.data());
    sequences_.restore_end(seq);
    context.threads.limit(params.n_threads);
    const States& states = sequences_.states();
    const float* const row =
        states.slot(state->slot) + states.layout().state[size_t(model->config.n_layer)];
    const int32_t where[] = {seq};
    const bool generated[] = {true}, keep[] = {false};
    fill(work_.batch, {sizeof(pi_batch), 1, &token, where, keep, generated, nullptr, nullptr}, 0,
         1);
    NeuronSource source(nullptr, nullptr, counts.stored);
    Recorder nothing;
    try {
        powerinfer::guess({*model, params, context, sequences_.kv(), states, ropes_, work_, nothing,
                           audit, counts, nullptr, source, adapters_, rows_on_disk()},
                          row, work_.guess.logits);
    } catch (...) {
        sequences_.truncate(seq, n);
        throw;
    }
    sequences_.truncate(seq, n);
    counts.kept++;
    const float* const logits = work_.guess.logits;
    const auto best = int32_t(std::max_element(logits, logits + n_vocab) - logits);
    // The sums of parts do not depend on the threads.
    constexpr int64_t kTogether = 4096;
    std::vector<double> sums(size_t((n_vocab + kTogether - 1) / kTogether), 0.0);
    context.threads.run(int64_t(sums.size()), 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t part = begin; part < end; part++) {
            const int64_t last = std::min(n_vocab, (part + 1) * kTogether);
            for (int64_t i = part * kTogether; i < last; i++) {
                sums[size_t(part)] += double(ggml::exp_f32(logits[i] - logits[best]));
            }
        }
    });
    double sum = 0;
    for (double part : sums) sum += part;
    return {best, sum >= 1 ? float(1 / sum) : 0, logits};
}

void Session::set_adapters(std::vector<ScaledAdapter> adapters) {
    for (const ScaledAdapter& a : adapters) {
        if (a.adapter->model != model) {
            throw Error(Code::argument, a.adapter->path() +
                                            ": the adapter was opened for another "
                                            "model than the session's");
        }
        if (!std::isfinite(a.scale)) {
            throw Error(Code::argument, a.adapter->path() + ": the adapter's scale is not finite");
        }
    }
    adapters.erase(std::remove_if(adapters.begin(), adapters.end(),
                                  [](const ScaledAdapter& a) { return a.scale == 0; }),
                   adapters.end());
    if (!adapters.empty() && model->device) {
        throw Error(Code::unsupported, "adapters need device cpu: a device does not apply them");
    }
    if (!adapters.empty() && model->storage) {
        throw Error(Code::unsupported,
                    "adapters need a model whose neurons are all in RAM: this one runs from "
                    "storage");
    }
    Adapters next(*model, std::move(adapters), params.n_ubatch);
    if (next.id() == adapters_.id()) return;
    const bool unpredicted = predicted_ && next.in_layers() && !params.lora_allow_predictor;
    if (unpredicted && params.sparse == PI_SPARSE_PREDICTOR) {
        throw Error(Code::argument,
                    "sparse predictor: the predictors were made for the model without adapters; "
                    "use sparse exact, or set lora_allow_predictor");
    }
    adapters_ = std::move(next);
    sequences_.clear();
    result_at_.clear();
    if (unpredicted && !told_of_exact_) {
        told_of_exact_ = true;
        log(2, model->file.gguf.path() +
                   ": predictors are not used with adapters, because they were made for the model "
                   "without them: generated tokens are computed as in exact mode");
    }
}

bool Session::masks(bool generated) const {
    const bool misled = adapters_.in_layers() && !params.lora_allow_predictor;
    return predicted_ && !misled && (generated || params.sparse == PI_SPARSE_PREDICTOR);
}

// By the kind of a row, not by how many come together: then a row has the same bits in every call.
bool Session::uploads_cold(bool generated) const {
    return device_ && model->device->prompt_upload && !generated && !masks(generated);
}

const float* Session::result(int32_t row) const {
    if (row < 0 || size_t(row) >= result_at_.size() || result_at_[size_t(row)] < 0) {
        throw Error(Code::argument, format("the result of row %d was not kept", row));
    }
    return results_ + int64_t(result_at_[size_t(row)]) * kept_width(model->config, params);
}

const float* Session::pooled(int32_t seq) const {
    require_sequence(seq);
    const float* const found = params.pooling ? pooled_.of(seq) : nullptr;
    if (!found) {
        throw Error(Code::argument, format("the last call made no vector of sequence %d", seq));
    }
    return found;
}

void Session::sample(Sampler* const* samplers, const int32_t* rows, int32_t n, int32_t* tokens) {
    const int32_t n_vocab = int32_t(model->config.n_vocab);
    std::vector<Sampler*> once(samplers, samplers + n);
    std::sort(once.begin(), once.end());
    if (std::adjacent_find(once.begin(), once.end()) != once.end()) {
        throw Error(Code::argument, "a sampler is given for two rows");
    }
    for (int32_t i = 0; i < n; i++) {
        try {
            Sampler::require_choice(result(rows[i]), n_vocab);
        } catch (const Error& e) {
            throw Error(e.code(), format("row %d: %s", rows[i], e.what()));
        }
    }
    context.threads.limit(n == 1 ? params.n_threads : params.n_threads_batch);
    std::vector<int32_t> chosen(size_t(n), 0);  // the caller's tokens change only on success
    context.threads.run(n, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; i++) {
            const auto start = std::chrono::steady_clock::now();
            chosen[size_t(i)] = samplers[i]->sample(result(rows[i]), n_vocab);
            const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
            samplers[i]->seconds += took.count();
        }
    });
    std::copy(chosen.begin(), chosen.end(), tokens);
}

void Session::require_token(int32_t token) const {
    if (token >= 0 && token < model->config.n_vocab) return;
    throw Error(Code::argument, format("token %d is outside the vocabulary of %lld", token,
                                       (long long)model->config.n_vocab));
}

void Session::require_type(int32_t type) const {
    const int64_t n = std::max<int64_t>(model->token_types.rows, 1);
    if (type >= 0 && type < n) return;
    throw Error(Code::argument,
                format("token type %d is outside the model's %lld", type, (long long)n));
}

void Session::require_room(int64_t n) const {
    if (n <= params.n_ctx) return;
    throw Error(Code::context,
                format("%lld tokens do not fit a context of %d", (long long)n, params.n_ctx));
}

void Session::require_sequence(int32_t seq) const {
    if (seq >= 0 && seq < params.n_seq) return;
    throw Error(Code::argument,
                format("there is no sequence %d, the session has %d", seq, params.n_seq));
}

int64_t Session::length(int32_t seq) const {
    require_sequence(seq);
    return sequences_.length(seq);
}

void Session::rest(int32_t seq, bool rests) {
    require_sequence(seq);
    sequences_.rest(seq, rests);
}

void Session::truncate(int32_t seq, int64_t n) {
    require_sequence(seq);
    if (n < 0 || n > sequences_.length(seq)) {
        throw Error(Code::argument,
                    format("sequence %d cannot be cut to %lld positions", seq, (long long)n));
    }
    restate(seq, seq, n);
}

void Session::copy(int32_t from, int32_t to, int64_t n) {
    require_sequence(from);
    require_sequence(to);
    if (n < 0 || n > sequences_.length(from)) {
        throw Error(Code::argument,
                    format("sequence %d does not have %lld positions to copy", from, (long long)n));
    }
    restate(from, to, n);
}

void Session::restate(int32_t from, int32_t to, int64_t n) {
    const std::optional<Sequences::Known> state = sequences_.find(from, n);
    if (!state) {
        const auto known = (long long)sequences_.continuable(from, n);
        const std::string why =
            sequences_.states()
                ? format("fold all positions into a state, which is known at position %lld", known)
                : format(
                      "see a window of positions, and that of this one was given up: it is there "
                      "at position %lld, and from %lld on",
                      known, (long long)sequences_.first_cut(from));
        throw Error(Code::unsupported,
                    format("sequence %d cannot be continued from position %lld: the model's layers "
                           "%s",
                           from, (long long)n, why.c_str()));
    }
    if (from == to && n == sequences_.length(to)) return;
    sequences_.copy(from, to, n, *state);
    if (!state->rows) return;
    context.threads.limit(params.n_threads_batch);
    const States& states = sequences_.states();
    const Sequences::Fold fold = sequences_.fold(to);
    try {
        replay(context, *model, states.layout(), work_, params.n_ubatch, states.entered(from, 0),
               state->rows, fold.from < 0 ? nullptr : states.slot(fold.from), states.slot(fold.to));
        if (device_) device_->replay(from, state->rows, fold.from, fold.to);
    } catch (...) {  // a device that failed
        sequences_.forget_state(to);
        throw;
    }
}

int64_t Session::match(int32_t seq, const int32_t* token, const bool* generated, int64_t n) const {
    require_sequence(seq);
    n = std::min(n, sequences_.length(seq));
    for (int64_t i = 0; i < n; i++) {
        const bool was = sequences_.generated(seq, i), now = generated && generated[i];
        const bool same = sequences_.token(seq, i) == token[i] && masks(was) == masks(now) &&
                          uploads_cold(was) == uploads_cold(now);
        if (!same) n = i;
    }
    return sequences_.continuable(seq, n);
}

uint64_t Session::numerics_key(bool generated) const {
    const bool smooth = !relu_family(model->config.activation) && model->skips_neurons();
    uint64_t key = smooth && params.sparse == PI_SPARSE_EXACT;  // CATS changes results
    key ^= adapters_.id();
    if (!masks(generated)) return key;
    key ^= uint64_t(params.sparse) << 1 | 1 << 3;  // `auto` does not mask `unpredicted`
    if (std::isnan(params.sparse_threshold)) return key;
    uint32_t threshold;
    std::memcpy(&threshold, &params.sparse_threshold, sizeof(threshold));
    return key ^ (1 << 4 | uint64_t(threshold) << 32);
}

void Session::log(int32_t level, const std::string& message) const {
    if (params.log) params.log(level, message.c_str(), params.log_data);
}

}  // namespace powerinfer
