// What main says and hears: text on stdout, everything else on stderr, lines from stdin, Ctrl-C.
#pragma once

#include <csignal>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "powerinfer.h"

constexpr int exit_failure = 1, exit_usage = 2, exit_interrupted = 130;

struct Failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};
struct Interrupted {};  // by Ctrl-C
struct ReaderGone {};   // whoever read stdout has enough, as in `main | head`

extern volatile sig_atomic_t interrupted;
// Also makes the next Ctrl-C an interruption again: the one after that kills.
void catch_interrupts();
// A mapped file that shrinks ends the process; this way with a sentence.
void catch_lost_pages();
bool should_stop(void*);  // for pi_session_params

// Names from a model file end up in messages; they must not steer the terminal or break the line.
std::string one_line(std::string text);
void complain(const std::string& message);
// Throws Interrupted, ReaderGone or Failure.
void put(std::string_view bytes);
// A struct that the engine fills.
template <typename S>
S sized() {
    S s = {};
    s.struct_size = sizeof(S);
    return s;
}
// Throws Interrupted where Ctrl-C was the reason, else Failure with the engine's message.
void require(pi_status status);

// Callbacks of pi_model_params; data points at the largest level (int32_t) that is shown.
void print_log(int32_t level, const char* message, void* data);
bool print_progress(float fraction, void*);

// The whole file, less one newline at its end.
std::string read_file(const std::string& path);
// The same of stdin, "" where that is neither a file nor a pipe.
std::string read_stdin();
// The next line of stdin without its newline; false at the end.
bool read_line(std::string& line);
