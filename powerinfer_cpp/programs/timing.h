// Times of a run, printed at the end in the format of llama.cpp's programs.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "work.h"

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start);

struct Timing {
    Clock::time_point start = Clock::now();
    double load = 0, prompt = 0, eval = 0, sampling = 0;  // ms
    double first_token = 0;                               // ms since reading the prompt began
    int64_t n_prompt = 0, n_eval = 0, n_sampled = 0;
    std::vector<double> token_ms;  // of each evaluated token
    Work read, generated;          // work for prompts and for generated tokens
    std::vector<int64_t> n_ff;     // neurons of each layer, or of one of its experts

    void print(const pi_model* model) const;
    // The work for figures per token: of the generated tokens or, if there are none, of the prompt.
    const Work& decoding() const { return generated.sum.rows ? generated : read; }

 private:
    void print_work(const pi_model* model) const;
    void print_experts(const pi_model* model) const;
    void print_storage(const pi_storage_report& storage) const;
};
