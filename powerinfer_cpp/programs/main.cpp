// main: continues a text. Everything it knows of models and tokens comes through powerinfer.h.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "options.h"
#include "powerinfer.h"

namespace {

constexpr int exit_failure = 1, exit_usage = 2, exit_interrupted = 130;
constexpr int32_t default_most_positions = 4096;
constexpr size_t largest_prompt_file = size_t(256) << 20;  // so that -f /dev/zero ends

struct Failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};
struct Interrupted {};  // by Ctrl-C
struct ReaderGone {};   // whoever read stdout has enough, as in `main | head`

volatile sig_atomic_t interrupted = 0;
extern "C" void on_interrupt(int) {
    interrupted = 1;
}
bool should_stop(void*) {
    return interrupted != 0;
}

// ---- talking ------------------------------------------------------------------------------------

// Names from a model file end up in messages; they must not steer the terminal or break the line.
std::string one_line(std::string text) {
    for (char& c : text)
        if (uint8_t(c) < 0x20 || c == 0x7f) c = ' ';
    return text;
}

bool progress_shown = false;
void erase_progress() {
    if (progress_shown) std::fputs("\r            \r", stderr);
    progress_shown = false;
}

void complain(const std::string& message) {
    erase_progress();
    std::fprintf(stderr, "main: error: %s\n", one_line(message).c_str());
}

void put(std::string_view bytes) {
    while (!bytes.empty()) {
        // A signal can also end a write with part of the bytes written, as if nothing had happened.
        if (interrupted) throw Interrupted{};
        const ssize_t n = write(STDOUT_FILENO, bytes.data(), bytes.size());
        if (n >= 0) {
            bytes.remove_prefix(size_t(n));
        } else if (errno == EINTR) {
            continue;
        } else if (errno == EAGAIN) {
            pollfd ready = {STDOUT_FILENO, POLLOUT, 0};
            poll(&ready, 1, -1);
        } else if (errno == EPIPE) {
            throw ReaderGone{};
        } else {
            throw Failure(std::string("cannot write to stdout: ") + std::strerror(errno));
        }
    }
}

void require(pi_status status) {
    if (status == PI_OK) return;
    if (status == PI_ERROR_CANCELLED && interrupted) throw Interrupted{};
    throw Failure(pi_last_error());
}

void print_log(int32_t level, const char* message, void* data) {
    if (level > static_cast<const Options*>(data)->verbosity) return;
    const char* kind = level == 1 ? "error: " : level == 2 ? "warning: " : "";
    erase_progress();
    std::fprintf(stderr, "main: %s%s\n", kind, one_line(message).c_str());
}

bool print_progress(float fraction, void*) {
    if (isatty(STDERR_FILENO)) {
        erase_progress();
        if (fraction < 1) std::fprintf(stderr, "loading %3.0f%%", 100 * double(fraction));
        std::fflush(stderr);
        progress_shown = fraction < 1;
    }
    return interrupted == 0;
}

using Clock = std::chrono::steady_clock;
double ms_since(Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

struct Timing {
    Clock::time_point start = Clock::now();
    double load = 0, prompt = 0, eval = 0, sampling = 0;  // ms
    int64_t n_prompt = 0, n_eval = 0, n_sampled = 0;
    uint64_t bytes_per_token = 0;  // of weights

    // The words are those of llama.cpp, which scripts look for.
    void print() const {
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
        std::fprintf(stderr, "      total time = %10.2f ms / %5" PRId64 " tokens\n",
                     ms_since(start), n_prompt + n_eval);
        if (n_eval > 0)
            std::fprintf(stderr, "  weights read   = %10.2f GB/s (%.2f MB per token)\n",
                         per(double(bytes_per_token) * double(n_eval), eval) * 1e-6,
                         double(bytes_per_token) * 1e-6);
    }
};

// ---- the prompt ---------------------------------------------------------------------------------

std::string read_file(const std::string& path) {
    const auto fail = [&] {
        if (interrupted) throw Interrupted{};  // while a pipe was waited for
        throw Failure(path + ": " + std::strerror(errno));
    };
    const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
    if (!file) fail();
    std::string text;
    char buffer[1 << 16];
    while (const size_t n = std::fread(buffer, 1, sizeof buffer, file.get())) {
        text.append(buffer, n);
        if (text.size() > largest_prompt_file) throw Failure(path + ": too large for a prompt");
        if (interrupted) throw Interrupted{};
    }
    if (std::ferror(file.get())) fail();
    // Editors end the last line; llama.cpp, too, takes that for no part of the prompt.
    if (!text.empty() && text.back() == '\n') text.pop_back();
    return text;
}

// \n \r \t \' \" \\ and \x41; any other backslash stands for itself.
std::string unescape(const std::string& text) {
    static const std::string letters = "nrt'\"\\", meanings = "\n\r\t'\"\\";
    const auto hex = [&](size_t i) { return i < text.size() && std::isxdigit(uint8_t(text[i])); };
    std::string out;
    for (size_t i = 0; i < text.size(); i++) {
        const size_t letter =
            text[i] == '\\' && i + 1 < text.size() ? letters.find(text[i + 1]) : letters.npos;
        if (letter != letters.npos) {
            out += meanings[letter];
            i += 1;
        } else if (text[i] == '\\' && text.compare(i + 1, 1, "x") == 0 && hex(i + 2) &&
                   hex(i + 3)) {
            out += char(std::stoi(text.substr(i + 2, 2), nullptr, 16));
            i += 3;
        } else {
            out += text[i];
        }
    }
    return out;
}

std::vector<int32_t> tokenize(const pi_model* model, const std::string& text) {
    std::vector<int32_t> ids(text.size() + 2);
    size_t n = 0;
    pi_status status =
        pi_tokenize(model, text.data(), text.size(), true, ids.data(), ids.size(), &n);
    if (status == PI_ERROR_ARGUMENT && n > ids.size()) {
        ids.resize(n);
        status = pi_tokenize(model, text.data(), text.size(), true, ids.data(), ids.size(), &n);
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

// ---- model and session --------------------------------------------------------------------------

template <auto release>
struct Release {
    template <class T>
    void operator()(T* handle) const {
        release(handle);
    }
};
using Model = std::unique_ptr<pi_model, Release<pi_model_free>>;
using Session = std::unique_ptr<pi_session, Release<pi_session_free>>;
using Sampler = std::unique_ptr<pi_sampler, Release<pi_sampler_free>>;
using Plan = std::unique_ptr<pi_plan, Release<pi_plan_free>>;

std::string default_model() {
    namespace fs = std::filesystem;
    const fs::path name = "models/stories-relu.Q8_0.gguf";
    std::vector<fs::path> places = {name};
    std::error_code error;
    // From a build folder the repository is a few levels up.
    fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
    for (int level = 0; level < 4 && !folder.empty(); level++, folder = folder.parent_path())
        places.push_back(folder / name);
#ifdef PI_DEFAULT_MODEL
    places.push_back(PI_DEFAULT_MODEL);
#endif
    for (const fs::path& place : places)
        if (fs::exists(place, error)) return place.string();
    throw Failure("there is no " + name.string() + " here; name a model with -m FILE");
}

pi_model_params model_params(Options& options) {
    pi_model_params params = pi_model_default_params();
    params.use_mmap = options.mmap;
    params.use_mlock = options.mlock;
    params.check_tensors = options.check_tensors;
    params.n_threads = options.n_threads;
    params.ram_budget = options.ram_budget;
    params.progress = print_progress;
    params.log = print_log;
    params.log_data = &options;
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
    params.should_stop = should_stop;
    return params;
}

// Throws where GGML_ISA names one that this processor does not have.
std::string isa() {
    const char* name;
    require(pi_isa(&name));
    return name;
}

void print_plan(Options& options) {
    const pi_model_params model = model_params(options);
    pi_session_params session = session_params(options, 0);
    const auto make = [&] {
        pi_plan* plan = nullptr;
        require(pi_plan_new(options.model.c_str(), &model, &session, &plan));
        return Plan(plan);
    };
    Plan plan = make();
    // How many positions the model has is known only now.
    session = session_params(options, pi_plan_n_ctx(plan.get()));
    plan = make();

    const auto line = [](const char* tier, const char* part, uint64_t bytes) {
        char text[128];
        std::snprintf(text, sizeof text, "%-8.16s%-12.32s%14.2f\n", tier, part,
                      double(bytes) / (1 << 20));
        return std::string(text);
    };
    std::string text = "tier    part                   MiB\n";
    uint64_t total = 0;
    for (int32_t i = 0; i < pi_plan_n_parts(plan.get()); i++) {
        pi_plan_part part;
        require(pi_plan_part_at(plan.get(), i, &part));
        text += line(part.tier, part.name, part.n_bytes);
        total += part.n_bytes;
    }
    const uint64_t budget = pi_plan_budget(plan.get());
    text += line("", "total", total) + line("", "budget", budget);
    text += std::to_string(pi_plan_n_ctx(plan.get())) + " positions; the model " +
            (total <= budget ? "fits" : "does not fit") + "\n";
    put(text);
}

void print_devices() {
    char line[128];
    std::snprintf(line, sizeof line, "  cpu: %s, %d threads, %.0f MiB free\n", isa().c_str(),
                  int(pi_default_threads()), double(pi_available_memory()) / (1 << 20));
    std::string text = std::string("Available devices:\n") + line;
    for (int32_t i = 0; i < pi_n_devices(); i++)
        text += "  cuda" + std::to_string(i) + ": " + pi_device_name(i) + "\n";
    const char* note = pi_device_note();
    if (pi_n_devices() == 0 && note && *note) text += std::string("  no GPU: ") + note + "\n";
    put(text);
}

// ---- generation ---------------------------------------------------------------------------------

class Generation {
 public:
    explicit Generation(Options& options) : options_(options) {
        const pi_model_params params = model_params(options);
        pi_model* model = nullptr;
        require(pi_model_open(options.model.c_str(), &params, &model));
        model_.reset(model);
        timing_.bytes_per_token = pi_model_bytes_per_token(model);

        tokens_ = tokenize(model, options.prompt);
        shown_ = visible(model, tokens_, options.prompt);
        const int32_t bos = pi_token_bos(model);
        if (tokens_.empty() && bos < 0)
            throw Failure("this model has no token to begin a text with: give a prompt with -p");
        if (bos >= 0 && (tokens_.empty() || pi_token_add_bos(model)))
            tokens_.insert(tokens_.begin(), bos);

        const pi_session_params wanted = session_params(options, pi_model_n_ctx(model));
        if (tokens_.size() > size_t(wanted.n_ctx))
            throw Failure("the prompt has " + std::to_string(tokens_.size()) +
                          " tokens, the context " + std::to_string(wanted.n_ctx) +
                          " positions (-c)");
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

    // 0 or exit_interrupted.
    int run() {
        int status = 0;
        try {
            put(shown_);
            read_prompt();
            continue_text();
        } catch (const Interrupted&) {
            status = exit_interrupted;
        }
        if (isatty(STDOUT_FILENO) && write(STDOUT_FILENO, "\n", 1) < 0) return exit_failure;
        if (full_)
            std::fprintf(stderr, "main: the context is full (%d positions, -c)\n",
                         int(pi_session_n_ctx(session_.get())));
        timing_.print();
        return status;
    }

 private:
    void print_settings(const pi_session_params& session) const {
        const pi_model* m = model_.get();
        const pi_sampler_params& s = options_.sampler;
        const int32_t threads = session.n_threads > 0 ? session.n_threads : pi_default_threads();
        const int32_t batch = session.n_threads_batch > 0 ? session.n_threads_batch : threads;
        std::fprintf(stderr, "model: %s, %s, %.2f M parameters, %.1f MiB\n",
                     one_line(pi_model_architecture(m)).c_str(),
                     one_line(pi_model_activation(m)).c_str(), double(pi_model_n_params(m)) * 1e-6,
                     double(pi_model_n_bytes(m)) / (1 << 20));
        std::fprintf(
            stderr, "system: threads = %d, threads for the prompt = %d, %s, context = %d\n",
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
    void evaluate(const int32_t* tokens, size_t n) {
        const size_t most = size_t(pi_session_n_batch(session_.get()));
        while (n > 0) {
            const int32_t rows = int32_t(std::min(n, most));
            require(pi_eval(session_.get(), tokens, nullptr, nullptr, rows));
            require(pi_logits(session_.get(), rows - 1, &logits_));
            tokens += rows;
            n -= size_t(rows);
        }
    }

    void read_prompt() {
        for (const int32_t token : tokens_) pi_sampler_accept(sampler_.get(), token);
        const Clock::time_point start = Clock::now();
        evaluate(tokens_.data(), tokens_.size());
        timing_.prompt = ms_since(start);
        timing_.n_prompt = int64_t(tokens_.size());
    }

    int32_t choose() {
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
        timing_.n_sampled++;
        return token;
    }

    void continue_text() {
        const int64_t most = options_.n_predict < 0 ? std::numeric_limits<int64_t>::max()
                                                    : int64_t(options_.n_predict);
        for (int64_t i = 0; i < most; i++) {
            if (interrupted) throw Interrupted{};
            const int32_t token = choose();
            if (pi_token_ends(model_.get(), token)) return;
            put(token_text(model_.get(), token, false));
            if (i + 1 == most) return;  // nobody will look at the logits after the last token
            full_ = pi_sequence_length(session_.get(), 0) >= pi_session_n_ctx(session_.get());
            if (full_) return;
            const Clock::time_point start = Clock::now();
            evaluate(&token, 1);
            timing_.eval += ms_since(start);
            timing_.n_eval++;
        }
    }

    const Options& options_;
    Timing timing_;
    Model model_;
    Session session_;
    Sampler sampler_;
    std::vector<int32_t> tokens_;     // of the prompt
    std::string shown_;               // what is printed of it
    std::vector<int32_t> forbidden_;  // tokens that --ignore-eos rules out
    std::vector<float> biased_;
    const float* logits_ = nullptr;  // after the last token
    bool full_ = false;
};

int run(Options& options) {
    switch (options.action) {
        case Options::Action::help:
            put(help_text());
            return 0;
        case Options::Action::version:
            put("powerinfer_cpp " + std::string(pi_version()) + " (" + isa() + ")\n");
            return 0;
        case Options::Action::list_devices:
            print_devices();
            return 0;
        case Options::Action::plan:
        case Options::Action::generate:
            break;
    }
    if (options.model.empty()) options.model = default_model();
    if (options.action == Options::Action::plan) {
        print_plan(options);
        return 0;
    }
    if (!options.prompt_file.empty()) options.prompt = read_file(options.prompt_file);
    if (options.escape) options.prompt = unescape(options.prompt);
    if (options.random_seed)
        options.sampler.seed = std::random_device{}();  // 32 bits: short to retype
    return Generation(options).run();
}

// A file opened later would get the number of a standard stream that is closed, and receive text.
void occupy_standard_streams() {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
        // Opened the wrong way round, so that using the stream stays the error it was.
        if (open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0) return;
    }
}

void set_signals() {
    signal(SIGPIPE, SIG_IGN);
    struct sigaction action = {};
    action.sa_handler = on_interrupt;
    // No SA_RESTART: a write that blocks must end. The second Ctrl-C kills, whatever happens.
    action.sa_flags = SA_RESETHAND;
    sigaction(SIGINT, &action, nullptr);
}

}  // namespace

int main(int argc, char** argv) {
    occupy_standard_streams();
    set_signals();
    try {
        Options options = parse_options(argc, argv);
        return run(options);
    } catch (const UsageError& error) {
        complain(error.what());
        return exit_usage;
    } catch (const Interrupted&) {
        return exit_interrupted;
    } catch (const ReaderGone&) {
        return 0;
    } catch (const std::bad_alloc&) {
        complain("out of memory");
    } catch (const std::exception& error) {
        complain(error.what());
    }
    return exit_failure;
}
