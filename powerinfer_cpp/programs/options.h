// The command line of main. Parsing and --help use one table, in options.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "option_values.h"
#include "powerinfer.h"

struct Options {
    std::string model;   // "": the default model
    std::string prompt;  // any bytes
    bool prompt_given = false;
    std::string prompt_file;     // file to read the prompt from, "-": stdin; "": none
    bool prompt_binary = false;  // keep a newline at its end
    bool conversation = false;
    bool single_turn = false;               // of a conversation
    std::string system;                     // its system message; "": none
    std::string system_file;                // file to read it from; "": none
    std::string chat_template;              // a name or a template; "": the model's
    std::string chat_template_file;         // file to read it from; "": none
    bool interactive = false;               // the user continues the text, too
    bool interactive_first = false;         // and begins
    std::string in_prefix, in_suffix;       // texts around the user's
    std::string for_chat, for_interactive;  // given options that need these; "": none
    std::vector<std::string> stops;         // texts that end a generation
    bool escape = true;  // replace C escapes such as \n in the prompt and the user's texts
    bool display_prompt = true;
    enum class Switch { off, on, automatic } colour = Switch::automatic;
    int32_t n_predict = -1;  // -1: until an end token or until the context is full
    int32_t n_ctx = -1;      // -1: the model's, at most 4096; 0: the model's
    int32_t n_batch = 2048, n_ubatch = 512;
    int32_t n_threads = 0, n_threads_batch = 0;  // 0: pi_default_threads(), n_threads
    bool mmap = true, mlock = false, check_tensors = false, op_offload = true, bundle = true;
    pi_placement placement = PI_PLACEMENT_FILE;
    uint32_t type_k, type_v;  // GGUF type ids
    uint64_t ram_budget = 0;  // bytes; 0: what is free
    pi_sparse sparse = PI_SPARSE_AUTO;
    float sparse_threshold;                               // NaN: the file's
    std::vector<std::pair<std::string, float>> adapters;  // files and scales
    bool lora_allow_predictor = false;
    bool random_seed = true;
    bool ignore_eos = false;
    std::string device;         // "": a GPU if there is one
    int32_t n_gpu_layers = -1;  // of the last layers; -1: what fits
    uint64_t vram_budget = 0;   // bytes; 0: what is free
    bool use_gpu = true;        // false for -ngl 0, --vram-budget 0
    std::string for_gpu;        // given options that ask for a GPU; "": none
    std::string json_stats;     // file for statistics of the run; "": none
    pi_sampler_params sampler;
    bool log = true;        // messages on stderr
    std::string log_file;   // file for messages; "": none
    bool perf = true;       // print times
    std::string in_vain;    // given options without effect; "": none
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

// A row of the table of options.
struct Option {
    const char* names;     // separated by ", "
    const char* argument;  // for --help; nullptr: none. "[a|b]": optional
    const char* help;      // nullptr: accepted, but listed by its names only
    void (*set)(Options& options, Text option, Text value);
};
struct OptionTable {
    const Option *first, *last;
    const Option* begin() const { return first; }
    const Option* end() const { return last; }
};
OptionTable option_table();

// Throws UsageError.
Options parse_options(const std::vector<std::string>& arguments);
std::string help_text();
// A script for bash that completes the options.
std::string completion_text();
