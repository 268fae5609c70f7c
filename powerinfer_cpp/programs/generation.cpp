#include "generation.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>

#include "console/console.h"

namespace {

// The prompt without the texts that became control tokens.
std::string visible(const pi_model* model, const std::vector<int32_t>& ids, std::string prompt) {
    size_t at = 0;
    for (const int32_t id : ids) {
        const std::string_view text = token_text(model, id, true);
        if (text.empty() || !token_text(model, id, false).empty()) continue;
        const size_t found = prompt.find(text, at);
        if (found == std::string::npos) continue;
        prompt.erase(found, text.size());
        at = found;
    }
    return prompt;
}

}  // namespace

Generation::Generation(Options& options) : options_(options), stops_(options.stops) {
    // What of the model fits a device, or RAM, depends on the session.
    const pi_session_params planned = session_params(options, trained_positions(options));
    const ModelParams how = model_params(options, planned);
    pi_model* model = nullptr;
    require(pi_model_open(options.model.c_str(), &how.params, &model));
    model_.reset(model);
    for (int32_t i = 0; i < pi_model_n_layer(model); i++) {
        timing_.n_ff.push_back(pi_model_layer_n_ff(model, i));
    }
    if (!options.conversation) set_prompt();

    const pi_session_params wanted = session_params(options, pi_model_n_ctx(model));
    if (tokens_.size() > size_t(wanted.n_ctx))
        throw Failure("the prompt has " + std::to_string(tokens_.size()) + " tokens, the context " +
                      std::to_string(wanted.n_ctx) + " positions (-c)");
    pi_session* session = nullptr;
    require(pi_session_new(model, &wanted, &session));
    session_.reset(session);
    set_adapters();
    sampler_ = new_sampler(options, model);
    const int32_t n_vocab = pi_model_n_vocab(model);
    bias_ = options.logit_bias;
    for (const auto& [token, bias] : bias_)
        if (token >= n_vocab)
            throw Failure("--logit-bias: there is no token " + std::to_string(token) +
                          ", the vocabulary has " + std::to_string(n_vocab));
    if (options.ignore_eos)
        for (int32_t id = 0; id < n_vocab; id++)
            if (pi_token_ends(model, id))
                bias_.emplace_back(id, -std::numeric_limits<float>::infinity());
    timing_.load = ms_since(timing_.start);
    print_settings(wanted);
}

void Generation::set_prompt() {
    const pi_model* model = model_.get();
    tokens_ = tokenize(model, options_.prompt, true);
    shown_ = visible(model, tokens_, options_.prompt);
    const int32_t bos = pi_token_bos(model);
    if (tokens_.empty() && bos < 0)
        throw Failure("the model has no BOS token to begin with: give a prompt with -p");
    if (bos >= 0 && (tokens_.empty() || pi_token_add_bos(model)))
        tokens_.insert(tokens_.begin(), bos);
}

void Generation::set_adapters() {
    std::vector<Adapter> adapters;
    std::vector<const pi_adapter*> used;
    std::vector<float> scales;
    for (const auto& [file, scale] : options_.adapters) {
        pi_adapter* adapter = nullptr;
        require(pi_adapter_open(model_.get(), file.c_str(), &adapter));
        adapters.emplace_back(adapter);
        used.push_back(adapter);
        scales.push_back(scale);
    }
    require(
        pi_session_set_adapters(session_.get(), used.data(), scales.data(), int32_t(used.size())));
}

void Generation::read_prompt() {
    if (options_.display_prompt) {
        paint(Colour::prompt);
        put(shown_);
        paint(Colour::plain);
    }
    read(tokens_, 0);
}

void Generation::print_settings(const pi_session_params& session) const {
    const pi_model* m = model_.get();
    const pi_sampler_params& s = options_.sampler;
    const int32_t one = session.n_threads, batch = session.n_threads_batch;
    say("model: %s, %s, %.2f M parameters, %.1f MiB\n", one_line(pi_model_architecture(m)).c_str(),
        one_line(pi_model_activation(m)).c_str(), double(pi_model_n_params(m)) * 1e-6,
        double(pi_model_n_bytes(m)) / (1 << 20));
    say("system: threads = %d, threads for the prompt = %d, %s, context = %d\n",
        int(pi_threads_used(one)), int(pi_threads_used(batch > 0 ? batch : one)), isa().c_str(),
        int(pi_session_n_ctx(session_.get())));
    say("sampler: seed = %" PRIu64
        ", repeat-last-n = %d, repeat-penalty = %g, frequency-penalty = "
        "%g, presence-penalty = %g, top-k = %d, typical = %g, top-p = %g, min-p = %g, "
        "temp = %g\n",
        s.seed, int(s.repeat_last_n), double(s.repeat_penalty), double(s.frequency_penalty),
        double(s.presence_penalty), int(s.top_k), double(s.typical_p), double(s.top_p),
        double(s.min_p), double(s.temperature));
}

// Evaluates tokens in as few calls as possible. generated: for each one; null: they are a prompt.
// logits_ then points to the logits of the last one.
void Generation::evaluate(const int32_t* tokens, const bool* generated, size_t n) {
    const size_t most = size_t(pi_session_n_batch(session_.get()));
    // Ctrl-C cuts the sequence to where the first call begins, also from within a second one or,
    // where layers have a window, a second pass.
    std::unique_ptr<bool[]> checkpoint;
    if (n > size_t(std::min(options_.n_ubatch, options_.n_batch)) &&
        pi_sequence_length(session_.get(), 0) > 0) {
        checkpoint.reset(new bool[std::min(most, n)]());
        checkpoint[0] = true;
    }
    for (size_t begin = 0; begin < n; begin += most) {
        pi_batch batch = {};
        batch.struct_size = sizeof batch;
        batch.n = int32_t(std::min(most, n - begin));
        batch.token = tokens + begin;
        if (generated) batch.generated = generated + begin;
        if (begin == 0) batch.checkpoint = checkpoint.get();
        require(pi_eval_batch(session_.get(), &batch));
        require(pi_logits(session_.get(), batch.n - 1, &logits_));
    }
}

// Loads the prompt cache, and keeps what it has in common with these tokens before the last one,
// which is computed again since the cache has no logits: how many.
size_t Generation::take_cached(const std::vector<int32_t>& tokens, const bool* generated) {
    const std::string& file = options_.prompt_cache;
    std::error_code error;
    if (!std::filesystem::exists(std::filesystem::u8path(file), error)) return 0;
    require(pi_sequence_load_file(session_.get(), 0, file.c_str()));
    int32_t same = 0;
    require(pi_sequence_match(session_.get(), 0, tokens.data(), generated,
                              int32_t(tokens.size()) - 1, &same));
    require(pi_sequence_truncate(session_.get(), 0, same));
    return size_t(same);
}

void Generation::save_cache() const {
    require(pi_sequence_save_file(session_.get(), 0, options_.prompt_cache.c_str()));
}

void Generation::read(const std::vector<int32_t>& tokens, size_t n_generated) {
    const WorkSpan span(timing_.read, session_.get(), model_.get());
    const Clock::time_point start = Clock::now();
    const std::unique_ptr<bool[]> generated(new bool[tokens.size()]());
    std::fill_n(generated.get(), n_generated, true);
    const bool cached = !begun_ && !options_.prompt_cache.empty() && !tokens.empty();
    const size_t found = cached ? take_cached(tokens, generated.get()) : 0;
    size_t done = found;
    if (cached && found + 1 < tokens.size() && !options_.prompt_cache_read_only) {
        // A sequence whose layers have a state is continued where it was saved, or not at all.
        done = tokens.size() - 1;
        evaluate(tokens.data() + found, generated.get() + found, done - found);
        save_cache();
    }
    evaluate(tokens.data() + done, generated.get() + done, tokens.size() - done);
    begun_ = true;
    pending_ = -1;
    timing_.prompt += ms_since(start);
    timing_.n_prompt += int64_t(tokens.size() - found);
    for (size_t i = n_generated; i < tokens.size(); i++)
        require(pi_sampler_accept(sampler_.get(), tokens[i]));
    if (options_.verbosity < 4) return;
    std::string ids;
    for (const int32_t token : tokens) ids += " " + std::to_string(token);
    print_log(4, ("tokens read:" + ids).c_str(), &options_.verbosity);
}

void Generation::end() {
    const bool writes = !options_.prompt_cache.empty() && !options_.prompt_cache_read_only;
    if (writes && options_.prompt_cache_all && begun_) save_cache();
}

int32_t Generation::choose() {
    const Clock::time_point start = Clock::now();
    const int32_t n_vocab = pi_model_n_vocab(model_.get());
    const float* logits = logits_;
    if (!bias_.empty()) {
        biased_.assign(logits, logits + n_vocab);
        for (const auto& [id, bias] : bias_) biased_[size_t(id)] += bias;
        logits = biased_.data();
    }
    int32_t token;
    require(pi_sample(sampler_.get(), logits, n_vocab, &token));
    require(pi_sampler_accept(sampler_.get(), token));
    timing_.sampling += ms_since(start);
    if (timing_.n_sampled++ == 0) timing_.first_token = timing_.prompt + timing_.sampling;
    return token;
}

// Prints generated text. True if it reaches a text that ends the generation.
bool Generation::show(std::string_view text) {
    if (stops_.empty()) {
        put(text);
        return false;
    }
    const size_t old = tail_.size();
    tail_ += text;
    size_t end = tail_.npos, longest = 0;
    for (const std::string& stop : stops_) {
        longest = std::max(longest, stop.size());
        // A match that ends in the old part would have been found before.
        const size_t at = tail_.find(stop, old + 1 > stop.size() ? old + 1 - stop.size() : 0);
        if (at != tail_.npos) end = std::min(end, at + stop.size());
    }
    if (end != tail_.npos) text = text.substr(0, end - old);
    if (tail_.size() >= longest) tail_.erase(0, tail_.size() - (longest - 1));
    put(text);
    return end != tail_.npos;
}

bool Generation::generate() {
    const int64_t most =
        options_.n_predict < 0 ? std::numeric_limits<int64_t>::max() : int64_t(options_.n_predict);
    tail_.clear();
    const WorkSpan span(timing_.generated, session_.get(), model_.get());
    for (int64_t i = 0; i < most; i++) {
        if (interrupted) throw Interrupted{};
        const int32_t token = choose();
        if (pi_token_ends(model_.get(), token)) return true;
        pending_ = token;
        if (show(token_text(model_.get(), token, false))) return false;
        if (i + 1 == most) return false;  // the logits after the last token are not needed
        full_ = pi_sequence_length(session_.get(), 0) >= pi_session_n_ctx(session_.get());
        if (full_) return false;
        const Clock::time_point start = Clock::now();
        const bool generated = true;
        evaluate(&token, &generated, 1);
        pending_ = -1;
        timing_.token_ms.push_back(ms_since(start));
        timing_.eval += timing_.token_ms.back();
        timing_.n_eval++;
    }
    return false;
}
