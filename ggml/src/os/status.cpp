#include "ggml/status.h"

#include <cstdarg>
#include <cstdio>

namespace ggml {

std::string format(const char* fmt, ...) {
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    const int n = std::vsnprintf(nullptr, 0, fmt, args);
    va_end(args);
    std::string text(n > 0 ? size_t(n) : 0, '\0');
    // vsnprintf also writes a NUL, where std::string keeps its own.
    if (n > 0) std::vsnprintf(&text[0], size_t(n) + 1, fmt, again);
    va_end(again);
    return text;
}

}  // namespace ggml
