// The command line of main. Parsing and --help use one table, in options.cpp (option_table.h).
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
    std::string prompt_file;  // file to read the prompt from; "": none
    bool conversation = false;
    bool single_turn = false;        // of a conversation
    std::string system;              // its system message; "": none
    std::vector<std::string> stops;  // texts that end a generation
    bool escape = false;             // replace C escapes such as \n in these texts
    int32_t n_predict = -1;          // -1: until an end token or until the context is full
    int32_t n_ctx = -1;              // -1: the model's, at most 4096; 0: the model's
    int32_t n_batch = 2048, n_ubatch = 512;
    int32_t n_threads = 0, n_threads_batch = 0;  // 0: pi_default_threads(), n_threads
    bool mmap = true, mlock = false, check_tensors = false, op_offload = true, bundle = true;
    pi_placement placement = PI_PLACEMENT_FILE;
    uint32_t type_k, type_v;  // GGUF type ids
    uint64_t ram_budget = 0;  // bytes; 0: what is free
    pi_sparse sparse = PI_SPARSE_AUTO;
    float sparse_threshold;  // NaN: the file's
    bool random_seed = true;
    bool ignore_eos = false;
    std::string device;         // "": a GPU if there is one
    int32_t n_gpu_layers = -1;  // of the last layers; -1: what fits
    uint64_t vram_budget = 0;   // bytes; 0: what is free
    bool use_gpu = true;        // false for -ngl 0, --vram-budget 0
    std::string for_gpu;        // given options that ask for a GPU; "": none
    std::string json_stats;     // file for statistics of the run; "": none
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

// A wrong command line; the message is one sentence.
class UsageError : public std::runtime_error {
 public:
    using std::runtime_error::runtime_error;
};

// Throws UsageError.
Options parse_options(const std::vector<std::string>& arguments);
std::string help_text();
// A script for bash that completes the options.
std::string completion_text();
