// Input and output of main: text on stdout, everything else on stderr, lines from stdin, Ctrl-C.
#pragma once

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "powerinfer.h"

#ifdef __GNUC__
#define CHECKED_AS_PRINTF __attribute__((format(printf, 1, 2)))
#else
#define CHECKED_AS_PRINTF
#endif

// exit_no_room: of --plan, if the model does not fit.
constexpr int exit_failure = 1, exit_usage = 2, exit_no_room = 3, exit_interrupted = 130;

struct Failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};
struct NoMemory : Failure {  // more than is there, or than the budget allows
    using Failure::Failure;
};
struct Interrupted {};  // by Ctrl-C
struct ReaderGone {};   // the reader of stdout has closed it, as in `main | head`

extern volatile sig_atomic_t interrupted;
bool should_stop(void*);  // for pi_session_params

// Replaces control characters: names from a model file must not control the terminal or break the
// line.
std::string one_line(std::string text);
// What main says beside its text goes to stderr, unless that is to be quiet, and to the log file.
// Errors always go to stderr. Throws Failure if the file cannot be opened.
void start_log(const std::string& path, bool quiet);
void say(const char* format, ...) CHECKED_AS_PRINTF;
void complain(const std::string& message);
void advise(const std::string& lines);  // after an error
// Ends the log; false if it could not be written.
bool end_log();
// Throws Interrupted, ReaderGone or Failure.
void put(std::string_view bytes);
// Ends the last line of stdout, if anything is there that no newline ends.
void end_line();
// The colour of what follows on stdout, if colours are on.
enum class Colour { plain, prompt, user };
void use_colours(bool on);
void paint(Colour colour);
// A struct for the engine to fill, with struct_size set.
template <typename S>
S sized() {
    S s = {};
    s.struct_size = sizeof(S);
    return s;
}
// Throws Interrupted if Ctrl-C was the reason, else Failure or NoMemory with the engine's message.
void require(pi_status status);

// What to say when a mapped file has shrunk, and whether a line on stderr is not finished then.
extern const std::string_view lost_page;
bool progress_shown();

// Callbacks for pi_model_params. data points to the highest level (int32_t) to show.
void print_log(int32_t level, const char* message, void* data);
bool print_progress(float fraction, void*);

// The whole file, or stdin for "-".
std::string read_file(const std::string& path);
// All of stdin; "" if it is neither a file nor a pipe.
std::string read_stdin();
// The next line of stdin without its newline; false at the end.
bool read_line(std::string& line);
// The same in the user's colour.
bool read_users_line(std::string& line);

// ---- what differs between systems: posix.cpp, windows.cpp ---------------------------------------

// To be called first: standard streams, and what happens if a mapped file shrinks: the process ends
// with a message. Returns the arguments in UTF-8.
std::vector<std::string> start_console(int argc, char** argv);
// Ctrl-C sets `interrupted`; the one after that kills. Calling it again resets both.
void catch_interrupts();

enum class Stream { in, out, error };
bool is_terminal(Stream stream);
// One call of the system: a number of bytes, 0 at the end of stdin, or -errno; -EINTR: try again.
int64_t write_out(const char* data, size_t n);
int64_t read_in(char* data, size_t n);
// A copy of stdin, if that is a file or a pipe, or anything. Null, with errno 0, if it is not.
std::FILE* copy_of_stdin(bool anything);
// Can stdout show colours?
bool shows_colours();
std::FILE* open_file(const std::string& path, const char* mode);
// Removes one newline from the end of a text.
void drop_newline(std::string& text);
// This program's file; "" if the system does not tell.
std::filesystem::path own_path();
// Runs another program in place of this one, with these words behind its name. Returns if that
// cannot be, and on Windows, which would have both.
void become(const std::filesystem::path& program, const std::vector<std::string>& words);
