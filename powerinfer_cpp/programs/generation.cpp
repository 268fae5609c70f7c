#include "generation.h"

#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <limits>

#include "console.h"
#include "stats.h"

namespace {

constexpr int32_t default_most_positions = 4096;

double ms_since(Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

std::vector<int32_t> tokenize(const pi_model* model, const std::string& text, bool special) {
    std::vector<int32_t> ids(text.size() + 2);
    size_t n = 0;
    pi_status status =
        pi_tokenize(model, text.data(), text.size(), special, ids.data(), ids.size(), &n);
    if (status == PI_ERROR_ARGUMENT && n > ids.size()) {
        ids.resize(n);
        status = pi_tokenize(model, text.data(), text.size(), special, ids.data(), ids.size(), &n);
    }
    require(status);
    ids.resize(n);
    return ids;
}

std::string_view token_text(const pi_model* model, int32_t token, bool special) {
    const char* text;
    size_t length;
    require(pi_token_text(model, token, special, &text, &length));
    return {text, length};
}

// The prompt as it was given, less the texts that became control tokens.
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

// The format of the model's conversations; throws Failure where it is not known.
ChatFormat read_chat_format(const std::string& path) {
    pi_gguf* opened = nullptr;
    require(pi_gguf_open(path.c_str(), &opened));
    const std::unique_ptr<pi_gguf, Release<pi_gguf_free>> gguf(opened);
    for (int64_t i = 0; i < pi_gguf_n_values(opened); i++) {
        const char* key;
        size_t length;
        pi_value_type type, element_type;
        uint64_t count;
        require(pi_gguf_value(opened, i, &key, &length, &type, &element_type, &count));
        if (std::string_view(key, length) != "tokenizer.chat_template" || type != PI_STRING)
            continue;
        const char* source;
        require(pi_gguf_string(opened, i, 0, &source, &length));
        const std::optional<ChatFormat> format = recognise_chat({source, length});
        if (format) return *format;
        throw Failure(path + ": its chat template is not one that -cnv knows (" + known_chats +
                      "); `powerinfer chat` runs any");
    }
    throw Failure(path +
                  ": there is no chat template in it (tokenizer.chat_template), which -cnv needs");
}

}  // namespace

// The words are those of llama.cpp, which scripts look for.
void Timing::print() const {
    const auto per = [](double a, double b) { return b > 0 ? a / b : 0; };
    std::fprintf(stderr, "       load time = %10.2f ms\n", load);
    std::fprintf(stderr,
                 "prompt eval time = %10.2f ms / %5" PRId64
                 " tokens (%8.2f ms per token, %9.2f tokens per second)\n",
                 prompt, n_prompt, per(prompt, double(n_prompt)),
                 per(1e3 * double(n_prompt), prompt));
    std::fprintf(stderr,
                 "       eval time = %10.2f ms / %5" PRId64
                 " runs   (%8.2f ms per token, %9.2f tokens per second)\n",
                 eval, n_eval, per(eval, double(n_eval)), per(1e3 * double(n_eval), eval));
    std::fprintf(stderr,
                 "   sampling time = %10.2f ms / %5" PRId64 " runs   (%8.2f ms per token)\n",
                 sampling, n_sampled, per(sampling, double(n_sampled)));
    std::fprintf(stderr, "      total time = %10.2f ms / %5" PRId64 " tokens\n", ms_since(start),
                 n_prompt + n_eval);
    print_work();
}

// From here on the words are our own.
void Timing::print_work() const {
    const Work& work = decoding();
    if (work.sum.rows == 0) return;
    const double rows = double(work.sum.rows);
    const auto mb = [&](uint64_t n) { return double(n) * 1e-6 / rows; };
    if (generated.sum.rows)
        std::fprintf(stderr,
                     "       data read = %10.2f GB/s (%.2f MB per token: attention %.2f, predictor "
                     "%.2f, ffn %.2f, head %.2f, kv %.2f)\n",
                     eval > 0 ? double(work.bytes()) / eval * 1e-6 : 0.0, mb(work.bytes()),
                     mb(work.sum.attention), mb(work.sum.predictor), mb(work.sum.ffn),
                     mb(work.sum.head), mb(work.sum.kv));
    const auto percent = [&](int64_t pi_neuron_counts::*count) {
        return 100 * work.share(count, n_ff);
    };
    std::fprintf(stderr, "neurons computed = %10.2f %% (predicted %.2f %%, fired %.2f %%)\n",
                 percent(&pi_neuron_counts::computed), percent(&pi_neuron_counts::predicted),
                 percent(&pi_neuron_counts::fired));
    std::fprintf(stderr, "           tiers = gpu %.2f %%, ram %.2f %%, storage %.2f %%\n", 0.0,
                 100.0, 0.0);
}

pi_model_params model_params(Options& options) {
    pi_model_params params = pi_model_default_params();
    params.use_mmap = options.mmap;
    params.use_mlock = options.mlock;
    params.use_gpu_index = options.gpu_index;
    params.check_tensors = options.check_tensors;
    params.n_threads = options.n_threads;
    params.ram_budget = options.ram_budget;
    params.progress = print_progress;
    params.log = print_log;
    params.log_data = &options.verbosity;
    return params;
}

pi_session_params session_params(const Options& options, int32_t trained_for) {
    pi_session_params params = pi_session_default_params();
    params.n_ctx = options.n_ctx > 0   ? options.n_ctx
                   : options.n_ctx < 0 ? std::min(trained_for, default_most_positions)
                                       : trained_for;
    // Rows beyond the context would only cost memory.
    params.n_batch = std::clamp(options.n_batch, 1, std::max(params.n_ctx, 1));
    params.n_ubatch = std::min(options.n_ubatch, params.n_batch);
    params.n_threads = options.n_threads;
    params.n_threads_batch = options.n_threads_batch;
    params.type_k = options.type_k;
    params.type_v = options.type_v;
    params.sparse = options.sparse;
    params.sparse_threshold = options.sparse_threshold;
    params.should_stop = should_stop;
    params.log = print_log;
    params.log_data = const_cast<int32_t*>(&options.verbosity);  // print_log only reads it
    return params;
}

std::string isa() {
    const char* name;
    require(pi_isa(&name));
    return name;
}

// ---- continuing a text --------------------------------------------------------------------------

Generation::Generation(Options& options) : options_(options), stops_(options.stops) {
    if (options.conversation) chat_ = read_chat_format(options.model);
    const pi_model_params params = model_params(options);
    pi_model* model = nullptr;
    require(pi_model_open(options.model.c_str(), &params, &model));
    model_.reset(model);
    timing_.n_ff = pi_model_n_ff(model);
    if (!chat_) set_prompt();

    const pi_session_params wanted = session_params(options, pi_model_n_ctx(model));
    if (tokens_.size() > size_t(wanted.n_ctx))
        throw Failure("the prompt has " + std::to_string(tokens_.size()) + " tokens, the context " +
                      std::to_string(wanted.n_ctx) + " positions (-c)");
    pi_session* session = nullptr;
    require(pi_session_new(model, &wanted, &session));
    session_.reset(session);
    pi_sampler* sampler = nullptr;
    require(pi_sampler_new(&options.sampler, &sampler));
    sampler_.reset(sampler);
    if (options.ignore_eos)
        for (int32_t id = 0; id < pi_model_n_vocab(model); id++)
            if (pi_token_ends(model, id)) forbidden_.push_back(id);
    timing_.load = ms_since(timing_.start);
    print_settings(wanted);
}

void Generation::set_prompt() {
    const pi_model* model = model_.get();
    tokens_ = tokenize(model, options_.prompt, true);
    shown_ = visible(model, tokens_, options_.prompt);
    const int32_t bos = pi_token_bos(model);
    if (tokens_.empty() && bos < 0)
        throw Failure("this model has no token to begin a text with: give a prompt with -p");
    if (bos >= 0 && (tokens_.empty() || pi_token_add_bos(model)))
        tokens_.insert(tokens_.begin(), bos);
}

int Generation::run() {
    int status = 0;
    try {
        if (chat_) {
            converse();
        } else {
            put(shown_);
            read(tokens_, 0);
            generate();
        }
    } catch (const Interrupted&) {
        status = exit_interrupted;
    }
    if (!chat_ && isatty(STDOUT_FILENO) && write(STDOUT_FILENO, "\n", 1) < 0) return exit_failure;
    if (full_)
        std::fprintf(stderr, "main: the context is full (%d positions, -c)\n",
                     int(pi_session_n_ctx(session_.get())));
    timing_.print();
    if (!options_.json_stats.empty()) write_stats(options_, model_.get(), timing_);
    return status;
}

void Generation::print_settings(const pi_session_params& session) const {
    const pi_model* m = model_.get();
    const pi_sampler_params& s = options_.sampler;
    const int32_t threads = session.n_threads > 0 ? session.n_threads : pi_default_threads();
    const int32_t batch = session.n_threads_batch > 0 ? session.n_threads_batch : threads;
    std::fprintf(stderr, "model: %s, %s, %.2f M parameters, %.1f MiB\n",
                 one_line(pi_model_architecture(m)).c_str(),
                 one_line(pi_model_activation(m)).c_str(), double(pi_model_n_params(m)) * 1e-6,
                 double(pi_model_n_bytes(m)) / (1 << 20));
    std::fprintf(stderr, "system: threads = %d, threads for the prompt = %d, %s, context = %d\n",
                 int(threads), int(batch), isa().c_str(), int(pi_session_n_ctx(session_.get())));
    std::fprintf(stderr,
                 "sampler: seed = %" PRIu64
                 ", repeat-last-n = %d, repeat-penalty = %g, frequency-penalty = "
                 "%g, presence-penalty = %g, top-k = %d, typical = %g, top-p = %g, min-p = %g, "
                 "temp = %g\n",
                 s.seed, int(s.repeat_last_n), double(s.repeat_penalty),
                 double(s.frequency_penalty), double(s.presence_penalty), int(s.top_k),
                 double(s.typical_p), double(s.top_p), double(s.min_p), double(s.temperature));
}

// Computes tokens in as few calls as the session allows and points at the last one's logits.
void Generation::evaluate(const int32_t* tokens, size_t n) {
    const size_t most = size_t(pi_session_n_batch(session_.get()));
    while (n > 0) {
        const int32_t rows = int32_t(std::min(n, most));
        require(pi_eval(session_.get(), tokens, nullptr, nullptr, rows));
        require(pi_logits(session_.get(), rows - 1, &logits_));
        tokens += rows;
        n -= size_t(rows);
    }
}

// Evaluates a prompt. The sampler knows the first n_accepted tokens already.
void Generation::read(const std::vector<int32_t>& tokens, size_t n_accepted) {
    const WorkSpan span(timing_.read, session_.get(), model_.get());
    const Clock::time_point start = Clock::now();
    evaluate(tokens.data(), tokens.size());
    timing_.prompt += ms_since(start);
    timing_.n_prompt += int64_t(tokens.size());
    for (size_t i = n_accepted; i < tokens.size(); i++)
        pi_sampler_accept(sampler_.get(), tokens[i]);
    if (options_.verbosity < 4) return;
    std::string ids;
    for (const int32_t token : tokens) ids += " " + std::to_string(token);
    print_log(4, ("tokens read:" + ids).c_str(), &options_.verbosity);
}

int32_t Generation::choose() {
    const Clock::time_point start = Clock::now();
    const int32_t n_vocab = pi_model_n_vocab(model_.get());
    const float* logits = logits_;
    if (!forbidden_.empty()) {
        biased_.assign(logits, logits + n_vocab);
        for (const int32_t id : forbidden_)
            biased_[size_t(id)] = -std::numeric_limits<float>::infinity();
        logits = biased_.data();
    }
    int32_t token;
    require(pi_sample(sampler_.get(), logits, n_vocab, &token));
    pi_sampler_accept(sampler_.get(), token);
    timing_.sampling += ms_since(start);
    if (timing_.n_sampled++ == 0) timing_.first_token = timing_.prompt + timing_.sampling;
    return token;
}

// Prints what was generated; true where that reaches a text that ends the generation.
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
        // One that ends in the old part would have been found before.
        const size_t at = tail_.find(stop, old + 1 > stop.size() ? old + 1 - stop.size() : 0);
        if (at != tail_.npos) end = std::min(end, at + stop.size());
    }
    if (end != tail_.npos) text = text.substr(0, end - old);
    if (tail_.size() >= longest) tail_.erase(0, tail_.size() - (longest - 1));
    put(text);
    return end != tail_.npos;
}

void Generation::generate() {
    const int64_t most =
        options_.n_predict < 0 ? std::numeric_limits<int64_t>::max() : int64_t(options_.n_predict);
    tail_.clear();
    const WorkSpan span(timing_.generated, session_.get(), model_.get());
    for (int64_t i = 0; i < most; i++) {
        if (interrupted) throw Interrupted{};
        const int32_t token = choose();
        if (pi_token_ends(model_.get(), token)) return;
        pending_ = token;
        if (show(token_text(model_.get(), token, false))) return;
        if (i + 1 == most) return;  // nobody will look at the logits after the last token
        full_ = pi_sequence_length(session_.get(), 0) >= pi_session_n_ctx(session_.get());
        if (full_) return;
        const Clock::time_point start = Clock::now();
        evaluate(&token, 1);
        pending_ = -1;
        timing_.token_ms.push_back(ms_since(start));
        timing_.eval += timing_.token_ms.back();
        timing_.n_eval++;
    }
}

// ---- conversing ---------------------------------------------------------------------------------

void Generation::converse() {
    // Where the vocabulary has no tokens for the template's marks, the marks' texts end a turn.
    for (const ChatPart& part : chat_->next(""))
        if (part.kind == ChatPart::control && control_token(part.content) < 0)
            stops_.push_back(part.content);
    std::string message = options_.prompt;
    bool given = !message.empty();
    while (!full_) {
        if (!given) {
            if (isatty(STDIN_FILENO)) std::fputs("> ", stderr);
            if (!read_line(message)) return;
        }
        given = false;
        if (message.empty()) continue;
        const bool finished = take_turn(message);
        put("\n");
        if (options_.single_turn) {
            if (!finished) throw Interrupted{};
            return;
        }
    }
}

// Answers a message; false where Ctrl-C cut the answer short.
bool Generation::take_turn(const std::string& message) {
    std::vector<int32_t> ids =
        chat_ids(begun_ ? chat_->next(message) : chat_->first(options_.system, message));
    const int32_t bos = pi_token_bos(model_.get());
    const bool has_bos = !ids.empty() && ids[0] == bos;
    if (!begun_ && !has_bos && bos >= 0 && pi_token_add_bos(model_.get()))
        ids.insert(ids.begin(), bos);
    // The last token of the answer before is evaluated now that something follows it.
    const size_t n_shown = pending_ >= 0 ? 1 : 0;
    if (n_shown > 0) ids.insert(ids.begin(), pending_);

    const int32_t before = pi_sequence_length(session_.get(), 0);
    const int32_t left = pi_session_n_ctx(session_.get()) - before;
    if (ids.size() > size_t(left)) {
        const std::string why = "the message takes " + std::to_string(ids.size()) +
                                " positions, the context has " + std::to_string(left) +
                                " left (-c)";
        if (options_.single_turn || !isatty(STDIN_FILENO)) throw Failure(why);
        complain(why);
        return true;
    }
    bool heard = false;
    try {
        read(ids, n_shown);
        heard = begun_ = true;
        pending_ = -1;
        generate();
    } catch (const Interrupted&) {
        catch_interrupts();
        // A message that was not read to its end has not been said.
        if (!heard) require(pi_sequence_truncate(session_.get(), 0, before));
        return false;
    }
    return true;
}

std::vector<int32_t> Generation::chat_ids(const std::vector<ChatPart>& parts) const {
    std::vector<int32_t> ids;
    std::string text;
    // Only the template's own parts become control tokens, never what a message spells.
    const auto flush = [&] {
        const std::vector<int32_t> found = tokenize(model_.get(), text, false);
        ids.insert(ids.end(), found.begin(), found.end());
        text.clear();
    };
    for (const ChatPart& part : parts) {
        int32_t token = -1;
        if (part.kind == ChatPart::bos) token = pi_token_bos(model_.get());
        if (part.kind == ChatPart::eos) token = pi_token_eos(model_.get());
        if (part.kind == ChatPart::control) token = control_token(part.content);
        if (token < 0) {
            text += part.content;
            continue;
        }
        flush();
        ids.push_back(token);
    }
    flush();
    return ids;
}

// -1 where the vocabulary has no control token of this text.
int32_t Generation::control_token(const std::string& text) const {
    const std::vector<int32_t> ids = tokenize(model_.get(), text, true);
    const bool control = ids.size() == 1 && token_text(model_.get(), ids[0], false).empty();
    return control ? ids[0] : -1;
}
