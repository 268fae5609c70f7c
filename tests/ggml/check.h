// A minimal test framework: CHECK, CHECK_THROWS, and a summary for main to return.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <string>

#include "ggml/status.h"

namespace check {

inline int checks = 0, failures = 0;

inline void report(bool good, const char* file, int line, const std::string& what) {
    checks++;
    if (good) return;
    failures++;
    std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
    // For whoever asks only whether there is one.
    if (std::getenv("PI_FIRST_FAILURE")) std::_Exit(1);
}

// 0 if every check passed: the return value of main.
inline int summary(const char* name) {
    std::printf("%s: %d checks, %d failed\n", name, checks, failures);
    return failures == 0 && checks > 0 ? 0 : 1;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// Sets an environment variable.
inline void set_variable(const char* name, const char* value) {
#ifdef _WIN32
    _putenv_s(name, value);
#else
    setenv(name, value, 1);
#endif
}

// Bytes that this process has locked in RAM (mlock).
inline uint64_t locked_bytes() {
    std::ifstream status("/proc/self/status");
    std::string word;
    uint64_t kib = 0;
    while (status >> word && word != "VmLck:") {
    }
    status >> kib;
    return kib << 10;
}

}  // namespace check

#define CHECK(cond) check::report(bool(cond), __FILE__, __LINE__, "CHECK(" #cond ") failed")

// The expression must throw ggml::Error with this ggml::Code, e.g. CHECK_THROWS(format, f(x)).
#define CHECK_THROWS(expected, ...)                                                          \
    do {                                                                                     \
        std::string seen = "nothing was thrown";                                             \
        try {                                                                                \
            (void)(__VA_ARGS__);                                                             \
        } catch (const ggml::Error& e) {                                                     \
            seen = e.code() == ggml::Code::expected ? "" : std::string("threw ") + e.what(); \
        } catch (const std::exception& e) {                                                  \
            seen = std::string("threw a foreign exception: ") + e.what();                    \
        }                                                                                    \
        check::report(seen.empty(), __FILE__, __LINE__,                                      \
                      "CHECK_THROWS(" #expected ", " #__VA_ARGS__ "): " + seen);             \
    } while (0)
