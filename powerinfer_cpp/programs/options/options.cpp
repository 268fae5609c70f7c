#include "options/options.h"

#include <algorithm>
#include <cerrno>
#include <cfloat>
#include <climits>
#include <cstdlib>
#include <iterator>

namespace {

template <int32_t pi_sampler_params::*field>
void set_integer(Options& o, Text option, Text value) {
    o.sampler.*field = int32_t(integer(option, value, INT32_MIN, INT32_MAX));
}
template <float pi_sampler_params::*field>
void set_real(Options& o, Text option, Text value) {
    o.sampler.*field = real(option, value);
}
template <float pi_sampler_params::*field>
void set_share(Options& o, Text option, Text value) {
    o.sampler.*field = share(option, value);
}
template <float pi_session_params::*field>
void set_rope(Options& o, Text option, Text value) {
    o.session.*field = real(option, value);
}
template <bool Options::*field, bool value>
void set_flag(Options& o, Text, Text) {
    o.*field = value;
}
template <Options::Switch value>
void set_converse(Options& o, Text, Text) {
    o.converse = value;
    o.conversation = value == Options::Switch::on;
}
template <Options::Action action>
void set_action(Options& o, Text, Text) {
    o.action = action;
}
void set_prompt(Options& o, Text, Text value) {
    o.prompt = value;
    o.prompt_given = true;
    o.prompt_file.clear();
}

template <std::string Options::*field>
void set_file(Options& o, Text option, Text value) {
    if (value.empty()) bad_value(option, value, "the name of a file");
    o.*field = value;
}

template <bool binary>
void set_prompt_file(Options& o, Text option, Text value) {
    set_file<&Options::prompt_file>(o, option, value);
    o.prompt_binary = binary;
}

// Options with a text: for a conversation (needed = for_chat) or interactive mode, where the text
// of a file (other) no longer counts.
template <std::string Options::*field, std::string Options::*needed>
void set_text(Options& o, Text option, Text value) {
    o.*field = value;
    o.*needed = option;
    if (field == &Options::system) o.system_file.clear();
    if (field == &Options::chat_template) o.chat_template_file.clear();
}

template <std::string Options::*field>
void set_chat_file(Options& o, Text option, Text value) {
    set_file<field>(o, option, value);
    o.for_chat = option;
}

template <int64_t lo, int64_t hi>
void ignore_integer(Options&, Text option, Text value) {
    integer(option, value, lo, hi);
}
void ignore(Options&, Text, Text) {}

void set_colour(Options& o, Text, Text value) {
    if (value.empty() || value == "on") {
        o.colour = Options::Switch::on;
    } else if (value == "off") {
        o.colour = Options::Switch::off;
    } else {
        o.colour = Options::Switch::automatic;
    }
}

void set_load_mode(Options& o, Text option, Text value) {
    static const char* const modes[] = {"auto", "none", "mmap", "mlock", "mmap+mlock"};
    const bool known = std::any_of(std::begin(modes), std::end(modes),
                                   [&](const char* mode) { return value == mode; });
    if (!known) bad_value(option, value, "a mode (auto, none, mmap, mlock or mmap+mlock)");
    o.mmap = value != "none" && value != "mlock";
    o.mlock = value == "mlock" || value == "mmap+mlock";
}

void set_seed(Options& o, Text option, Text value) {
    o.random_seed = value == "-1";
    if (o.random_seed) return;
    char* end = nullptr;
    errno = 0;
    o.sampler.seed = std::strtoull(value.c_str(), &end, 10);
    const bool digits =
        !value.empty() && value.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || errno == ERANGE) bad_value(option, value, "-1 or a whole number below 2^64");
}

void set_repeat_penalty(Options& o, Text option, Text value) {
    o.sampler.repeat_penalty = float(number(option, value, FLT_MIN, FLT_MAX, "a number above 0"));
}

void set_repeat_last_n(Options& o, Text option, Text value) {
    o.sampler.repeat_last_n = int32_t(integer(option, value, -1, INT32_MAX));
}

void set_ram_budget(Options& o, Text option, Text value) {
    o.ram_budget = gibibytes(option, value);
    if (o.ram_budget == 0) bad_value(option, value, "a number of GiB above 0");
}

// Remembers an option that has no effect, or none without a GPU, to say so.
void remember(std::string& options, Text option) {
    if (options.find(option) != options.npos) return;
    options += (options.empty() ? "" : " and ") + option;
}

void set_gpu_layers(Options& o, Text option, Text value) {
    o.n_gpu_layers = -1;
    if (value == "auto") return;
    if (value != "all") o.n_gpu_layers = int32_t(integer(option, value, -1, INT32_MAX));
    if (o.n_gpu_layers == 0) o.use_gpu = false;
    if (value == "all" || o.n_gpu_layers > 0) remember(o.for_gpu, option);
}

void set_vram_budget(Options& o, Text option, Text value) {
    o.vram_budget = gibibytes(option, value);
    if (o.vram_budget == 0) {
        o.use_gpu = false;
    } else {
        remember(o.for_gpu, option);
    }
}

void set_sparse(Options& o, Text option, Text value) {
    static const std::pair<const char*, pi_sparse> modes[] = {{"auto", PI_SPARSE_AUTO},
                                                              {"off", PI_SPARSE_OFF},
                                                              {"exact", PI_SPARSE_EXACT},
                                                              {"predictor", PI_SPARSE_PREDICTOR}};
    for (const auto& [name, mode] : modes) {
        if (value != name) continue;
        o.sparse = mode;
        return;
    }
    bad_value(option, value, "a mode (auto, off, exact or predictor)");
}

void set_sparse_threshold(Options& o, Text option, Text value) {
    o.sparse_threshold = real(option, value);
}

// Several names are separated by commas, as in llama.cpp.
void add_adapters(Options& o, Text option, Text value) {
    for (const std::string& file : split(value, ",")) {
        if (file.empty()) bad_value(option, value, "the name of a file");
        o.adapters.emplace_back(file, 1.0f);
    }
}

void add_scaled_adapters(Options& o, Text option, Text value) {
    for (const std::string& part : split(value, ",")) {
        const size_t colon = part.rfind(':');
        if (colon == part.npos || colon == 0)
            bad_value(option, value, "the name of a file and a scale, FILE:SCALE");
        o.adapters.emplace_back(part.substr(0, colon), real(option, part.substr(colon + 1)));
    }
}

void set_device(Options& o, Text option, Text value) {
    o.device = value == "none" ? "cpu" : value;
    if (o.device == "cpu" || value == "simt") return;  // simt: of test builds
    for (int32_t i = 0; i < pi_n_devices(); i++)
        if (value == "cuda" + std::to_string(i)) return;
    const std::string note = pi_device_note() ? pi_device_note() : "";
    throw UsageError("option " + option + ": there is no device '" + value + "'" +
                     (note.empty() ? "" : " (" + note + ")") + "; cpu is available");
}

const Option table[] = {
    {"-h, --help, --usage", nullptr, "print this text and stop", set_action<Options::Action::help>},
    {"--version", nullptr, "print the version and stop", set_action<Options::Action::version>},
    {"--list-devices", nullptr, "print the devices that can compute and stop",
     set_action<Options::Action::list_devices>},
    {"-m, --model", "FILE", "the model, a GGUF file (default: models/stories-relu.Q8_0.gguf)",
     set_file<&Options::model>},
    {"-p, --prompt", "TEXT",
     "the text to continue (default: stdin where that is a file or a pipe, else none)", set_prompt},
    {"-f, --file", "FILE", "read the prompt from a file, less one newline at its end; -: stdin",
     set_prompt_file<false>},
    {"-bf, --binary-file", "FILE", "read the prompt from a file, with a newline at its end",
     set_prompt_file<true>},
    {"--no-display-prompt", nullptr, "do not print the prompt",
     set_flag<&Options::display_prompt, false>},
    {"--display-prompt", nullptr, nullptr, set_flag<&Options::display_prompt, true>},
    {"-co, --color", "[on|off|auto]",
     "colours for the prompt and for what the user types (default: auto, on terminals)",
     set_colour},
    {"-cnv, --conversation", nullptr,
     "converse: each line of stdin is a message, -p the first (default: on a terminal, where the "
     "model has a known chat template and there is no -p, -f or -i)",
     set_converse<Options::Switch::on>},
    {"-no-cnv, --no-conversation", nullptr, "continue a text, also on a terminal",
     set_converse<Options::Switch::off>},
    {"--simple-io", nullptr,
     "chat with main itself on a terminal, where `powerinfer chat` is beside it and would do it",
     set_flag<&Options::stays, true>},
    {"-sys, --system-prompt, --system", "TEXT", "system message of a conversation",
     set_text<&Options::system, &Options::for_chat>},
    {"-sysf, --system-prompt-file", "FILE", "read the system message from a file",
     set_chat_file<&Options::system_file>},
    {"-st, --single-turn", nullptr, "end the conversation after one answer",
     [](Options& o, Text option, Text) {
         o.single_turn = true;
         o.for_chat = option;
     }},
    {"--chat-template", "NAME",
     "chat format instead of the model's: chatml, llama2, llama2-sys, llama2-sys-bos, "
     "llama2-sys-strip, llama3, mistral-v1, mistral-v3, mistral-v3-tekken, gemma, zephyr, or a "
     "template of one of these kinds",
     set_text<&Options::chat_template, &Options::for_chat>},
    {"--chat-template-file", "FILE", "read the template from a file",
     set_chat_file<&Options::chat_template_file>},
    {"-i, --interactive", nullptr,
     "where the text ends (also by -r, -n or Ctrl-C), a line of stdin continues it",
     set_flag<&Options::interactive, true>},
    {"-if, --interactive-first", nullptr, "the same, and a line of stdin follows the prompt",
     [](Options& o, Text, Text) { o.interactive = o.interactive_first = true; }},
    {"--in-prefix", "TEXT", "text before each line of -i",
     set_text<&Options::in_prefix, &Options::for_interactive>},
    {"--in-suffix", "TEXT", "text after each line of -i",
     set_text<&Options::in_suffix, &Options::for_interactive>},
    {"-r, --reverse-prompt", "TEXT",
     "stop after this text was generated; can be given several times",
     [](Options& o, Text option, Text value) {
         if (value.empty()) bad_value(option, value, "a text");
         o.stops.push_back(value);
     }},
    {"--no-escape", nullptr,
     "leave escapes such as \\n, \\t, \\\\ and \\x41 in the prompt and in texts of -i, -r, "
     "--in-prefix "
     "and --in-suffix (default: they are replaced)",
     set_flag<&Options::escape, false>},
    {"-e, --escape", nullptr, nullptr, set_flag<&Options::escape, true>},
    {"-n, --predict, --n-predict", "N",
     "tokens to generate (default: -1, until the text or the context ends)",
     [](Options& o, Text option, Text value) {
         // llama.cpp's -2, until the context is full, is what -1 does here.
         o.n_predict = int32_t(integer(option, value, -2, INT32_MAX));
     }},
    {"-c, --ctx-size", "N",
     "positions of the context; 0: the model's (default: the model's, at most 4096)",
     [](Options& o, Text option, Text value) {
         o.n_ctx = int32_t(integer(option, value, 0, INT32_MAX));
     }},
    {"-s, --seed", "N", "seed of the random draws; -1: a new one each time (default)", set_seed},
    {"--temp, --temperature", "X", "temperature; 0: always the likeliest token (default: 0.8)",
     set_real<&pi_sampler_params::temperature>},
    {"--top-k", "N", "keep the N likeliest tokens; 0: all (default: 40)",
     set_integer<&pi_sampler_params::top_k>},
    {"--top-p", "X",
     "keep the likeliest tokens whose probabilities reach X; 1: off (default: 0.95)",
     set_share<&pi_sampler_params::top_p>},
    {"--min-p", "X",
     "keep tokens at least X times as likely as the likeliest; 0: off (default: 0.05)",
     set_share<&pi_sampler_params::min_p>},
    {"--typical, --typical-p", "X", "locally typical sampling; 1: off (default: 1)",
     set_share<&pi_sampler_params::typical_p>},
    {"--repeat-penalty", "X", "penalty for tokens that occurred; 1: off (default: 1)",
     set_repeat_penalty},
    {"--repeat-last-n", "N", "number of last tokens that penalties consider; -1: all (default: 64)",
     set_repeat_last_n},
    {"--frequency-penalty", "X", "penalty times how often a token occurred (default: 0)",
     set_real<&pi_sampler_params::frequency_penalty>},
    {"--presence-penalty", "X", "penalty for a token that occurred at all (default: 0)",
     set_real<&pi_sampler_params::presence_penalty>},
    {"--top-n-sigma, --top-nsigma", "X",
     "keep logits within X standard deviations of the best; -1: off (default: -1)",
     set_real<&pi_sampler_params::top_n_sigma>},
    {"--xtc-probability", "X",
     "how often to exclude the top choices (XTC): of the tokens that reach the threshold, all but "
     "the least likely; 0: off (default: 0)",
     set_share<&pi_sampler_params::xtc_probability>},
    {"--xtc-threshold", "X", "probability of a top choice; above 0.5: off (default: 0.1)",
     set_share<&pi_sampler_params::xtc_threshold>},
    {"--dynatemp-range", "X",
     "temperature lower or higher by up to X, as the model is sure or unsure; 0: off (default: 0)",
     set_real<&pi_sampler_params::dynatemp_range>},
    {"--dynatemp-exp", "X", "exponent of dynamic temperature (default: 1)",
     set_real<&pi_sampler_params::dynatemp_exponent>},
    {"--mirostat", "N",
     "mirostat instead of the filters above, but with temperature: 1, 2, or 0: off (default: 0)",
     set_integer<&pi_sampler_params::mirostat_mode>},
    {"--mirostat-ent", "X", "mirostat's tau, the surprise to keep, in bits (default: 5)",
     set_real<&pi_sampler_params::mirostat_tau>},
    {"--mirostat-lr", "X", "mirostat's eta, how fast it learns (default: 0.1)",
     set_real<&pi_sampler_params::mirostat_eta>},
    {"--dry-multiplier", "X",
     "penalty for tokens that would continue a repetition (DRY); 0: off (default: 0)",
     set_real<&pi_sampler_params::dry_multiplier>},
    {"--dry-base", "X", "factor of the penalty for each further token (default: 1.75)",
     set_real<&pi_sampler_params::dry_base>},
    {"--dry-allowed-length", "N", "tokens that may be repeated freely (default: 2)",
     set_integer<&pi_sampler_params::dry_allowed_length>},
    {"--dry-penalty-last-n", "N", "number of last tokens that DRY considers; -1: all (default)",
     set_integer<&pi_sampler_params::dry_penalty_last_n>},
    {"--dry-sequence-breaker", "TEXT",
     "where repetitions end, in place of the default ones (newline, :, \" and *); can be given "
     "several times; none: nowhere",
     add_dry_breaker},
    {"--samplers", "NAMES",
     "samplers in their order, others are off (default: "
     "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature)",
     set_samplers},
    {"--sampler-seq, --sampling-seq", "LETTERS", "the same by letters (default: edskypmxt)",
     set_sampler_letters},
    {"-l, --logit-bias", "ID(+/-)X",
     "add X to the logit of a token, e.g. 15043-1; can be given several times", add_logit_bias},
    {"--override-kv", "KEY=TYPE:VALUE",
     "a value in place of the model's, of type int, float, bool or str; can be given several times",
     add_override},
    {"--rope-scaling", "KIND", "scaling of positions: none, linear or yarn (default: the model's)",
     set_rope_scaling},
    {"--rope-scale", "X", "factor by which the context is longer than in training", set_rope_scale},
    {"--rope-freq-base", "X", "base of RoPE's frequencies (default: the model's)",
     set_rope<&pi_session_params::rope_freq_base>},
    {"--rope-freq-scale", "X", "factor of RoPE's frequencies: 1 / --rope-scale",
     set_rope<&pi_session_params::rope_freq_scale>},
    {"--yarn-orig-ctx", "N", "YaRN: positions in training (default: the model's)",
     [](Options& o, Text option, Text value) {
         o.session.yarn_orig_ctx = int32_t(integer(option, value, 0, INT32_MAX));
     }},
    {"--yarn-ext-factor", "X",
     "YaRN: how far fast frequencies stay as they are; 0: not at all (default: 1 with YaRN)",
     set_rope<&pi_session_params::yarn_ext_factor>},
    {"--yarn-attn-factor", "X", "YaRN: factor of the attention's magnitude (default: the model's)",
     set_rope<&pi_session_params::yarn_attn_factor>},
    {"--yarn-beta-fast", "X",
     "YaRN: turns in training from which a frequency is fast (default: the model's, or 32)",
     set_rope<&pi_session_params::yarn_beta_fast>},
    {"--yarn-beta-slow", "X",
     "YaRN: turns in training up to which it is slow (default: the model's, or 1)",
     set_rope<&pi_session_params::yarn_beta_slow>},
    {"--prompt-cache", "FILE",
     "keep what is computed of the prompt in a file, from which the next run takes a common "
     "beginning",
     set_file<&Options::prompt_cache>},
    {"--prompt-cache-all", nullptr, "keep the generated text there, too",
     set_flag<&Options::prompt_cache_all, true>},
    {"--prompt-cache-ro", nullptr, "never write that file",
     set_flag<&Options::prompt_cache_read_only, true>},
    {"--ignore-eos", nullptr, "never choose a token that ends the text",
     set_flag<&Options::ignore_eos, true>},
    {"-t, --threads", "N", "threads (default: the physical cores that this process may use)",
     [](Options& o, Text option, Text value) { o.n_threads = threads(option, value); }},
    {"-tb, --threads-batch", "N", "threads for the prompt (default: as -t)",
     [](Options& o, Text option, Text value) { o.n_threads_batch = threads(option, value); }},
    {"-b, --batch-size", "N", "tokens of the prompt per call (default: 2048)",
     [](Options& o, Text option, Text value) {
         o.n_batch = int32_t(integer(option, value, 1, 1 << 20));
     }},
    {"-ub, --ubatch-size", "N", "tokens computed at once (default: 512)",
     [](Options& o, Text option, Text value) {
         o.n_ubatch = int32_t(integer(option, value, 1, 1 << 20));
     }},
    {"-ctk, --cache-type-k", "TYPE", "type of the keys in the KV cache: f16 (default), q8_0, f32",
     [](Options& o, Text option, Text value) { o.type_k = cache_type(option, value); }},
    {"-ctv, --cache-type-v", "TYPE", "type of the values in the KV cache: f16 (default), q8_0, f32",
     [](Options& o, Text option, Text value) { o.type_v = cache_type(option, value); }},
    {"--ram-budget", "GiB", "memory that may be used, a hard ceiling (default: what is free)",
     set_ram_budget},
    {"--no-bundle", nullptr,
     "write no bundled file, nor a list of what was in memory, for a model that is larger",
     set_flag<&Options::bundle, false>},
    {"--bundle", nullptr, nullptr, set_flag<&Options::bundle, true>},
    {"--mmap-anyway", nullptr,
     "run a dense model that is larger than that memory, slowly: each token reads what does not "
     "fit (default: it is refused)",
     set_flag<&Options::mmap_anyway, true>},
    {"--vram-budget", "GiB",
     "GPU memory that may be used, a hard ceiling; 0: none (default: what is free)",
     set_vram_budget},
    {"-ngl, --gpu-layers, --n-gpu-layers", "N|all|auto",
     "layers on the GPU, the last ones, the head counting as one more; 0: none (default: what "
     "fits)",
     set_gpu_layers},
    {"-ncmoe, --n-cpu-moe", "N",
     "the experts of the first N layers stay with the CPU, as in llama.cpp (default: 0; which "
     "experts are on the GPU follows the text)",
     [](Options& o, Text option, Text value) {
         o.n_cpu_moe = int32_t(integer(option, value, 0, INT32_MAX));
     }},
    {"-cmoe, --cpu-moe", nullptr, "the experts of all layers stay with the CPU",
     [](Options& o, Text, Text) { o.n_cpu_moe = INT32_MAX; }},
    {"-ot, --override-tensor", "PATTERN=CPU",
     "the same by names of tensors, where these are the experts of the first layers",
     [](Options& o, Text option, Text value) {
         o.moved += (o.moved.empty() ? "" : ",") + value;
         remember(o.for_gpu, option);
     }},
    {"-dev, --device", "NAME",
     "cpu (or none), or the GPU to use beside it: cuda0 (default: cuda0 if there is one)",
     set_device},
    {"--sparse", "MODE",
     "which neurons are computed: auto (default; generated tokens by predictor, prompts as exact), "
     "off (all), exact (all that are not zero), predictor",
     set_sparse},
    {"--sparse-threshold", "X",
     "predictor score below which a neuron is skipped (default: the file's)", set_sparse_threshold},
    {"--lora", "FILE", "a LoRA adapter, a GGUF file; can be given several times", add_adapters},
    {"--lora-scaled", "FILE:SCALE", "the same with a scale", add_scaled_adapters},
    {"--lora-allow-predictor", nullptr,
     "use predictors with adapters, too, for which they were not made",
     set_flag<&Options::lora_allow_predictor, true>},
    {"--swa-full", nullptr, "layers with a window keep what is behind it of all positions",
     set_flag<&Options::swa_full, true>},
    {"-fa, --flash-attn", "[on|off|auto]",
     "accepted and ignored: attention never stores the full score matrix", ignore},
    {"--no-mmap", nullptr, "read the model into memory instead of mapping it",
     set_flag<&Options::mmap, false>},
    {"--mmap", nullptr, nullptr, set_flag<&Options::mmap, true>},
    {"-lm, --load-mode", "MODE", "these two in one: auto, none, mmap, mlock or mmap+mlock",
     set_load_mode},
    {"--mlock", nullptr, "keep the model in RAM", set_flag<&Options::mlock, true>},
    {"--check-tensors", nullptr, "refuse a model with weights that are not finite",
     set_flag<&Options::check_tensors, true>},
    {"--allow-unknown", nullptr,
     "run a file without keys and tensors that change results and are not known here (default: it "
     "is refused)",
     set_flag<&Options::allow_unknown, true>},
    {"--reset-gpu-index", nullptr,
     "choose the neurons for the GPU by firing rate, whatever the model's placement says",
     [](Options& o, Text, Text) { o.placement = PI_PLACEMENT_RATES; }},
    {"-nopo, --no-op-offload", nullptr,
     "prompts: the CPU computes the neurons in RAM (default: they are sent to the GPU)",
     set_flag<&Options::op_offload, false>},
    {"--op-offload", nullptr, nullptr, set_flag<&Options::op_offload, true>},
    {"--disable-gpu-index", nullptr, "no neurons on the GPU: the CPU computes them",
     [](Options& o, Text, Text) { o.placement = PI_PLACEMENT_NONE; }},
    {"--plan", nullptr,
     "print the memory that the model would take and stop; exit status 3 if it does not fit",
     set_action<Options::Action::plan>},
    {"--json-stats", "FILE", "write statistics of the run to a file, as JSON",
     set_file<&Options::json_stats>},
    {"--completion-bash", nullptr, "print a script that completes these options in bash, and stop",
     set_action<Options::Action::completion>},
    {"--no-perf, --no-show-timings", nullptr, "do not print times at the end",
     set_flag<&Options::perf, false>},
    {"--perf, --show-timings", nullptr, nullptr, set_flag<&Options::perf, true>},
    {"--log-disable", nullptr, "print errors only", set_flag<&Options::log, false>},
    {"--log-file", "FILE", "write messages to a file as well", set_file<&Options::log_file>},
    {"-v, --verbose, --log-verbose", nullptr, "print all messages",
     [](Options& o, Text, Text) { o.verbosity = INT32_MAX; }},
    {"-lv, --verbosity, --log-verbosity", "N",
     "print messages up to level N: 1 errors, 2 warnings (default), 3 information, 4 details",
     [](Options& o, Text option, Text value) {
         o.verbosity = int32_t(integer(option, value, 0, 5));
     }},

    // Options of PowerInfer and llama.cpp without effect here: what they ask for is always so, or
    // changes the time only.
    {"--warmup, --no-warmup, --no-context-shift, --no-jinja, --offline", nullptr, nullptr, ignore},
    {"--prio, --prio-batch", "N", nullptr, ignore_integer<-1, 3>},
    {"--poll, --poll-batch", "N", nullptr, ignore_integer<0, 100>},
    {"--cpu-strict, --cpu-strict-batch", "N", nullptr, ignore_integer<0, 1>},
    {"--context-shift", nullptr, nullptr,
     [](Options& o, Text option, Text) { remember(o.in_vain, option); }},
    {"--keep", "N", nullptr,
     [](Options& o, Text option, Text value) {
         if (integer(option, value, -1, INT32_MAX)) remember(o.in_vain, option);
     }},
};

}  // namespace

Options::Options() : sampler(pi_sampler_default_params()), session(pi_session_default_params()) {
    type_k = session.type_k;
    type_v = session.type_v;
    sparse_threshold = session.sparse_threshold;
}

OptionTable option_table() {
    return {std::begin(table), std::end(table)};
}
