// The command line of main: one table in options.cpp, from which parsing and --help are made.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "powerinfer.h"

struct Options {
    std::string model;        // "": the default model
    std::string prompt;       // any bytes
    std::string prompt_file;  // read instead of prompt; "": none
    bool escape = false;      // \n and its kin in the prompt mean what they mean in C
    int32_t n_predict = -1;   // -1: until an end token or a full context
    int32_t n_ctx = -1;       // -1: the model's, at most 4096; 0: the model's
    int32_t n_batch = 2048, n_ubatch = 512;
    int32_t n_threads = 0, n_threads_batch = 0;  // 0: pi_default_threads(), n_threads
    bool mmap = true, mlock = false, check_tensors = false;
    uint32_t type_k, type_v;  // GGUF type ids
    uint64_t ram_budget = 0;  // bytes; 0: what is free
    bool random_seed = true;
    bool ignore_eos = false;
    pi_sampler_params sampler;
    int32_t verbosity = 2;  // messages up to this pi_log_callback level are shown

    enum class Action { generate, plan, help, version, list_devices } action = Action::generate;

    Options();
};

// What is wrong with a command line, in one sentence.
class UsageError : public std::runtime_error {
 public:
    using std::runtime_error::runtime_error;
};

// Throws UsageError.
Options parse_options(int argc, const char* const* argv);
std::string help_text();
