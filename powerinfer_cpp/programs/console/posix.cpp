// The console of Linux and macOS.
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "console/console.h"

#ifdef __APPLE__
#include <mach-o/dyld.h>
#endif

namespace {

extern "C" void on_interrupt(int) {
    interrupted = 1;
}

extern "C" void on_lost_page(int) {
    if (progress_shown() && write(STDERR_FILENO, "\n", 1) < 0) _exit(exit_failure);
    if (write(STDERR_FILENO, lost_page.data(), lost_page.size()) < 0) _exit(exit_failure);
    _exit(exit_failure);
}

// If a standard stream is closed, a file opened later would get its number and receive our text.
void occupy_standard_streams() {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
        // Opened in the wrong direction, so that using the stream is still an error.
        if (open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0) return;
    }
}

// The result of a call; waits if the stream is not ready for one.
int64_t done(int fd, short events, ssize_t n) {
    if (n >= 0) return n;
    if (errno != EAGAIN) return -errno;
    pollfd ready = {fd, events, 0};
    poll(&ready, 1, -1);
    return -EINTR;
}

}  // namespace

std::vector<std::string> start_console(int argc, char** argv) {
    occupy_standard_streams();
    catch_interrupts();
    struct sigaction action = {};
    action.sa_handler = on_lost_page;
    sigaction(SIGBUS, &action, nullptr);
    return std::vector<std::string>(argv, argv + argc);
}

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

bool is_terminal(Stream stream) {
    return isatty(int(stream));  // 0, 1, 2
}

int64_t write_out(const char* data, size_t n) {
    return done(STDOUT_FILENO, POLLOUT, write(STDOUT_FILENO, data, n));
}

int64_t read_in(char* data, size_t n) {
    return done(STDIN_FILENO, POLLIN, read(STDIN_FILENO, data, n));
}

std::FILE* copy_of_stdin(bool anything) {
    struct stat about;
    const bool ends =
        fstat(STDIN_FILENO, &about) == 0 && (S_ISREG(about.st_mode) || S_ISFIFO(about.st_mode));
    errno = 0;
    const int fd = ends || anything ? dup(STDIN_FILENO) : -1;
    return fd < 0 ? nullptr : fdopen(fd, "rb");
}

bool shows_colours() {
    const char* kind = std::getenv("TERM");
    return is_terminal(Stream::out) && kind && std::string_view(kind) != "dumb";
}

std::FILE* open_file(const std::string& path, const char* mode) {
    return std::fopen(path.c_str(), mode);
}

void drop_newline(std::string& text) {
    if (!text.empty() && text.back() == '\n') text.pop_back();
}

std::filesystem::path own_path() {
#ifdef __APPLE__
    char path[4096];
    uint32_t size = sizeof path;
    return _NSGetExecutablePath(path, &size) == 0 ? path : "";
#else
    std::error_code error;
    return std::filesystem::read_symlink("/proc/self/exe", error);
#endif
}

void become(const std::filesystem::path& program, const std::vector<std::string>& words) {
    std::vector<char*> arguments = {const_cast<char*>(program.c_str())};
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    execv(program.c_str(), arguments.data());
}
