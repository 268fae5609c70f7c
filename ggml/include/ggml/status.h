// The error type of ggml and the engine.
//
// Code that loads, checks and plans throws Error. Only the C API turns it into a status code and a
// message. Operators on the CPU do not throw. A forward pass throws only io and format (of a disk),
// device and cancelled; `internal`, if there is a bug; and `memory`, if the driver of a device or
// one of a few short lists is refused some. Large memory is never allocated in a pass. Sampling
// throws `memory`.
#pragma once

#include <exception>
#include <string>
#include <utility>

namespace ggml {

// Values are those of pi_status in powerinfer.h.
enum class Code {
    ok = 0,
    argument = 1,     // the caller's value is out of range
    io = 2,           // a file cannot be opened, read or written
    format = 3,       // a file's content contradicts its format
    unsupported = 4,  // the content is valid, but this engine cannot run it
    memory = 5,       // more memory needed than available or allowed
    context = 6,      // more positions than the context has
    device = 7,       // a device failed or does not exist
    cancelled = 8,    // a callback asked to stop
    internal = 9,     // a bug in this engine
};

class Error : public std::exception {
 public:
    Error(Code code, std::string message) : code_(code), message_(std::move(message)) {}
    Code code() const { return code_; }
    const char* what() const noexcept override { return message_.c_str(); }

 private:
    Code code_;
    std::string message_;
};

// printf into a std::string.
// Plain "printf" means Microsoft's to mingw, which does not know %zu.
#if defined(__MINGW_PRINTF_FORMAT)
__attribute__((format(__MINGW_PRINTF_FORMAT, 1, 2)))
#elif defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
std::string
format(const char* fmt, ...);

}  // namespace ggml
