#include <cfloat>
#include <limits>

#include "options/options.h"

void set_samplers(Options& o, Text, Text value) {
    o.samplers = value;
    o.samplers_given = true;
}

void set_sampler_letters(Options& o, Text option, Text value) {
    static const std::pair<char, const char*> letters[] = {
        {'e', "penalties"}, {'d', "dry"},   {'s', "top_n_sigma"},
        {'k', "top_k"},     {'y', "typ_p"}, {'p', "top_p"},
        {'m', "min_p"},     {'x', "xtc"},   {'t', "temperature"}};
    std::string names;
    for (const char letter : value) {
        const char* found = nullptr;
        for (const auto& [own, name] : letters)
            if (letter == own) found = name;
        if (!found) bad_value(option, value, "made of the letters e, d, s, k, y, p, m, x and t");
        names += (names.empty() ? "" : ";") + std::string(found);
    }
    set_samplers(o, option, names);
}

void add_dry_breaker(Options& o, Text option, Text value) {
    if (value.empty()) bad_value(option, value, "a text");
    if (!o.dry_breakers_given || value == "none") o.dry_breakers.clear();
    o.dry_breakers_given = true;
    if (value != "none") o.dry_breakers.push_back(value);
}

void add_logit_bias(Options& o, Text option, Text value) {
    const std::string expected = "a token and its bias, such as 15+1.5 or 15-1";
    const size_t sign = value.find_first_of("+-");
    if (sign == 0 || sign == value.npos) bad_value(option, value, expected);
    const std::string token = value.substr(0, sign);
    if (token.find_first_not_of("0123456789") != token.npos || token.size() > 9)
        bad_value(option, value, expected);
    const std::string rest = value.substr(sign);
    const double never = -std::numeric_limits<double>::infinity();
    const double bias = rest == "-inf" ? never : number(option, rest, -FLT_MAX, FLT_MAX, expected);
    o.logit_bias.emplace_back(int32_t(std::stol(token)), float(bias));
}

void add_override(Options& o, Text option, Text value) {
    const size_t equals = value.find('='), colon = value.find(':', equals);
    if (equals == 0 || equals == value.npos || colon == value.npos)
        bad_value(option, value, "KEY=TYPE:VALUE, with a type int, float, bool or str");
    Override given;
    given.key = value.substr(0, equals);
    const std::string type = value.substr(equals + 1, colon - equals - 1);
    const std::string text = value.substr(colon + 1);
    if (given.key == "tokenizer.chat_template")
        throw UsageError("option " + option + ": --chat-template gives another template");
    if (type == "int") {
        given.type = PI_I64;
        given.integer = integer(option, text, INT64_MIN, INT64_MAX);
    } else if (type == "float") {
        given.type = PI_F64;
        given.number = number(option, text, -FLT_MAX, FLT_MAX, "a finite number");
    } else if (type == "bool") {
        if (text != "true" && text != "false") bad_value(option, text, "true or false");
        given.type = PI_BOOL;
        given.integer = text == "true";
    } else if (type == "str") {
        given.type = PI_STRING;
        given.text = text;
    } else {
        bad_value(option, type, "a type: int, float, bool or str");
    }
    o.overrides.push_back(given);
}

void set_rope_scaling(Options& o, Text option, Text value) {
    static const std::pair<const char*, pi_rope_scaling> kinds[] = {
        {"none", PI_ROPE_NONE}, {"linear", PI_ROPE_LINEAR}, {"yarn", PI_ROPE_YARN}};
    for (const auto& [name, kind] : kinds) {
        if (value != name) continue;
        o.session.rope_scaling = kind;
        return;
    }
    bad_value(option, value, "a scaling (none, linear or yarn)");
}

void set_rope_scale(Options& o, Text option, Text value) {
    const double most = 1e6;
    o.session.rope_freq_scale =
        float(1 / number(option, value, 1 / most, most, "a number from 1e-6 to 1e6"));
}
