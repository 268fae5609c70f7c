// Reading a command line, --help and --completion-bash, from the table of options.
#include <algorithm>
#include <cctype>
#include <cstring>
#include <vector>

#include "option_table.h"

namespace {

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
    for (const Option& option : option_table()) {
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
