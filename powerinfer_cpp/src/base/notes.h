// What is worth knowing about a file that opened all the same. Whoever opens the model logs it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace powerinfer {

struct Note {
    int32_t level;     // of pi_log_callback: 2 a warning, 3 information
    std::string text;  // names the file
};
using Notes = std::vector<Note>;

}  // namespace powerinfer
