// The command line of main: one table in options.cpp, from which parsing and --help are made.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "powerinfer.h"

struct Options {
    std::string model;   // "": the default model
    std::string prompt;  // any bytes
    bool prompt_given = false;
    std::string prompt_file;  // read instead of prompt; "": none
    bool conversation = false;
    bool single_turn = false;        // of a conversation
    std::string system;              // what the system says in it; "": nothing
    std::vector<std::string> stops;  // texts that end a generation
    bool escape = false;             // \n and its kin in these texts mean what they mean in C
    int32_t n_predict = -1;          // -1: until an end token or a full context
    int32_t n_ctx = -1;              // -1: the model's, at most 4096; 0: the model's
    int32_t n_batch = 2048, n_ubatch = 512;
    int32_t n_threads = 0, n_threads_batch = 0;  // 0: pi_default_threads(), n_threads
    bool mmap = true, mlock = false, check_tensors = false;
    bool gpu_index = true;    // look at MODEL.generated.gpuidx
    uint32_t type_k, type_v;  // GGUF type ids
    uint64_t ram_budget = 0;  // bytes; 0: what is free
    pi_sparse sparse = PI_SPARSE_AUTO;
    float sparse_threshold;  // NaN: the file's
    bool random_seed = true;
    bool ignore_eos = false;
    std::string for_gpu;     // options that ask for one; "": none
    std::string json_stats;  // file for the figures of the run; "": none
    pi_sampler_params sampler;
    int32_t verbosity = 2;  // messages up to this pi_log_callback level are shown

    enum class Action {
        generate,
        plan,
        help,
        version,
        list_devices,
        completion
    } action = Action::generate;

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
// A script with which bash completes the options.
std::string completion_text();
