#include "console.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

namespace {

constexpr size_t longest_text = size_t(256) << 20;  // of a prompt or line; so -f /dev/zero ends

bool progress_shown = false;
void erase_progress() {
    if (progress_shown) std::fputs("\r            \r", stderr);
    progress_shown = false;
}

extern "C" void on_interrupt(int) {
    interrupted = 1;
}

extern "C" void on_lost_page(int) {
    static const char text[] =
        "main: error: a page of a mapped file is gone: the model's file became shorter, or its "
        "disk failed; with --no-mmap the model is read into memory\n";
    if (progress_shown && write(STDERR_FILENO, "\n", 1) < 0) _exit(exit_failure);
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0) _exit(exit_failure);
    _exit(exit_failure);
}

}  // namespace

volatile sig_atomic_t interrupted = 0;

void catch_interrupts() {
    interrupted = 0;
    signal(SIGPIPE, SIG_IGN);
    struct sigaction action = {};
    action.sa_handler = on_interrupt;
    // No SA_RESTART: Ctrl-C must end a blocking write. A second Ctrl-C kills the process
    // (SA_RESETHAND).
    action.sa_flags = SA_RESETHAND;
    sigaction(SIGINT, &action, nullptr);
}

void catch_lost_pages() {
    struct sigaction action = {};
    action.sa_handler = on_lost_page;
    sigaction(SIGBUS, &action, nullptr);
}

bool should_stop(void*) {
    return interrupted != 0;
}

std::string one_line(std::string text) {
    for (char& c : text)
        if (uint8_t(c) < 0x20 || c == 0x7f) c = ' ';
    return text;
}

void complain(const std::string& message) {
    erase_progress();
    std::fprintf(stderr, "main: error: %s\n", one_line(message).c_str());
}

void put(std::string_view bytes) {
    while (!bytes.empty()) {
        // A signal can end a write early; the call then succeeds with some of the bytes written.
        if (interrupted) throw Interrupted{};
        const ssize_t n = write(STDOUT_FILENO, bytes.data(), bytes.size());
        if (n >= 0) {
            bytes.remove_prefix(size_t(n));
        } else if (errno == EINTR) {
            continue;
        } else if (errno == EAGAIN) {
            pollfd ready = {STDOUT_FILENO, POLLOUT, 0};
            poll(&ready, 1, -1);
        } else if (errno == EPIPE) {
            throw ReaderGone{};
        } else {
            throw Failure(std::string("cannot write to stdout: ") + std::strerror(errno));
        }
    }
}

void require(pi_status status) {
    if (status == PI_OK) return;
    if (status == PI_ERROR_CANCELLED && interrupted) throw Interrupted{};
    throw Failure(pi_last_error());
}

void print_log(int32_t level, const char* message, void* data) {
    if (level > *static_cast<const int32_t*>(data)) return;
    const char* kind = level == 1 ? "error: " : level == 2 ? "warning: " : "";
    erase_progress();
    std::fprintf(stderr, "main: %s%s\n", kind, one_line(message).c_str());
}

bool print_progress(float fraction, void*) {
    if (isatty(STDERR_FILENO)) {
        erase_progress();
        if (fraction < 1) std::fprintf(stderr, "loading %3.0f%%", 100 * double(fraction));
        std::fflush(stderr);
        progress_shown = fraction < 1;
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
    // Editors end the last line with a newline. Like llama.cpp, do not count it as part of the
    // prompt.
    if (!text.empty() && text.back() == '\n') text.pop_back();
    return text;
}

}  // namespace

std::string read_file(const std::string& path) {
    return read_all(std::fopen(path.c_str(), "rb"), path);
}

std::string read_stdin() {
    // Reads files and pipes only: a terminal would wait for input, a socket or device may never
    // end.
    struct stat about;
    if (fstat(STDIN_FILENO, &about) != 0) return "";
    if (!S_ISREG(about.st_mode) && !S_ISFIFO(about.st_mode)) return "";
    const int fd = dup(STDIN_FILENO);
    return read_all(fd < 0 ? nullptr : fdopen(fd, "rb"), "stdin");
}

bool read_line(std::string& line) {
    static std::string unread;
    size_t seen = 0;
    for (;;) {
        const size_t newline = unread.find('\n', seen);
        if (newline != unread.npos) {
            line = unread.substr(0, newline);
            unread.erase(0, newline + 1);
            return true;
        }
        seen = unread.size();
        if (seen > longest_text) throw Failure("a line of stdin is too long for a message");
        if (interrupted) throw Interrupted{};
        char buffer[1 << 12];
        const ssize_t n = read(STDIN_FILENO, buffer, sizeof buffer);
        if (n > 0) {
            unread.append(buffer, size_t(n));
        } else if (n == 0) {
            line.swap(unread);
            unread.clear();
            return !line.empty();
        } else if (errno == EAGAIN) {
            pollfd ready = {STDIN_FILENO, POLLIN, 0};
            poll(&ready, 1, -1);
        } else if (errno != EINTR) {
            throw Failure(std::string("cannot read stdin: ") + std::strerror(errno));
        }
    }
}
