// The command line of main. Parsing and --help use one table, in options.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "options/values.h"
#include "powerinfer.h"

// --override-kv.
struct Override {
    std::string key;
    pi_value_type type;
    int64_t integer = 0;
    double number = 0;
    std::string text;
};

struct Options {
    std::string model;   // "": the default model
    std::string prompt;  // any bytes
    bool prompt_given = false;
    std::string prompt_file;     // file to read the prompt from, "-": stdin; "": none
    bool prompt_binary = false;  // keep a newline at its end
    // on, off, or automatic: chat_by_itself() decides.
    enum class Switch { off, on, automatic } converse = Switch::automatic;
    bool conversation = false;              // what came of it
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
    bool stays = false;                     // main itself chats, where `powerinfer chat` could
    std::vector<std::string> given;  // options as `powerinfer chat` takes them, but for the model
    bool escape = true;  // replace C escapes such as \n in the prompt and the user's texts
    bool display_prompt = true;
    Switch colour = Switch::automatic;
    int32_t n_predict = -1;  // -1: until an end token or until the context is full
    int32_t n_ctx = -1;      // -1: the model's, at most 4096; 0: the model's
    int32_t n_batch = 2048, n_ubatch = 512;
    int32_t n_threads = 0, n_threads_batch = 0;  // 0: the default, n_threads
    bool mmap = true, mlock = false, check_tensors = false, op_offload = true, bundle = true;
    bool allow_unknown = false, mmap_anyway = false;
    pi_placement placement = PI_PLACEMENT_FILE;
    uint32_t type_k, type_v;  // GGUF type ids
    uint64_t ram_budget = 0;  // bytes; 0: what is free
    pi_sparse sparse = PI_SPARSE_AUTO;
    float sparse_threshold;                               // NaN: the file's
    std::vector<std::pair<std::string, float>> adapters;  // files and scales
    bool lora_allow_predictor = false;
    bool swa_full = false;  // layers with a window keep all positions
    bool random_seed = true;
    bool ignore_eos = false;
    std::string device;         // "": a GPU if there is one
    int32_t n_gpu_layers = -1;  // of the last layers; -1: what fits
    uint64_t vram_budget = 0;   // bytes; 0: what is free
    int32_t n_cpu_moe = 0;      // layers, the first ones, whose experts stay with the CPU
    std::string moved;          // -ot, which moved_experts() reads; "": none
    bool use_gpu = true;        // false for -ngl 0, --vram-budget 0
    std::string for_gpu;        // given options that ask for a GPU; "": none
    std::string json_stats;     // file for statistics of the run; "": none
    pi_sampler_params sampler;
    std::string samplers;  // names in their order, if they are given
    bool samplers_given = false;
    std::vector<std::string> dry_breakers = {"\n", ":", "\"", "*"};
    bool dry_breakers_given = false;
    std::vector<std::pair<int32_t, float>> logit_bias;
    std::vector<Override> overrides;
    pi_session_params session;  // those that only options set: RoPE
    std::string prompt_cache;   // file; "": none
    bool prompt_cache_all = false, prompt_cache_read_only = false;
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

// What rows of the table call for values that take more than a line to read (setters.cpp).
// Names with semicolons between, or letters, as in llama.cpp.
void set_samplers(Options& options, Text option, Text value);
void set_sampler_letters(Options& options, Text option, Text value);
// Adds a sequence breaker of DRY; the first one replaces the default ones, "none" removes all.
void add_dry_breaker(Options& options, Text option, Text value);
// TOKEN+BIAS or TOKEN-BIAS.
void add_logit_bias(Options& options, Text option, Text value);
// KEY=TYPE:VALUE.
void add_override(Options& options, Text option, Text value);
void set_rope_scaling(Options& options, Text option, Text value);
void set_rope_scale(Options& options, Text option, Text value);

// Throws UsageError.
Options parse_options(const std::vector<std::string>& arguments);
// May a conversation begin without -cnv, where the model has a chat template? Not if the options
// say what is to be written.
bool may_chat(const Options& options);
std::string help_text();
// A script for bash that completes the options.
std::string completion_text();
