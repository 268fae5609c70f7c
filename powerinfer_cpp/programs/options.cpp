#include "options.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

// ---- values -------------------------------------------------------------------------------------

using Text = const std::string&;

[[noreturn]] void bad_value(Text option, Text value, Text expected) {
    throw UsageError("option " + option + ": '" + value + "' is not " + expected);
}

int64_t integer(Text option, Text value, int64_t lo, int64_t hi) {
    char* end = nullptr;
    errno = 0;
    const long long n = std::strtoll(value.c_str(), &end, 10);
    // strtoll skips leading spaces; reject them.
    const bool whole =
        !value.empty() && !std::isspace(uint8_t(value[0])) && end == value.c_str() + value.size();
    if (!whole || errno == ERANGE || n < lo || n > hi)
        bad_value(option, value,
                  "a whole number from " + std::to_string(lo) + " to " + std::to_string(hi));
    return n;
}

double number(Text option, Text value, double lo, double hi, Text expected) {
    // strtod also reads hexadecimal numbers, "inf" and "nan"; reject them.
    const bool decimal =
        !value.empty() && value.find_first_not_of("0123456789+-.eE") == std::string::npos;
    char* end = nullptr;
    const double x = std::strtod(value.c_str(), &end);
    if (!decimal || end != value.c_str() + value.size() || !std::isfinite(x) || x < lo || x > hi)
        bad_value(option, value, expected);
    return x;
}

float real(Text option, Text value) {
    return float(number(option, value, -FLT_MAX, FLT_MAX, "a finite number"));
}

float share(Text option, Text value) {
    return float(number(option, value, 0, 1, "a number from 0 to 1"));
}

uint64_t gibibytes(Text option, Text value) {
    const double most = 1 << 24;  // 16 PiB: more than any machine, and safe to convert
    return uint64_t(number(option, value, 0, most, "a number of GiB") * double(1 << 30));
}

uint32_t cache_type(Text option, Text value) {
    std::string name = value;
    for (char& c : name) c = char(std::toupper(uint8_t(c)));
    uint32_t type;
    int64_t block, block_bytes;
    if ((name != "F16" && name != "Q8_0" && name != "F32") ||
        !pi_type_by_name(name.c_str(), &type, &block, &block_bytes))
        bad_value(option, value, "a type of the KV cache (f16, q8_0 or f32)");
    return type;
}

int32_t threads(Text option, Text value) {
    // -1 (as in llama.cpp) and 0 leave the choice to the engine.
    return std::max(int32_t(integer(option, value, -1, 1024)), 0);
}

// ---- the table ----------------------------------------------------------------------------------

struct Option {
    const char* names;     // separated by ", "
    const char* argument;  // for --help; nullptr: none. "[a|b]": optional
    const char* help;      // nullptr: accepted, but not listed
    void (*set)(Options& options, Text option, Text value);
};

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
template <bool Options::*field, bool value>
void set_flag(Options& o, Text, Text) {
    o.*field = value;
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

void set_prompt_file(Options& o, Text option, Text value) {
    if (value.empty()) bad_value(option, value, "the name of a file");
    o.prompt_file = value;
}

void set_model(Options& o, Text option, Text value) {
    if (value.empty()) bad_value(option, value, "the name of a file");
    o.model = value;
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

// Remembers an option that asks for a GPU, to say so if there is none.
void ask_for_gpu(Options& o, Text option) {
    if (o.for_gpu.find(option) != o.for_gpu.npos) return;
    o.for_gpu += (o.for_gpu.empty() ? "" : " and ") + option;
}

void set_gpu_layers(Options& o, Text option, Text value) {
    o.n_gpu_layers = -1;
    if (value == "auto") return;
    if (value != "all") o.n_gpu_layers = int32_t(integer(option, value, -1, INT32_MAX));
    if (o.n_gpu_layers == 0) o.use_gpu = false;
    if (value == "all" || o.n_gpu_layers > 0) ask_for_gpu(o, option);
}

void set_vram_budget(Options& o, Text option, Text value) {
    o.vram_budget = gibibytes(option, value);
    if (o.vram_budget == 0) {
        o.use_gpu = false;
    } else {
        ask_for_gpu(o, option);
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

void set_device(Options& o, Text option, Text value) {
    o.device = value;
    if (value == "cpu" || value == "simt") return;  // simt: of test builds
    for (int32_t i = 0; i < pi_n_devices(); i++)
        if (value == "cuda" + std::to_string(i)) return;
    const std::string note = pi_device_note() ? pi_device_note() : "";
    throw UsageError("option " + option + ": there is no device '" + value + "'" +
                     (note.empty() ? "" : " (" + note + ")") + "; cpu is available");
}

const Option table[] = {
    {"-h, --help", nullptr, "print this text and stop", set_action<Options::Action::help>},
    {"--version", nullptr, "print the version and stop", set_action<Options::Action::version>},
    {"--list-devices", nullptr, "print the devices that can compute and stop",
     set_action<Options::Action::list_devices>},
    {"-m, --model", "FILE", "the model, a GGUF file (default: models/stories-relu.Q8_0.gguf)",
     set_model},
    {"-p, --prompt", "TEXT",
     "the text to continue (default: stdin where that is a file or a pipe, else none)", set_prompt},
    {"-f, --file", "FILE", "read the prompt from a file", set_prompt_file},
    {"-cnv, --conversation", nullptr, "converse: each line of stdin is a message, -p the first",
     set_flag<&Options::conversation, true>},
    {"-sys, --system-prompt", "TEXT", "system message of a conversation",
     [](Options& o, Text, Text value) { o.system = value; }},
    {"-st, --single-turn", nullptr, "end the conversation after one answer",
     set_flag<&Options::single_turn, true>},
    {"-r, --reverse-prompt", "TEXT",
     "stop after this text was generated; can be given several times",
     [](Options& o, Text option, Text value) {
         if (value.empty()) bad_value(option, value, "a text");
         o.stops.push_back(value);
     }},
    {"-e, --escape", nullptr, "replace escapes such as \\n, \\t, \\\\ and \\x41 in these texts",
     set_flag<&Options::escape, true>},
    {"--no-escape", nullptr, nullptr, set_flag<&Options::escape, false>},
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
    {"--ignore-eos", nullptr, "never choose a token that ends the text",
     set_flag<&Options::ignore_eos, true>},
    {"-t, --threads", "N", "threads (default: the cores that this process may use)",
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
     "never write the bundled file from which a model runs that is larger than that memory",
     set_flag<&Options::bundle, false>},
    {"--bundle", nullptr, nullptr, set_flag<&Options::bundle, true>},
    {"--vram-budget", "GiB",
     "GPU memory that may be used, a hard ceiling; 0: none (default: what is free)",
     set_vram_budget},
    {"-ngl, --gpu-layers, --n-gpu-layers", "N|all|auto",
     "layers on the GPU, the last ones, the head counting as one more; 0: none (default: what "
     "fits)",
     set_gpu_layers},
    {"--device", "NAME", "cpu, or the GPU to use beside it: cuda0 (default: cuda0 if there is one)",
     set_device},
    {"--sparse", "MODE",
     "which neurons are computed: auto (default; generated tokens by predictor, prompts as exact), "
     "off (all), exact (all that are not zero), predictor",
     set_sparse},
    {"--sparse-threshold", "X",
     "predictor score below which a neuron is skipped (default: the file's)", set_sparse_threshold},
    {"-fa, --flash-attn", "[on|off|auto]",
     "accepted and ignored: attention never stores the full score matrix",
     [](Options&, Text, Text) {}},
    {"--no-mmap", nullptr, "read the model into memory instead of mapping it",
     set_flag<&Options::mmap, false>},
    {"--mmap", nullptr, nullptr, set_flag<&Options::mmap, true>},
    {"--mlock", nullptr, "keep the model in RAM", set_flag<&Options::mlock, true>},
    {"--check-tensors", nullptr, "refuse a model with weights that are not finite",
     set_flag<&Options::check_tensors, true>},
    {"--reset-gpu-index", nullptr,
     "choose the neurons for the GPU by firing rate, whatever the model's placement says",
     [](Options& o, Text, Text) { o.placement = PI_PLACEMENT_RATES; }},
    {"-nopo, --no-op-offload", nullptr,
     "prompts: the CPU computes the neurons in RAM (default: they are sent to the GPU)",
     set_flag<&Options::op_offload, false>},
    {"--op-offload", nullptr, nullptr, set_flag<&Options::op_offload, true>},
    {"--disable-gpu-index", nullptr, "no neurons on the GPU: the CPU computes them",
     [](Options& o, Text, Text) { o.placement = PI_PLACEMENT_NONE; }},
    {"--plan", nullptr, "print the memory that the model would take and stop",
     set_action<Options::Action::plan>},
    {"--json-stats", "FILE", "write statistics of the run to a file, as JSON",
     [](Options& o, Text option, Text value) {
         if (value.empty()) bad_value(option, value, "the name of a file");
         o.json_stats = value;
     }},
    {"--completion-bash", nullptr, "print a script that completes these options in bash, and stop",
     set_action<Options::Action::completion>},
    {"-v, --verbose", nullptr, "print all messages",
     [](Options& o, Text, Text) { o.verbosity = INT32_MAX; }},
    {"-lv, --verbosity, --log-verbosity", "N",
     "print messages up to level N: 1 errors, 2 warnings (default), 3 information, 4 details",
     [](Options& o, Text option, Text value) {
         o.verbosity = int32_t(integer(option, value, 0, 5));
     }},

    // Options of PowerInfer and llama.cpp that are the default here.
    {"-no-cnv, --no-conversation", nullptr, nullptr, set_flag<&Options::conversation, false>},
    {"--no-warmup", nullptr, nullptr, [](Options&, Text, Text) {}},
};

// ---- names --------------------------------------------------------------------------------------

std::vector<std::string> split(const std::string& text, const std::string& separator) {
    std::vector<std::string> parts;
    size_t begin = 0, end;
    while ((end = text.find(separator, begin)) != std::string::npos) {
        parts.push_back(text.substr(begin, end - begin));
        begin = end + separator.size();
    }
    parts.push_back(text.substr(begin));
    return parts;
}

const Option* find(Text name) {
    for (const Option& option : table)
        for (const std::string& candidate : split(option.names, ", "))
            if (candidate == name) return &option;
    return nullptr;
}

// The number of insertions, deletions, replacements and swaps of neighbours between two texts
// (Damerau-Levenshtein).
size_t distance(Text a, Text b) {
    std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
    for (size_t i = 0; i <= a.size(); i++)
        for (size_t j = 0; j <= b.size(); j++) {
            if (i == 0 || j == 0) {
                d[i][j] = i + j;
                continue;
            }
            d[i][j] = std::min(
                {d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
        }
    return d[a.size()][b.size()];
}

// The listed option closest to an unknown name, or "" if none is close.
std::string suggestion(std::string name) {
    if (name.size() > 40) return "";  // no option is that long
    for (char& c : name) c = char(std::tolower(uint8_t(c)));
    std::string best;
    size_t least = name.size() / 4 + 2;
    for (const Option& option : table) {
        if (!option.help) continue;
        for (const std::string& candidate : split(option.names, ", ")) {
            if (candidate.compare(0, 2, "--") != 0) continue;
            // A shortened name, or one with a single dash, counts as close.
            const bool one_dash = "-" + name == candidate;
            const bool begun = name.size() > 4 && candidate.compare(0, name.size(), name) == 0;
            const size_t d = one_dash ? 0 : begun ? 1 : distance(name, candidate);
            if (d < least && d < candidate.size() - 2) {
                least = d;
                best = candidate;
            }
        }
    }
    return best;
}

[[noreturn]] void unknown(Text name) {
    if (name.empty() || name[0] != '-')
        throw UsageError("'" + name + "' is not an option; the prompt is given with -p");
    const std::string close = suggestion(name);
    throw UsageError("option " + name + " is unknown" +
                     (close.empty() ? "; --help lists them all" : "; did you mean " + close + "?"));
}

// Is value one of the words of an argument like "[on|off]"?
bool is_word(const std::string& argument, Text value) {
    for (const std::string& word : split(argument.substr(1, argument.size() - 2), "|"))
        if (word == value) return true;
    return false;
}

}  // namespace

Options::Options() : sampler(pi_sampler_default_params()) {
    const pi_session_params session = pi_session_default_params();
    type_k = session.type_k;
    type_v = session.type_v;
    sparse_threshold = session.sparse_threshold;
}

Options parse_options(const std::vector<std::string>& arguments) {
    Options options;
    for (size_t i = 1; i < arguments.size(); i++) {
        const std::string& given = arguments[i];
        // --top_k is read as --top-k, as in llama.cpp. --top-k=40 is accepted too.
        std::string name =
            given.substr(0, given.compare(0, 2, "--") == 0 ? given.find('=') : given.npos);
        const bool has_value = name.size() < given.size();
        if (name.compare(0, 2, "--") == 0) std::replace(name.begin(), name.end(), '_', '-');
        const Option* option = find(name);
        if (!option) unknown(name);

        std::string value = has_value ? given.substr(name.size() + 1) : "";
        if (!option->argument) {
            if (has_value) throw UsageError("option " + name + " takes no value");
        } else if (!has_value && option->argument[0] == '[') {
            if (i + 1 < arguments.size() && is_word(option->argument, arguments[i + 1]))
                value = arguments[++i];
        } else if (!has_value) {
            if (i + 1 == arguments.size())
                throw UsageError("option " + name + " needs a value: " + option->argument);
            value = arguments[++i];
        } else if (option->argument[0] == '[' && !is_word(option->argument, value)) {
            bad_value(name, value, std::string("one of ") + option->argument);
        }
        option->set(options, name, value);
    }
    if (!options.conversation && (options.single_turn || !options.system.empty()))
        throw UsageError(std::string("option ") + (options.single_turn ? "-st" : "-sys") +
                         " needs -cnv, which starts a conversation");
    return options;
}

std::string help_text() {
    std::string text =
        "Continues a text with a language model, or holds a conversation with it. The text goes to "
        "stdout, everything else to stderr.\n\n"
        "usage: main [options]\n\n";
    constexpr size_t column = 36;
    for (const Option& option : table) {
        if (!option.help) continue;
        std::string left = "  " + std::string(option.names);
        if (option.argument) left += " " + std::string(option.argument);
        if (left.size() + 2 > column) {
            left += "\n" + std::string(column, ' ');
        } else {
            left.resize(column, ' ');
        }
        text += left + option.help + "\n";
    }
    return text;
}

std::string completion_text() {
    std::string names, files;
    for (const Option& option : table) {
        if (!option.help) continue;
        for (const std::string& name : split(option.names, ", ")) {
            names += (names.empty() ? "" : " ") + name;
            if (option.argument && !std::strcmp(option.argument, "FILE"))
                files += (files.empty() ? "" : "|") + name;
        }
    }
    return "_powerinfer_main() {\n"
           "    local word=\"${COMP_WORDS[COMP_CWORD]}\" before=\"${COMP_WORDS[COMP_CWORD-1]}\"\n"
           "    case \"$before\" in\n"
           "        " +
           files +
           ") COMPREPLY=($(compgen -f -- \"$word\")) ;;\n"
           "        *) COMPREPLY=($(compgen -W \"" +
           names +
           "\" -- \"$word\")) ;;\n"
           "    esac\n"
           "}\n"
           "complete -o filenames -F _powerinfer_main main ./main\n";
}
