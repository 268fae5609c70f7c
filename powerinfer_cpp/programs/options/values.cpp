#include "options/values.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cfloat>
#include <cmath>
#include <cstdlib>

#include "powerinfer.h"

std::vector<std::string> split(Text text, Text separator) {
    std::vector<std::string> parts;
    size_t begin = 0, end;
    while ((end = text.find(separator, begin)) != std::string::npos) {
        parts.push_back(text.substr(begin, end - begin));
        begin = end + separator.size();
    }
    parts.push_back(text.substr(begin));
    return parts;
}

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
