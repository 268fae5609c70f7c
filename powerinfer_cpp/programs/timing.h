// What took how long, and what llama.cpp's programs say about it at the end.
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
    double first_token = 0;                               // from reading the prompt on
    int64_t n_prompt = 0, n_eval = 0, n_sampled = 0;
    std::vector<double> token_ms;  // of each evaluated token
    Work read, generated;          // what prompts and evaluated tokens cost
    int64_t n_ff = 0;              // neurons of a layer, or of one expert

    void print() const;
    void print_work() const;
    // The tokens that figures per token are about: the generated ones or, where there are none, the
    // prompt's.
    const Work& decoding() const { return generated.sum.rows ? generated : read; }
};
