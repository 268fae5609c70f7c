// Reading a command line, --help and --completion-bash, from the table of options.
#include <algorithm>
#include <cctype>
#include <cstring>
#include <vector>

#include "console/console.h"
#include "options/options.h"

namespace {

const Option* find(Text name) {
    for (const Option& option : option_table())
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
    for (const Option& option : option_table()) {
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

// Options of llama.cpp that programs in Python have, with the names of these.
const struct {
    const char *names, *programs;
} elsewhere[] = {
    {"--grammar, --grammar-file, -j, --json-schema, -jf, --json-schema-file",
     "`powerinfer complete` and `powerinfer chat` have it"},
    {"-md, --model-draft, --spec-draft-model, --draft, --draft-n, --draft-max, --spec-draft-n-max, "
     "--draft-p-min, --spec-draft-p-min, --lookup, --spec-type, --spec-default, "
     "--spec-ngram-simple-size-m, --spec-ngram-map-k-size-m, --spec-ngram-map-k4v-size-m, "
     "--spec-ngram-mod-n-max",
     "`powerinfer complete` and `powerinfer chat` have it"},
    {"-hf, -hfr, --hf-repo, -hff, --hf-file, -hft, --hf-token",
     "`powerinfer complete`, `powerinfer chat` and `powerinfer serve` have it"},
    {"--jinja", "`powerinfer chat` runs any chat template"},
    {"--host, --port, --api-key, --api-key-file, -np, --parallel", "`powerinfer serve` has it"},
};

// Options that `powerinfer chat` has not: with one of them main itself chats.
constexpr const char* of_main =
    "--cpu-strict, --prio, --poll, --cpu-strict-batch, --prio-batch, --poll-batch, --keep, -bf, "
    "--binary-file, -lm, --load-mode, --list-devices, --check-tensors, --op-offload, "
    "--no-op-offload, -nopo, --log-file, -v, --verbose, --log-verbose, -lv, --verbosity, "
    "--log-verbosity, --display-prompt, --no-display-prompt, --context-shift, --prompt-cache, "
    "--prompt-cache-all, --prompt-cache-ro, -i, --interactive, -if, --interactive-first, "
    "--in-prefix, --in-suffix, -no-cnv, --no-conversation, --no-jinja, --show-timings, "
    "--no-show-timings, --bundle, --plan, --json-stats, --reset-gpu-index, --disable-gpu-index, "
    "--usage, --version, --completion-bash";

// Keeps an option that was read for `powerinfer chat`.
void keep(Options& options, const Option& option, Text name, Text value, bool has_value) {
    for (const std::string& own : split(of_main, ", "))
        options.stays = options.stays || own == name;
    if (name == "-m" || name == "--model") return;
    std::string word = name;
    // A value may begin with a dash, which only --name=value is clear about.
    for (const std::string& other : split(option.names, ", "))
        if (word.compare(0, 2, "--") != 0 && has_value) word = other;
    options.given.push_back(has_value ? word + "=" + value : word);
}

[[noreturn]] void unknown(Text name) {
    for (const auto& [names, programs] : elsewhere)
        for (const std::string& candidate : split(names, ", "))
            if (candidate == name)
                throw UsageError("option " + name + " is not one of main's: " + programs);
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

// Refuses options that need another one. Throws UsageError.
void check_together(const Options& o) {
    const bool chats = o.conversation || (o.action == Options::Action::generate && may_chat(o));
    if (!o.for_chat.empty() && !chats)
        throw UsageError("option " + o.for_chat + " needs -cnv, which starts a conversation");
    if (o.prompt_cache.empty() && (o.prompt_cache_all || o.prompt_cache_read_only))
        throw UsageError(std::string("option ") +
                         (o.prompt_cache_all ? "--prompt-cache-all" : "--prompt-cache-ro") +
                         " needs --prompt-cache, which names the file");
    if (o.for_interactive.empty()) return;
    if (o.conversation)
        throw UsageError("option " + o.for_interactive +
                         " does not go with -cnv: the chat template decides what is around a line");
    if (!o.interactive)
        throw UsageError("option " + o.for_interactive + " needs -i, which reads lines");
}

}  // namespace

bool may_chat(const Options& o) {
    return o.converse == Options::Switch::automatic && !o.interactive && !o.prompt_given &&
           o.prompt_file.empty() && is_terminal(Stream::in) && is_terminal(Stream::out);
}

Options parse_options(const std::vector<std::string>& arguments) {
    Options options;
    for (size_t i = 1; i < arguments.size(); i++) {
        const size_t at = i;
        const std::string& given = arguments[i];
        // --top_k is read as --top-k, as in llama.cpp. --top-k=40 is accepted too.
        std::string name =
            given.substr(0, given.compare(0, 2, "--") == 0 ? given.find('=') : given.npos);
        const bool has_value = name.size() < given.size();
        if (name.compare(0, 2, "--") == 0) std::replace(name.begin(), name.end(), '_', '-');
        const Option* option = find(name);
        if (!option) unknown(name);

        std::string value = has_value ? given.substr(name.size() + 1) : "";
        const bool follows = !has_value && i + 1 < arguments.size();
        if (!option->argument) {
            if (has_value) throw UsageError("option " + name + " takes no value");
        } else if (option->argument[0] == '[') {
            const bool taken = follows && arguments[i + 1].compare(0, 1, "-") != 0;
            if (taken) value = arguments[++i];
            if ((has_value || taken) && !is_word(option->argument, value))
                bad_value(name, value, std::string("one of ") + option->argument);
        } else if (!has_value) {
            if (!follows)
                throw UsageError("option " + name + " needs a value: " + option->argument);
            value = arguments[++i];
            // As two words, as older versions of llama.cpp had it.
            const bool scaled = !std::strcmp(option->argument, "FILE:SCALE");
            if (scaled && value.find(':') == value.npos && i + 1 < arguments.size())
                value += ":" + arguments[++i];
        }
        option->set(options, name, value);
        keep(options, *option, name, value, has_value || i > at);
    }
    const bool runs =
        options.action == Options::Action::generate || options.action == Options::Action::plan;
    if (runs) check_together(options);
    return options;
}

std::string help_text() {
    std::string text =
        "Continues a text with a language model, or holds a conversation with it. The text goes to "
        "stdout, everything else to stderr.\n\n"
        "usage: main [options]\n\n";
    std::string others;
    constexpr size_t column = 36;
    for (const Option& option : option_table()) {
        if (!option.help) {
            others += (others.empty() ? "" : ", ") + std::string(option.names);
            continue;
        }
        std::string left = "  " + std::string(option.names);
        if (option.argument) left += " " + std::string(option.argument);
        if (left.size() + 2 > column) {
            left += "\n" + std::string(column, ' ');
        } else {
            left.resize(column, ' ');
        }
        text += left + option.help + "\n";
    }
    return text + "\nAccepted, as the default or without effect: " + others + "\n";
}

std::string completion_text() {
    std::string names, files;
    for (const Option& option : option_table()) {
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
