// The table of main's options: options.cpp has the rows, parse_options.cpp reads them.
#pragma once

#include "option_values.h"
#include "options.h"

struct Option {
    const char* names;     // separated by ", "
    const char* argument;  // for --help; nullptr: none. "[a|b]": optional
    const char* help;      // nullptr: accepted, but not listed
    void (*set)(Options& options, Text option, Text value);
};

struct OptionTable {
    const Option *first, *last;
    const Option* begin() const { return first; }
    const Option* end() const { return last; }
};
OptionTable option_table();
