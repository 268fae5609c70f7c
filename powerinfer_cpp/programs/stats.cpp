#include "stats.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "console.h"
#include "engine.h"

namespace {

std::string number(double x) {
    char text[32];
    std::snprintf(text, sizeof text, "%.9g", std::isfinite(x) ? x : 0.0);
    return text;
}

std::string number(uint64_t n) {
    return std::to_string(n);
}

using Members = std::vector<std::pair<const char*, std::string>>;

std::string object(const Members& members) {
    std::string text = "{";
    for (const auto& [key, value] : members) {
        if (text.size() > 1) text += ", ";
        text += std::string("\"") + key + "\": " + value;
    }
    return text + "}";
}

// A percentile of sorted values, with linear interpolation.
double percentile(const std::vector<double>& sorted, double share) {
    if (sorted.empty()) return 0;
    const double at = share * double(sorted.size() - 1);
    const size_t below = size_t(at), above = std::min(below + 1, sorted.size() - 1);
    return sorted[below] + (at - double(below)) * (sorted[above] - sorted[below]);
}

std::string percentiles(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return object({{"p50", number(percentile(values, 0.50))},
                   {"p95", number(percentile(values, 0.95))},
                   {"p99", number(percentile(values, 0.99))}});
}

// Bytes of each part of the memory plan.
class Parts {
 public:
    Parts(Options& options, const pi_model* model) {
        const pi_session_params session = session_params(options, pi_model_n_ctx(model));
        pi_plan* plan = nullptr;
        require(pi_model_plan(model, &session, &plan));
        plan_.reset(plan);
    }

    uint64_t bytes(std::string_view tier, std::string_view name) const {
        uint64_t n = 0;
        for (int32_t i = 0; i < pi_plan_n_parts(plan_.get()); i++) {
            auto part = sized<pi_plan_part>();
            require(pi_plan_part_at(plan_.get(), i, &part));
            if (part.name == name && part.tier == tier) n += part.n_bytes;
        }
        return n;
    }

 private:
    Plan plan_;
};

// Experts of a layer; 1 without experts.
uint64_t n_experts(const pi_model* model) {
    const pi_gguf* gguf = pi_model_gguf(model);
    const std::string wanted = std::string(pi_model_architecture(model)) + ".expert_count";
    for (int64_t i = 0; i < pi_gguf_n_values(gguf); i++) {
        const char* key;
        size_t length;
        pi_value_type type, element_type;
        uint64_t count;
        int64_t value;
        require(pi_gguf_value(gguf, i, &key, &length, &type, &element_type, &count));
        if (std::string_view(key, length) != wanted) continue;
        if (pi_gguf_integers(gguf, i, 0, 1, &value) == PI_OK && value > 0) return uint64_t(value);
    }
    return 1;
}

// read: bytes per token. stall_ns: how long another tier waited for this one.
std::string tier(uint64_t neurons, uint64_t bytes, int64_t computed, uint64_t read,
                 uint64_t stall_ns) {
    return object({{"neurons", number(neurons)},
                   {"bytes", number(bytes)},
                   {"hits", number(uint64_t(computed))},
                   {"reads", number(read)},
                   {"stall_s", number(double(stall_ns) * 1e-9)}});
}

uint64_t rss_peak() {
    rusage usage = {};
    getrusage(RUSAGE_SELF, &usage);
#ifdef __APPLE__
    return uint64_t(usage.ru_maxrss);
#else
    return uint64_t(usage.ru_maxrss) * 1024;
#endif
}

}  // namespace

void write_stats(Options& options, const pi_model* model, const Timing& timing) {
    const Parts parts(options, model);
    const uint64_t layers = uint64_t(pi_model_n_layer(model));
    const uint64_t neurons = layers * uint64_t(pi_model_n_ff(model)) * n_experts(model);
    const uint64_t on_gpu = uint64_t(pi_model_device_neurons(model));
    const Work& work = timing.decoding();
    const uint64_t rows = uint64_t(std::max<int64_t>(work.sum.rows, 1));
    const int64_t computed = work.total(&pi_neuron_counts::computed);
    const int64_t on_device = work.total(&pi_neuron_counts::device_computed);
    const auto shares = [&](int64_t pi_neuron_counts::*count) {
        std::string text = "[";
        for (uint64_t i = 0; i < layers; i++)
            text += (i ? ", " : "") + number(work.share(count, timing.n_ff, int(i)));
        return text + "]";
    };

    const std::string text =
        object(
            {{"n_prompt", number(uint64_t(timing.n_prompt))},
             {"n_gen", number(uint64_t(timing.n_eval))},
             {"prompt_s", number(timing.prompt / 1e3)},
             {"gen_s", number(timing.eval / 1e3)},
             {"gen_ts", number(timing.eval > 0 ? double(timing.n_eval) * 1e3 / timing.eval : 0.0)},
             {"ttft_s", number(timing.first_token / 1e3)},
             {"token_ms", percentiles(timing.token_ms)},
             {"share_predicted", shares(&pi_neuron_counts::predicted)},
             {"share_computed", shares(&pi_neuron_counts::computed)},
             {"share_fired", shares(&pi_neuron_counts::fired)},
             {"audit", object({{"fired", number(uint64_t(work.total(&pi_neuron_counts::audited)))},
                               {"found", number(uint64_t(work.total(&pi_neuron_counts::found)))}})},
             {"bytes_per_token", object({{"attention", number(work.sum.attention / rows)},
                                         {"predictor", number(work.sum.predictor / rows)},
                                         {"ffn", number(work.sum.ffn / rows)},
                                         {"head", number(work.sum.head / rows)},
                                         {"kv", number(work.sum.kv / rows)}})},
             {"tiers",
              object({{"gpu", tier(on_gpu, parts.bytes("gpu", "ffn"), on_device / int64_t(rows),
                                   work.sum.device / rows, work.sum.waited_for_device_ns)},
                      {"ram",
                       tier(neurons - on_gpu, parts.bytes("ram", "ffn"),
                            (computed - on_device) / int64_t(rows),
                            (work.bytes() - work.sum.device) / rows, work.sum.waited_for_cpu_ns)},
                      {"storage", tier(0, 0, 0, 0, 0)}})},
             {"pcie_bytes", number(work.sum.transferred / rows)},
             {"rss_peak", number(rss_peak())},
             {"vram_peak", number(pi_model_device_bytes(model))}}) +
        "\n";

    const std::string& path = options.json_stats;
    FILE* file = std::fopen(path.c_str(), "wb");
    if (!file) throw Failure(path + ": " + std::strerror(errno));
    bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
    int error = errno;
    if (std::fclose(file) != 0 && written) {  // buffered data is written only now
        written = false;
        error = errno;
    }
    if (written) return;
    std::error_code ignored;  // remove an incomplete file, but not a device
    if (std::filesystem::is_regular_file(path, ignored)) std::filesystem::remove(path, ignored);
    throw Failure(path + ": " + std::strerror(error));
}
