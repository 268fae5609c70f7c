// The console of Windows.
#ifndef NOMINMAX
#define NOMINMAX
#endif
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
// After windows.h, whose types it needs.
#include <fcntl.h>
#include <io.h>
#include <shellapi.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "console/console.h"

namespace {

HANDLE handle_of(Stream stream) {
    return GetStdHandle(stream == Stream::in    ? STD_INPUT_HANDLE
                        : stream == Stream::out ? STD_OUTPUT_HANDLE
                                                : STD_ERROR_HANDLE);
}

std::string utf8(const wchar_t* text, int n) {
    const int size = WideCharToMultiByte(CP_UTF8, 0, text, n, nullptr, 0, nullptr, nullptr);
    std::string out(size_t(std::max(size, 0)), '\0');
    if (size > 0) WideCharToMultiByte(CP_UTF8, 0, text, n, out.data(), size, nullptr, nullptr);
    return out;
}

std::wstring wide(const std::string& text) {
    const int n = MultiByteToWideChar(CP_UTF8, 0, text.data(), int(text.size()), nullptr, 0);
    std::wstring out(size_t(std::max(n, 0)), L'\0');
    if (n > 0) MultiByteToWideChar(CP_UTF8, 0, text.data(), int(text.size()), out.data(), n);
    return out;
}

// Runs in a thread of its own.
BOOL WINAPI on_interrupt(DWORD event) {
    if (event != CTRL_C_EVENT || interrupted) return FALSE;  // FALSE: ends the process
    interrupted = 1;
    return TRUE;
}

// A mapped file cannot shrink here, but its disk or server may go away.
LONG WINAPI on_exception(EXCEPTION_POINTERS* what) {
    if (what->ExceptionRecord->ExceptionCode != DWORD(EXCEPTION_IN_PAGE_ERROR))
        return EXCEPTION_CONTINUE_SEARCH;
    DWORD done;
    if (progress_shown()) WriteFile(handle_of(Stream::error), "\n", 1, &done, nullptr);
    WriteFile(handle_of(Stream::error), lost_page.data(), DWORD(lost_page.size()), &done, nullptr);
    TerminateProcess(GetCurrentProcess(), exit_failure);
    return EXCEPTION_CONTINUE_SEARCH;
}

UINT page_before = 0;
void restore_page() {
    SetConsoleOutputCP(page_before);
}

bool is_console(HANDLE handle) {
    DWORD mode;
    return GetConsoleMode(handle, &mode);
}

// Bytes of the end of a text that begin a character whose rest comes later.
size_t unfinished(const char* data, size_t n) {
    for (size_t back = 1; back <= std::min<size_t>(n, 3); back++) {
        const unsigned char c = static_cast<unsigned char>(data[n - back]);
        if (c < 0x80) return 0;
        if (c >= 0xc0) return back < (c >= 0xf0 ? 4u : c >= 0xe0 ? 3u : 2u) ? back : 0;
    }
    return 0;
}

// A line of the console in UTF-8, which ReadFile does not give.
int64_t read_console(HANDLE handle, char* data, size_t n) {
    static std::string rest;
    if (rest.empty()) {
        wchar_t text[1024];
        DWORD got = 0;
        SetLastError(0);
        if (!ReadConsoleW(handle, text, 1024, &got, nullptr)) return -EIO;
        if (got == 0) return GetLastError() == ERROR_OPERATION_ABORTED ? -EINTR : 0;  // by Ctrl-C
        // A character of two units may be cut.
        DWORD more = 0;
        if (got < 1024 && IS_HIGH_SURROGATE(text[got - 1]))
            ReadConsoleW(handle, text + got, 1, &more, nullptr);
        rest = utf8(text, int(got + more));
        if (rest[0] == 26) {  // Ctrl-Z
            rest.clear();
            return 0;
        }
    }
    n = rest.copy(data, n);
    rest.erase(0, n);
    return int64_t(n);
}

}  // namespace

std::vector<std::string> start_console(int, char**) {
    // What is written goes out as it is, without carriage returns, and is UTF-8.
    _setmode(_fileno(stderr), _O_BINARY);
    page_before = GetConsoleOutputCP();
    if (page_before != 0 && page_before != CP_UTF8 && SetConsoleOutputCP(CP_UTF8))
        std::atexit(restore_page);
    SetUnhandledExceptionFilter(on_exception);
    catch_interrupts();
    SetConsoleCtrlHandler(on_interrupt, TRUE);
    // main's arguments are in the system's code page.
    int n = 0;
    std::vector<std::string> arguments;
    wchar_t** wide_ones = CommandLineToArgvW(GetCommandLineW(), &n);
    for (int i = 0; wide_ones && i < n; i++) {
        std::string argument = utf8(wide_ones[i], -1);
        if (!argument.empty()) argument.pop_back();  // the final zero
        arguments.push_back(argument);
    }
    LocalFree(wide_ones);
    return arguments;
}

void catch_interrupts() {
    interrupted = 0;
}

bool is_terminal(Stream stream) {
    return is_console(handle_of(stream));
}

int64_t write_out(const char* data, size_t n) {
    static std::string begun;  // of a character: the console wants whole ones
    const HANDLE handle = handle_of(Stream::out);
    DWORD done = 0;
    if (is_console(handle)) {
        begun.append(data, n);
        const size_t whole = begun.size() - unfinished(begun.data(), begun.size());
        const bool good = WriteFile(handle, begun.data(), DWORD(whole), &done, nullptr);
        begun.erase(0, whole);
        return good ? int64_t(n) : -EIO;
    }
    if (WriteFile(handle, data, DWORD(std::min<size_t>(n, 1 << 20)), &done, nullptr)) return done;
    switch (GetLastError()) {
        case ERROR_BROKEN_PIPE:
        case ERROR_NO_DATA:
            return -EPIPE;
        case ERROR_DISK_FULL:
            return -ENOSPC;
        case ERROR_INVALID_HANDLE:
            return -EBADF;
        default:
            return -EIO;
    }
}

int64_t read_in(char* data, size_t n) {
    const HANDLE handle = handle_of(Stream::in);
    if (is_console(handle)) return read_console(handle, data, n);
    DWORD got = 0;
    if (ReadFile(handle, data, DWORD(n), &got, nullptr)) return got;
    return GetLastError() == ERROR_BROKEN_PIPE ? 0 : -EIO;  // the writer has gone
}

std::FILE* copy_of_stdin(bool anything) {
    const DWORD type = GetFileType(handle_of(Stream::in));
    errno = 0;
    if (!anything && type != FILE_TYPE_DISK && type != FILE_TYPE_PIPE) return nullptr;
    const int fd = _dup(0);
    if (fd >= 0) _setmode(fd, _O_BINARY);
    return fd < 0 ? nullptr : _fdopen(fd, "rb");
}

bool shows_colours() {
    constexpr DWORD sequences = 0x0004;  // ENABLE_VIRTUAL_TERMINAL_PROCESSING
    const HANDLE handle = handle_of(Stream::out);
    DWORD mode;
    return GetConsoleMode(handle, &mode) && SetConsoleMode(handle, mode | sequences);
}

std::FILE* open_file(const std::string& path, const char* mode) {
    return _wfopen(wide(path).c_str(), wide(mode).c_str());
}

void drop_newline(std::string& text) {
    if (text.empty() || text.back() != '\n') return;
    text.pop_back();
    if (!text.empty() && text.back() == '\r') text.pop_back();
}

void become(const std::filesystem::path&, const std::vector<std::string>&) {}

std::filesystem::path own_path() {
    std::wstring path(32768, L'\0');
    path.resize(GetModuleFileNameW(nullptr, path.data(), DWORD(path.size())));
    return path;
}
