// Values of options of main. What is no such value throws UsageError.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

// A wrong command line; the message is one sentence.
class UsageError : public std::runtime_error {
 public:
    using std::runtime_error::runtime_error;
};

using Text = const std::string&;

std::vector<std::string> split(Text text, Text separator);
[[noreturn]] void bad_value(Text option, Text value, Text expected);
int64_t integer(Text option, Text value, int64_t lo, int64_t hi);
// A decimal number; expected: what it should be, for the message.
double number(Text option, Text value, double lo, double hi, Text expected);
float real(Text option, Text value);
float share(Text option, Text value);          // from 0 to 1
uint64_t gibibytes(Text option, Text value);   // in bytes
uint32_t cache_type(Text option, Text value);  // id of a GGUF type
int32_t threads(Text option, Text value);      // 0: the engine's choice
