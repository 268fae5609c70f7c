#include "console/console.h"

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>

namespace {

constexpr size_t longest_text = size_t(256) << 20;  // of a prompt or line; so -f /dev/zero ends

std::FILE* log_file = nullptr;
bool quiet = false, log_failed = false, coloured = false;
char last_put = '\n';  // on stdout

void write_log(const std::string& text) {
    if (!log_file) return;
    const bool written = std::fputs(text.c_str(), log_file) >= 0 && std::fflush(log_file) == 0;
    log_failed = log_failed || !written;
}

bool shown = false;
void erase_progress() {
    if (shown) std::fputs("\r            \r", stderr);
    shown = false;
}

}  // namespace

volatile sig_atomic_t interrupted = 0;

const std::string_view lost_page =
    "main: error: a page of a mapped file is gone: the model's file became shorter, or its disk "
    "failed; with --no-mmap the model is read into memory\n";

bool progress_shown() {
    return shown;
}

bool should_stop(void*) {
    return interrupted != 0;
}

std::string one_line(std::string text) {
    for (char& c : text)
        if (uint8_t(c) < 0x20 || c == 0x7f) c = ' ';
    return text;
}

void start_log(const std::string& path, bool be_quiet) {
    quiet = be_quiet;
    if (path.empty()) return;
    log_file = open_file(path, "wb");
    if (!log_file) throw Failure(path + ": " + std::strerror(errno));
}

void say(const char* format, ...) {
    va_list values, again;
    va_start(values, format);
    va_copy(again, values);
    const int size = std::vsnprintf(nullptr, 0, format, values);
    std::string text(size_t(size < 0 ? 0 : size) + 1, '\0');
    std::vsnprintf(text.data(), text.size(), format, again);
    va_end(again);
    va_end(values);
    text.pop_back();
    erase_progress();
    if (!quiet) std::fputs(text.c_str(), stderr);
    write_log(text);
}

void complain(const std::string& message) {
    const std::string text = "main: error: " + one_line(message) + "\n";
    erase_progress();
    std::fputs(text.c_str(), stderr);
    write_log(text);
}

void advise(const std::string& lines) {
    std::fputs(lines.c_str(), stderr);
    write_log(lines);
}

bool end_log() {
    if (!log_file) return true;
    const bool closed = std::fclose(log_file) == 0;
    log_file = nullptr;
    return closed && !log_failed;
}

void use_colours(bool on) {
    coloured = on;
}

void paint(Colour colour) {
    if (!coloured) return;
    // Those of llama.cpp: yellow, and bold green.
    std::string_view code = colour == Colour::prompt ? "\x1b[33m"
                            : colour == Colour::user ? "\x1b[1m\x1b[32m"
                                                     : "\x1b[0m";
    while (!code.empty()) {
        const int64_t n = write_out(code.data(), code.size());
        if (n < 0 && n != -EINTR) return;  // what follows will tell
        if (n > 0) code.remove_prefix(size_t(n));
    }
}

void put(std::string_view bytes) {
    if (!bytes.empty()) last_put = bytes.back();
    while (!bytes.empty()) {
        // A signal can end a write early; the call then succeeds with some of the bytes written.
        if (interrupted) throw Interrupted{};
        const int64_t n = write_out(bytes.data(), bytes.size());
        if (n >= 0) {
            bytes.remove_prefix(size_t(n));
        } else if (n == -EPIPE) {
            throw ReaderGone{};
        } else if (n != -EINTR) {
            throw Failure(std::string("cannot write to stdout: ") + std::strerror(int(-n)));
        }
    }
}

void end_line() {
    if (last_put != '\n') put("\n");
}

void require(pi_status status) {
    if (status == PI_OK) return;
    if (status == PI_ERROR_CANCELLED && interrupted) throw Interrupted{};
    if (status == PI_ERROR_MEMORY) throw NoMemory(pi_last_error());
    throw Failure(pi_last_error());
}

void print_log(int32_t level, const char* message, void* data) {
    if (level > *static_cast<const int32_t*>(data)) return;
    const char* kind = level == 1 ? "error: " : level == 2 ? "warning: " : "";
    say("main: %s%s\n", kind, one_line(message).c_str());
}

bool print_progress(float fraction, void*) {
    if (is_terminal(Stream::error) && !quiet) {
        erase_progress();
        if (fraction < 1) std::fprintf(stderr, "loading %3.0f%%", 100 * double(fraction));
        std::fflush(stderr);
        shown = fraction < 1;
    }
    return interrupted == 0;
}

namespace {

// Reads a whole file. `name` is used in errors. opened: null if it could not be opened.
std::string read_all(FILE* opened, const std::string& name) {
    const auto fail = [&] {
        if (interrupted) throw Interrupted{};  // while waiting for a pipe
        throw Failure(name + ": " + std::strerror(errno));
    };
    if (!opened) fail();
    const std::unique_ptr<FILE, int (*)(FILE*)> file(opened, std::fclose);
    std::string text;
    char buffer[1 << 16];
    while (const size_t n = std::fread(buffer, 1, sizeof buffer, file.get())) {
        text.append(buffer, n);
        if (text.size() > longest_text) throw Failure(name + ": too large for a prompt");
        if (interrupted) throw Interrupted{};
    }
    if (std::ferror(file.get())) fail();
    return text;
}

}  // namespace

std::string read_file(const std::string& path) {
    if (path == "-") return read_all(copy_of_stdin(true), "stdin");
    return read_all(open_file(path, "rb"), path);
}

std::string read_stdin() {
    // A terminal would wait for input, a socket or device may never end.
    std::FILE* file = copy_of_stdin(false);
    return !file && errno == 0 ? "" : read_all(file, "stdin");
}

bool read_line(std::string& line) {
    static std::string unread;
    size_t seen = 0;
    for (;;) {
        const size_t newline = unread.find('\n', seen);
        if (newline != unread.npos) {
            line = unread.substr(0, newline + 1);
            drop_newline(line);
            unread.erase(0, newline + 1);
            return true;
        }
        seen = unread.size();
        if (seen > longest_text) throw Failure("a line of stdin is too long for a message");
        if (interrupted) throw Interrupted{};
        char buffer[1 << 12];
        const int64_t n = read_in(buffer, sizeof buffer);
        if (n > 0) {
            unread.append(buffer, size_t(n));
        } else if (n == 0) {
            line.swap(unread);
            unread.clear();
            return !line.empty();
        } else if (n != -EINTR) {
            throw Failure(std::string("cannot read stdin: ") + std::strerror(int(-n)));
        }
    }
}

bool read_users_line(std::string& line) {
    struct Painted {
        Painted() { paint(Colour::user); }
        ~Painted() { paint(Colour::plain); }
    } const painted;
    return read_line(line);
}
