#include "timing.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "console/console.h"

double ms_since(Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// The wording is llama.cpp's, because scripts parse it.
void Timing::print(const pi_model* model) const {
    const auto per = [](double a, double b) { return b > 0 ? a / b : 0; };
    say("       load time = %10.2f ms\n", load);
    say("prompt eval time = %10.2f ms / %5" PRId64
        " tokens (%8.2f ms per token, %9.2f tokens per second)\n",
        prompt, n_prompt, per(prompt, double(n_prompt)), per(1e3 * double(n_prompt), prompt));
    say("       eval time = %10.2f ms / %5" PRId64
        " runs   (%8.2f ms per token, %9.2f tokens per second)\n",
        eval, n_eval, per(eval, double(n_eval)), per(1e3 * double(n_eval), eval));
    say("   sampling time = %10.2f ms / %5" PRId64 " runs   (%8.2f ms per token)\n", sampling,
        n_sampled, per(sampling, double(n_sampled)));
    say("      total time = %10.2f ms / %5" PRId64 " tokens\n", ms_since(start), n_prompt + n_eval);
    print_work(model);
}

// This part is our own.
void Timing::print_work(const pi_model* model) const {
    const Work& work = decoding();
    if (work.sum.rows == 0) return;
    const double rows = double(work.sum.rows);
    const auto mb = [&](uint64_t n) { return double(n) * 1e-6 / rows; };
    if (generated.sum.rows)
        say("       data read = %10.2f GB/s (%.2f MB per token: attention %.2f, predictor "
            "%.2f, ffn %.2f, head %.2f, kv %.2f)\n",
            eval > 0 ? double(work.bytes()) / eval * 1e-6 : 0.0, mb(work.bytes()),
            mb(work.sum.attention), mb(work.sum.predictor), mb(work.sum.ffn), mb(work.sum.head),
            mb(work.sum.kv));
    const auto percent = [&](int64_t pi_neuron_counts::*count) { return 100 * work.share(count); };
    say("neurons computed = %10.2f %% (predicted %.2f %%, fired %.2f %%)\n",
        percent(&pi_neuron_counts::computed), percent(&pi_neuron_counts::predicted),
        percent(&pi_neuron_counts::fired));
    if (const int64_t audited = work.total(&pi_neuron_counts::audited))
        say("predictors found = %10.2f %% of %" PRId64 " audited firings\n",
            100 * double(work.total(&pi_neuron_counts::found)) / double(audited), audited);
    const int32_t n_layer = pi_model_n_layer(model);
    double all = 0;
    int64_t stored = 0;  // now, at the end
    for (int32_t i = 0; i < n_layer; i++) {
        all += double(n_ff[size_t(i)]) * std::max(1, pi_model_layer_n_expert(model, i));
        stored += pi_model_layer_stored_neurons(model, i);
    }
    const double on_gpu = 100 * double(pi_model_device_neurons(model)) / all;
    const double on_disk = 100 * double(stored) / all;
    say("           tiers = gpu %.2f %%, ram %.2f %%, storage %.2f %%\n", on_gpu,
        100 - on_gpu - on_disk, on_disk);
    print_experts(model);
    auto storage = sized<pi_storage_report>();
    require(pi_model_storage(model, &storage));
    if (storage.stored) print_storage(storage);
    if (!work.sum.device) return;
    const auto ms = [&](uint64_t ns) { return double(ns) * 1e-6 / rows; };
    say("             gpu = %10.2f %% of the data read; per token %.2f MB over PCIe, the CPU "
        "waited %.2f ms, the GPU %.2f ms\n",
        100 * double(work.sum.device) / double(std::max<uint64_t>(work.bytes(), 1)),
        mb(work.sum.transferred), ms(work.sum.waited_for_device_ns),
        ms(work.sum.waited_for_cpu_ns));
}

// Of mixtures: who computed what rows chose, and what the GPU has.
void Timing::print_experts(const pi_model* model) const {
    const Work& work = decoding();
    auto report = sized<pi_expert_report>();
    require(pi_model_experts(model, &report));
    const auto pairs = double(work.total(&pi_neuron_counts::pairs));
    if (!report.experts || pairs == 0) return;
    const auto percent = [&](int64_t pi_neuron_counts::*count) {
        return 100 * double(work.total(count)) / pairs;
    };
    const double gpu = percent(&pi_neuron_counts::device_pairs);
    const double disk = percent(&pi_neuron_counts::storage_pairs);
    char there[160] = "";
    if (report.device_room) {
        std::snprintf(there, sizeof there,
                      "; the GPU has %" PRId64 " of %" PRId64 " and room for %" PRId64 ", %" PRIu64
                      " were copied there (%.2f MB)",
                      report.device_has, report.experts, report.device_room, report.copies,
                      double(report.copied_bytes) * 1e-6);
    }
    say("  chosen experts = gpu %.2f %%, ram %.2f %%, storage %.2f %%%s\n", gpu, 100 - gpu - disk,
        disk, there);
}

void Timing::print_storage(const pi_storage_report& storage) const {
    const pi_work& sum = decoding().sum;
    const double rows = double(sum.rows);
    const double needed = double(sum.first_needed + sum.rest_needed);
    const double missed = double(sum.first_missed + sum.rest_missed);
    const char* const unit = storage.experts ? " of experts" : storage.blocks ? " of blocks" : "";
    char guesses[80] = "";
    if (sum.storage_guessed) {
        std::snprintf(guesses, sizeof guesses, ", %.1f experts read early (%.0f %% of them chosen)",
                      double(sum.storage_guessed) / rows,
                      100 * double(sum.storage_guessed_right) / double(sum.storage_guessed));
    }
    say("         storage = %10.2f %% hits%s; per token %.1f reads, %.2f MB by %s, waited "
        "%.2f ms%s\n",
        needed > 0 ? 100 * (1 - missed / needed) : 0, unit, double(sum.storage_reads) / rows,
        double(sum.storage_bytes) * 1e-6 / rows, storage.io,
        double(sum.waited_for_storage_ns) * 1e-6 / rows, guesses);
}
