#include "stats.h"

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "console/console.h"
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

    // Of neurons that only the disk has.
    uint64_t stored() const {
        auto storage = sized<pi_storage_plan>();
        require(pi_plan_storage(plan_.get(), &storage));
        return storage.stored;
    }

 private:
    Plan plan_;
};

// of: a layer's value as JSON.
template <typename Of>
std::string list(size_t layers, const Of& of) {
    std::string text = "[";
    for (size_t i = 0; i < layers; i++) text += (i ? ", " : "") + of(i);
    return text + "]";
}

// What a tier has of each layer, and computed of it over all rows. experts: of all layers.
struct TierLayers {
    std::vector<uint64_t> neurons, computed;
    uint64_t experts = 0;
};

// read: bytes per token. stall_ns: how long another tier waited for this one.
std::string tier(const TierLayers& layers, uint64_t rows, uint64_t bytes, uint64_t read,
                 uint64_t stall_ns) {
    const auto sum = [](const std::vector<uint64_t>& of) {
        return std::accumulate(of.begin(), of.end(), uint64_t(0));
    };
    const size_t n = layers.neurons.size();
    return object({{"neurons", number(sum(layers.neurons))},
                   {"experts", number(layers.experts)},
                   {"bytes", number(bytes)},
                   {"hits", number(sum(layers.computed) / rows)},
                   {"reads", number(read)},
                   {"stall_s", number(double(stall_ns) * 1e-9)},
                   {"layer_neurons", list(n, [&](size_t i) { return number(layers.neurons[i]); })},
                   {"layer_hits", list(n, [&](size_t i) {
                        return number(double(layers.computed[i]) / double(rows));
                    })}});
}

// How the model runs from storage; null if RAM and GPU have all of it.
std::string storage_of(const pi_model* model, const Work& work) {
    const pi_work& sum = work.sum;
    auto report = sized<pi_storage_report>();
    require(pi_model_storage(model, &report));
    if (!report.stored) return "null";
    const auto part = [](int64_t slots, int64_t used, uint64_t needed, uint64_t missed) {
        return object({{"slots", number(uint64_t(slots))},
                       {"used", number(uint64_t(used))},
                       {"needed", number(needed)},
                       {"missed", number(missed)}});
    };
    const auto n_layer = size_t(pi_model_n_layer(model));
    const auto at = [&](size_t i, int64_t pi_neuron_counts::*count) {
        return work.by_layer.empty() ? 0 : uint64_t(work.by_layer[i].*count);
    };
    const auto layers = [&](int64_t pi_neuron_counts::*count) {
        return list(n_layer, [&](size_t i) { return number(at(i, count)); });
    };
    const std::string stalls = list(n_layer, [&](size_t i) {
        return number(double(at(i, &pi_neuron_counts::storage_waited_ns)) * 1e-9);
    });
    return object(
        {{"io", std::string("\"") + report.io + "\""},
         {"direct", report.direct ? "true" : "false"},
         {"unit", report.experts  ? "\"experts\""
                  : report.blocks ? "\"blocks\""
                                  : "\"parts of neurons\""},
         {"arena_bytes", number(report.arena_bytes)},
         {"first", part(report.first_slots, report.first_used, sum.first_needed, sum.first_missed)},
         {"rest", part(report.rest_slots, report.rest_used, sum.rest_needed, sum.rest_missed)},
         {"reads", number(sum.storage_reads)},
         {"guessed", number(sum.storage_guessed)},
         {"guessed_right", number(sum.storage_guessed_right)},
         {"layer_needed", layers(&pi_neuron_counts::storage_needed)},
         {"layer_missed", layers(&pi_neuron_counts::storage_missed)},
         {"layer_bytes", layers(&pi_neuron_counts::storage_bytes)},
         {"layer_stall_s", stalls}});
}

// The experts of a mixture; null of other models.
std::string experts_of(const pi_model* model, const Work& work) {
    auto report = sized<pi_expert_report>();
    require(pi_model_experts(model, &report));
    if (!report.experts) return "null";
    const auto sum = [&](int64_t pi_neuron_counts::*count) { return uint64_t(work.total(count)); };
    const uint64_t chosen = sum(&pi_neuron_counts::pairs);
    const uint64_t gpu = sum(&pi_neuron_counts::device_pairs);
    const uint64_t storage = sum(&pi_neuron_counts::storage_pairs);
    return object({{"experts", number(uint64_t(report.experts))},
                   {"gpu_room", number(uint64_t(report.device_room))},
                   {"gpu_has", number(uint64_t(report.device_has))},
                   {"chosen", object({{"gpu", number(gpu)},
                                      {"ram", number(chosen - gpu - storage)},
                                      {"storage", number(storage)}})},
                   {"copies", number(report.copies)},
                   {"copied_bytes", number(report.copied_bytes)}});
}

}  // namespace

void write_stats(Options& options, const pi_model* model, const Timing& timing) {
    const Parts parts(options, model);
    const size_t layers = size_t(pi_model_n_layer(model));
    const Work& work = timing.decoding();
    const uint64_t rows = uint64_t(std::max<int64_t>(work.sum.rows, 1));
    const auto shares = [&](int64_t pi_neuron_counts::*count) {
        return list(layers, [&](size_t i) { return number(work.share(count, int(i))); });
    };
    const std::vector<uint64_t> none(layers);
    TierLayers gpu{none, none, 0}, ram{none, none, 0}, storage{none, none, 0};
    for (size_t i = 0; i < layers; i++) {
        gpu.neurons[i] = uint64_t(pi_model_layer_device_neurons(model, int32_t(i)));
        storage.neurons[i] = uint64_t(pi_model_layer_stored_neurons(model, int32_t(i)));
        const int64_t neurons =
            timing.n_ff[i] * std::max(1, pi_model_layer_n_expert(model, int32_t(i)));
        ram.neurons[i] = uint64_t(neurons) - gpu.neurons[i] - storage.neurons[i];
        if (pi_model_layer_n_expert(model, int32_t(i)))
            for (TierLayers* tier : {&gpu, &ram, &storage})
                tier->experts += tier->neurons[i] / uint64_t(timing.n_ff[i]);
        if (work.by_layer.empty()) continue;
        gpu.computed[i] = uint64_t(work.by_layer[i].device_computed);
        storage.computed[i] = uint64_t(work.by_layer[i].storage_computed);
        ram.computed[i] =
            uint64_t(work.by_layer[i].computed) - gpu.computed[i] - storage.computed[i];
    }

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
              object({{"gpu",
                       tier(gpu, rows, parts.bytes("gpu", "ffn") + parts.bytes("gpu", "experts"),
                            work.sum.device / rows, work.sum.waited_for_device_ns)},
                      {"ram",
                       tier(ram, rows, parts.bytes("ram", "ffn") + parts.bytes("ram", "cache"),
                            (work.bytes() - work.sum.device) / rows, work.sum.waited_for_cpu_ns)},
                      {"storage", tier(storage, rows, parts.stored(), work.sum.storage_bytes / rows,
                                       work.sum.waited_for_storage_ns)}})},
             {"storage", storage_of(model, work)},
             {"experts", experts_of(model, work)},
             {"pcie_bytes", number(work.sum.transferred / rows)},
             {"rss_peak", number(pi_peak_memory())},
             {"vram_peak", number(pi_model_device_bytes(model))}}) +
        "\n";

    const std::string& path = options.json_stats;
    std::FILE* file = open_file(path, "wb");
    if (!file) throw Failure(path + ": " + std::strerror(errno));
    bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
    int error = errno;
    if (std::fclose(file) != 0 && written) {  // buffered data is written only now
        written = false;
        error = errno;
    }
    if (written) return;
    std::error_code ignored;  // remove an incomplete file, but not a device
    const std::filesystem::path left = std::filesystem::u8path(path);
    if (std::filesystem::is_regular_file(left, ignored)) std::filesystem::remove(left, ignored);
    throw Failure(path + ": " + std::strerror(error));
}
