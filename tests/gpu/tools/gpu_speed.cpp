// Speed of a model through the C API, as a line of JSON. It decodes drawn ids, not its own output,
// which would repeat itself.
//
//   gpu_speed --model F [--device cuda0 --vram MiB --layers N --placement file] [--sparse auto]
//             [--ctx 512] [--prompt 0] [--gen 64] [--batch 1] [--repeat 3] [--threads 0]
//
// --plan 1: the memory plan alone. --report 1: the device and the RAM, without a model. --layers:
// n_gpu_layers; -1: what fits. --placement: file, rates or none, as in pi_placement. --batch:
// sequences that are computed together. Rates are of all sequences: tokens per second.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "gpu/tools/arguments.h"
#include "powerinfer.h"

namespace {

using Clock = std::chrono::steady_clock;

void must(pi_status status) {
    if (status != PI_OK) throw std::runtime_error(pi_last_error());
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const size_t n = values.size();
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

// The place of an option's value in the list of its values.
int32_t place_in(const std::vector<std::string>& names, const char* option,
                 const std::string& name) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found != names.end()) return int32_t(found - names.begin());
    std::string all;
    for (const std::string& n : names) all += " " + n;
    throw std::invalid_argument("--" + std::string(option) + " is one of" + all);
}

// Bytes by tier, in all and by part.
void print_plan(const pi_plan* plan) {
    std::map<std::string, std::map<std::string, uint64_t>> tiers{{"gpu", {}}, {"ram", {}}};
    for (int32_t i = 0; i < pi_plan_n_parts(plan); i++) {
        pi_plan_part part{};
        part.struct_size = sizeof part;
        must(pi_plan_part_at(plan, i, &part));
        tiers[part.tier][part.name] += part.n_bytes;
    }
    for (const auto& [tier, parts] : tiers) {
        uint64_t sum = 0;
        std::string text;
        for (const auto& [name, n] : parts) {
            sum += n;
            text += (text.empty() ? "\"" : ", \"") + name + "\": " + std::to_string(n);
        }
        std::printf("%s\"%s_bytes\": %llu, \"%s\": {%s}", tier == "gpu" ? "" : ", ", tier.c_str(),
                    (unsigned long long)sum, tier.c_str(), text.c_str());
    }
}

void print_report(const std::string& device, uint64_t n_bytes, int32_t threads) {
    pi_device_report r{};
    r.struct_size = sizeof r;
    must(pi_measure_device(device.c_str(), n_bytes, &r));
    double read = 0;
    must(pi_measure_read(threads ? threads : pi_default_threads(), n_bytes, &read));
    std::printf(
        "{\"name\": \"%s\", \"driver\": \"%s\", \"compute\": %d, \"cuda\": %d, \"total_mib\": "
        "%.0f, "
        "\"context_mib\": %.0f, \"copy_gb_s\": %.1f, \"in_gb_s\": %.1f, \"out_gb_s\": %.1f, "
        "\"flag_us\": %.3f, \"launch_us\": %.2f, \"node_us\": %.3f, \"ram_gb_s\": %.1f}\n",
        r.name, r.driver, r.compute, r.cuda, double(r.total_bytes) / (1 << 20),
        double(r.context_bytes) / (1 << 20), r.copy_per_s / 1e9, r.in_per_s / 1e9,
        r.out_per_s / 1e9, r.flag_s * 1e6, r.launch_s * 1e6, r.node_s * 1e6, read / 1e9);
}

class Run {
 public:
    Run(const pi_model* model, const pi_session_params& params, int32_t batch)
        : batch_(batch), n_vocab_(pi_model_n_vocab(model)) {
        must(pi_session_new(model, &params, &session_));
    }
    ~Run() { pi_session_free(session_); }

    // Seconds for n tokens of a prompt in one sequence.
    double prompt(int32_t n) {
        std::vector<int32_t> ids(static_cast<size_t>(n));
        for (int32_t& id : ids) id = draw();
        const Clock::time_point begin = Clock::now();
        for (int32_t at = 0; at < n;) {
            const int32_t some = std::min(n - at, pi_session_n_batch(session_));
            must(pi_eval(session_, ids.data() + at, nullptr, nullptr, some));
            at += some;
        }
        return seconds(begin);
    }
    // Seconds of each of n steps, in which every sequence gets a token.
    std::vector<double> generate(int32_t n) {
        const auto size = size_t(batch_);
        std::vector<int32_t> ids(size), seq(size);
        const std::vector<uint8_t> yes(size, 1);
        pi_batch rows{};
        rows.struct_size = sizeof rows;
        rows.n = batch_;
        rows.token = ids.data();
        rows.seq = seq.data();
        rows.keep = rows.generated = reinterpret_cast<const bool*>(yes.data());
        for (size_t i = 0; i < size; i++) seq[i] = int32_t(i);
        std::vector<double> times;
        for (int32_t i = 0; i < n; i++) {
            for (int32_t& id : ids) id = draw();
            const Clock::time_point begin = Clock::now();
            must(pi_eval_batch(session_, &rows));
            const float* logits = nullptr;
            must(pi_logits(session_, batch_ - 1, &logits));
            times.push_back(seconds(begin));
            if (!std::isfinite(logits[0])) throw std::runtime_error("a logit is no number");
        }
        return times;
    }
    void restart() {
        for (int32_t i = 0; i < batch_; i++) must(pi_sequence_truncate(session_, i, 0));
    }
    pi_session* session() { return session_; }

 private:
    static double seconds(Clock::time_point begin) {
        return std::chrono::duration<double>(Clock::now() - begin).count();
    }
    int32_t draw() { return int32_t(3 + rng_() % uint32_t(n_vocab_ - 3)); }

    pi_session* session_ = nullptr;
    const int32_t batch_, n_vocab_;
    std::mt19937 rng_{7};
};

void run(int argc, char** argv) {
    tools::Arguments given(argc, argv);
    const std::string path = given.text("model", ""), device = given.text("device", "cpu");
    const auto batch = int32_t(given.whole("batch", 1)), gen = int32_t(given.whole("gen", 64));
    const auto prompt = int32_t(given.whole("prompt", 0));
    const auto repeat = int32_t(given.whole("repeat", 3));
    const bool report = given.whole("report", 0) != 0;
    const auto report_bytes = uint64_t(given.whole("bytes", 1 << 28));
    const bool plan_only = given.whole("plan", 0) != 0;
    pi_session_params s = pi_session_default_params();
    s.n_ctx = int32_t(given.whole("ctx", 512));
    s.n_seq = batch;
    s.n_threads = int32_t(given.whole("threads", 0));
    s.sparse =
        place_in({"auto", "off", "exact", "predictor"}, "sparse", given.text("sparse", "auto"));
    // Rows take memory on the device: no more than are needed.
    s.n_batch = s.n_ubatch = std::max(batch, std::min(prompt, 512));
    s.n_logits = batch;
    pi_model_params m = pi_model_default_params();
    m.device = device.c_str();
    m.vram_budget = uint64_t(given.number("vram", 0) * (1 << 20));
    m.n_gpu_layers = int32_t(given.whole("layers", -1));
    m.placement = place_in({"file", "rates", "none"}, "placement", given.text("placement", "file"));
    m.session = &s;
    given.no_more();
    if (report) return print_report(device, report_bytes, s.n_threads);
    if (plan_only) {
        pi_plan* plan = nullptr;
        must(pi_plan_new(path.c_str(), &m, &s, &plan));
        std::printf("{");
        print_plan(plan);
        std::printf("}\n");
        pi_plan_free(plan);
        return;
    }
    pi_model* model = nullptr;
    must(pi_model_open(path.c_str(), &m, &model));
    pi_plan* plan = nullptr;
    must(pi_model_plan(model, &s, &plan));
    std::printf("{");
    print_plan(plan);
    pi_plan_free(plan);
    {
        Run one(model, s, batch);
        std::vector<double> rates, prompt_rates, steps;
        pi_work before{}, after{};
        before.struct_size = after.struct_size = sizeof before;
        for (int32_t i = 0; i <= repeat; i++) {  // the first one warms up
            one.restart();
            if (prompt) {
                const double s_prompt = one.prompt(prompt);
                if (i) prompt_rates.push_back(prompt / s_prompt);
            }
            if (!gen) continue;
            must(pi_session_work(one.session(), &before));
            const std::vector<double> times = one.generate(i ? gen : std::min(gen, 8));
            must(pi_session_work(one.session(), &after));
            if (!i) continue;
            double sum = 0;
            for (double t : times) sum += t;
            rates.push_back(batch * double(times.size()) / sum);
            steps.insert(steps.end(), times.begin(), times.end());
        }
        double proposed = 0, fired = 0, all = 0, pairs = 0, device_pairs = 0;
        const int32_t n_layer = pi_model_n_layer(model);
        std::vector<pi_neuron_counts> counts(static_cast<size_t>(n_layer));
        counts[0].struct_size = sizeof counts[0];
        must(pi_session_neurons(one.session(), 0, n_layer, counts.data()));
        for (const pi_neuron_counts& c : counts) {
            proposed += double(c.predicted);
            fired += double(c.fired);
            all += double(c.rows) * pi_model_n_ff(model);
            pairs += double(c.pairs);
            device_pairs += double(c.device_pairs);
        }
        if (gen) {
            const double rows = double(after.rows - before.rows);
            std::printf(", \"gen_per_s\": %.3f, \"step_ms\": %.4f, \"transferred_per_token\": %.0f",
                        median(rates), 1e3 * median(steps),
                        double(after.transferred - before.transferred) / rows);
        }
        if (prompt) std::printf(", \"prompt_per_s\": %.2f", median(prompt_rates));
        std::printf(", \"proposed\": %.4f, \"fired\": %.4f", proposed / all, fired / all);
        if (pairs > 0) std::printf(", \"pairs_on_device\": %.4f", device_pairs / pairs);
        std::printf(", \"device_neurons\": %lld, \"device_bytes\": %llu, \"neurons\": %lld}\n",
                    (long long)pi_model_device_neurons(model),
                    (unsigned long long)pi_model_device_bytes(model),
                    (long long)n_layer * pi_model_n_ff(model));
    }
    pi_model_free(model);
}

}  // namespace

int main(int argc, char** argv) {
    try {
        run(argc, argv);
        return 0;
    } catch (const std::exception& e) {
        std::fprintf(stderr, "gpu_speed: %s\n", e.what());
        return 1;
    }
}
