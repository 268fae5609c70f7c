// Windows, from version 8 on.
#include "os/os.h"

#ifndef NOMINMAX
#define NOMINMAX
#endif
#define WIN32_LEAN_AND_MEAN
#define PSAPI_VERSION 2  // its functions are in kernel32
#ifndef _WIN32_WINNT
#define _WIN32_WINNT 0x0602
#endif
#include <windows.h>
// After windows.h, whose types it needs.
#include <process.h>
#include <psapi.h>

#include <algorithm>
#include <cerrno>
#include <cwchar>
#include <memory>
#include <system_error>
#include <thread>

namespace ggml::os {

namespace {

constexpr DWORD kQuotaExceeded = 1295;  // ERROR_DISK_QUOTA_EXCEEDED, which older headers lack

int as_errno(DWORD error) {
    switch (error) {
        case ERROR_SUCCESS:
            return 0;
        case ERROR_FILE_NOT_FOUND:
        case ERROR_PATH_NOT_FOUND:
        case ERROR_INVALID_NAME:
        case ERROR_BAD_PATHNAME:
        case ERROR_BAD_NETPATH:
        case ERROR_BAD_NET_NAME:
        case ERROR_INVALID_DRIVE:
            return ENOENT;
        case ERROR_ACCESS_DENIED:
        case ERROR_LOCK_VIOLATION:
        case ERROR_WRITE_PROTECT:
        case ERROR_PRIVILEGE_NOT_HELD:
        case ERROR_USER_MAPPED_FILE:
            return EACCES;
        case ERROR_SHARING_VIOLATION:
            return EBUSY;
        case ERROR_ALREADY_EXISTS:
        case ERROR_FILE_EXISTS:
            return EEXIST;
        case ERROR_DIRECTORY:
            return ENOTDIR;
        case ERROR_DISK_FULL:
        case ERROR_HANDLE_DISK_FULL:
        case kQuotaExceeded:
            return ENOSPC;
        case ERROR_FILE_TOO_LARGE:
            return EFBIG;
        case ERROR_NOT_ENOUGH_MEMORY:
        case ERROR_OUTOFMEMORY:
        case ERROR_COMMITMENT_LIMIT:
        case ERROR_WORKING_SET_QUOTA:
        case ERROR_NO_SYSTEM_RESOURCES:
            return ENOMEM;
        case ERROR_TOO_MANY_OPEN_FILES:
            return EMFILE;
        case ERROR_FILENAME_EXCED_RANGE:
            return ENAMETOOLONG;
        case ERROR_NO_UNICODE_TRANSLATION:
            return EILSEQ;
        case ERROR_INVALID_HANDLE:
            return EBADF;
        case ERROR_INVALID_PARAMETER:
            return EINVAL;
        case ERROR_NOACCESS:
            return EFAULT;
        case ERROR_NOT_SUPPORTED:
        case ERROR_INVALID_FUNCTION:
        case ERROR_CALL_NOT_IMPLEMENTED:
            return ENOTSUP;
        default:
            return EIO;
    }
}

int last_error() {
    const int error = as_errno(GetLastError());
    return error != 0 ? error : EIO;
}

// False with the system's error if the text is not UTF-8, or has a zero inside.
bool wide(const std::string& text, std::wstring& out) {
    out.clear();
    if (text.empty()) return true;
    const int size = int(std::min<size_t>(text.size(), 1 << 20));
    const int n = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, text.data(), size, nullptr, 0);
    if (n <= 0) return false;
    out.resize(size_t(n));
    MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, text.data(), size, out.data(), n);
    if (out.find(L'\0') == out.npos) return true;
    SetLastError(ERROR_INVALID_NAME);
    return false;
}

std::string utf8(const wchar_t* text) {
    const int n = WideCharToMultiByte(CP_UTF8, 0, text, -1, nullptr, 0, nullptr, nullptr);
    if (n <= 1) return "";
    std::string out(size_t(n), '\0');
    WideCharToMultiByte(CP_UTF8, 0, text, -1, out.data(), n, nullptr, nullptr);
    out.pop_back();
    return out;
}

HANDLE raw(Handle file) {
    return reinterpret_cast<HANDLE>(file);
}

int opened(const std::string& path, DWORD access, DWORD share, DWORD how, DWORD flags,
           Handle& file) {
    file = kNoHandle;  // INVALID_HANDLE_VALUE
    std::wstring name;
    if (!wide(path, name)) return last_error();
    // Folders are opened, too, so that a message can say that it is one.
    flags |= FILE_FLAG_BACKUP_SEMANTICS;
    file = reinterpret_cast<Handle>(
        CreateFileW(name.c_str(), access, share, nullptr, how, flags, nullptr));
    return file == kNoHandle ? last_error() : 0;
}

// Files may be renamed and removed while they are open, as elsewhere.
constexpr DWORD kMostRows = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;

uint64_t joined(DWORD high, DWORD low) {
    return uint64_t(high) << 32 | low;
}

}  // namespace

std::string reason(int error) {
    return std::generic_category().message(error);
}

bool is_full(int error) {
    return error == ENOSPC || error == EFBIG;
}

// ---- files -----------------------------------------------------------------------------------

int about(const std::string& path, About& found) {
    Handle file;
    if (const int error = opened(path, 0, kMostRows, OPEN_EXISTING, 0, file)) return error;
    const Owned owned(file);
    return about(file, found);
}

int about(Handle file, About& found) {
    found = About();
    if (GetFileType(raw(file)) != FILE_TYPE_DISK) return 0;  // a device or a pipe
    BY_HANDLE_FILE_INFORMATION told;
    if (!GetFileInformationByHandle(raw(file), &told)) return last_error();
    const bool folder = told.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY;
    found.kind = folder ? Kind::folder : Kind::file;
    found.size = joined(told.nFileSizeHigh, told.nFileSizeLow);
    // In units of 100 ns.
    found.modified =
        int64_t(joined(told.ftLastWriteTime.dwHighDateTime, told.ftLastWriteTime.dwLowDateTime)) *
        100;
    found.disk = told.dwVolumeSerialNumber;
    found.number = joined(told.nFileIndexHigh, told.nFileIndexLow);
    return 0;
}

int open_to_read(const std::string& path, Handle& file) {
    // Overlapped: else the system lets one thread at a time read through a handle.
    return opened(path, GENERIC_READ, kMostRows, OPEN_EXISTING, FILE_FLAG_OVERLAPPED, file);
}

int open_to_write(const std::string& path, Handle& file) {
    // Without FILE_SHARE_WRITE: the second writer is refused.
    return opened(path, GENERIC_READ | GENERIC_WRITE, FILE_SHARE_READ | FILE_SHARE_DELETE,
                  CREATE_ALWAYS, FILE_ATTRIBUTE_NORMAL, file);
}

void close(Handle file) {
    CloseHandle(raw(file));
}

namespace {

int64_t read_part(Handle file, HANDLE event, uint64_t offset, const Part& part) {
    OVERLAPPED at{};
    at.Offset = DWORD(offset);
    at.OffsetHigh = DWORD(offset >> 32);
    at.hEvent = event;
    DWORD got = 0;
    const DWORD most = DWORD(std::min<size_t>(part.bytes, 1u << 30));
    bool good = ReadFile(raw(file), part.to, most, nullptr, &at);
    if (good || GetLastError() == ERROR_IO_PENDING)
        good = GetOverlappedResult(raw(file), &at, &got, TRUE);
    if (good) return got;
    return GetLastError() == ERROR_HANDLE_EOF ? 0 : -last_error();
}

}  // namespace

int64_t read_at(Handle file, uint64_t offset, const Part* parts, int n) {
    // Each thread waits for its own read.
    const HANDLE event = CreateEventW(nullptr, TRUE, FALSE, nullptr);
    if (!event) return -last_error();
    const Owned owned(reinterpret_cast<Handle>(event));
    int64_t sum = 0;
    for (int i = 0; i < n; i++) {
        const int64_t got = read_part(file, event, offset + uint64_t(sum), parts[i]);
        if (got < 0) return sum > 0 ? sum : got;
        sum += got;
        if (uint64_t(got) < parts[i].bytes) break;
    }
    return sum;
}

int64_t write(Handle file, const void* data, size_t n) {
    DWORD done = 0;
    const DWORD most = DWORD(std::min<size_t>(n, 1u << 30));
    return WriteFile(raw(file), data, most, &done, nullptr) ? int64_t(done) : -last_error();
}

int set_direct(Handle& file, bool direct) {
    const DWORD flags = FILE_FLAG_OVERLAPPED | (direct ? FILE_FLAG_NO_BUFFERING : 0);
    const HANDLE other = ReOpenFile(raw(file), GENERIC_READ, kMostRows, flags);
    if (other == INVALID_HANDLE_VALUE) return last_error();
    close(file);
    file = reinterpret_cast<Handle>(other);
    return 0;
}

void read_anywhere(Handle) {}  // the system looks at the reads themselves
void will_read(Handle, uint64_t, uint64_t) {}

// A file's pages cannot be stored or dropped in part.
void begin_to_store(Handle, uint64_t, uint64_t) {}
void end_to_store(Handle, uint64_t, uint64_t) {}

int store(Handle file) {
    return FlushFileBuffers(raw(file)) ? 0 : last_error();
}

int rename(const std::string& from, const std::string& to) {
    std::wstring a, b;
    if (!wide(from, a) || !wide(to, b)) return last_error();
    const DWORD how = MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH;
    return MoveFileExW(a.c_str(), b.c_str(), how) ? 0 : last_error();
}

void remove(const std::string& path) {
    std::wstring name;
    if (wide(path, name)) DeleteFileW(name.c_str());
}

const char* const kSeparators = "/\\";

size_t root_of(const std::string& path) {
    const auto separates = [&](size_t i) {
        return i < path.size() && (path[i] == '/' || path[i] == '\\');
    };
    const bool drive = path.size() >= 2 && path[1] == ':';
    return drive ? (separates(2) ? 3 : 2) : separates(0) ? 1 : 0;
}

int make_folder(const std::string& folder) {
    std::wstring name;
    if (!wide(folder, name)) return last_error();
    if (CreateDirectoryW(name.c_str(), nullptr)) return 0;
    const int error = last_error();
    About found;  // of a disk's root it says that access is denied
    return about(folder, found) == 0 && found.kind == Kind::folder ? EEXIST : error;
}

void store_names(const std::string&) {}  // MOVEFILE_WRITE_THROUGH has done it

bool may_write_in(const std::string& folder) {
    Handle file;
    if (opened(folder, FILE_ADD_FILE, kMostRows, OPEN_EXISTING, 0, file) != 0) return false;
    close(file);
    return true;
}

uint64_t free_disk(const std::string& folder) {
    std::wstring name;
    ULARGE_INTEGER bytes;
    if (!wide(folder, name) || !GetDiskFreeSpaceExW(name.c_str(), &bytes, nullptr, nullptr))
        return kUnknown;
    return bytes.QuadPart;
}

std::string cache_folder() {
    const wchar_t* folder = _wgetenv(L"LOCALAPPDATA");
    return folder ? utf8(folder) : "";
}

// ---- memory ----------------------------------------------------------------------------------

uint64_t page_size() {
    static const uint64_t size = [] {
        SYSTEM_INFO info;
        GetSystemInfo(&info);
        return uint64_t(info.dwPageSize);
    }();
    return size;
}

void* allocate(uint64_t bytes, uint64_t align, int& error) {
    error = ENOMEM;
    if (bytes > SIZE_MAX / 2 - align) return nullptr;
    // A reservation cannot be released in part. Its rest takes addresses alone.
    const uint64_t slack = align > page_size() ? align : 0;
    uint8_t* begin =
        static_cast<uint8_t*>(VirtualAlloc(nullptr, bytes + slack, MEM_RESERVE, PAGE_READWRITE));
    if (!begin) {
        error = last_error();
        return nullptr;
    }
    uint8_t* aligned = begin + (align - reinterpret_cast<uintptr_t>(begin) % align) % align;
    if (VirtualAlloc(aligned, bytes, MEM_COMMIT, PAGE_READWRITE)) {
        error = 0;
        return aligned;
    }
    error = last_error();
    VirtualFree(begin, 0, MEM_RELEASE);
    return nullptr;
}

void release(void* memory, uint64_t) {
    MEMORY_BASIC_INFORMATION found;
    if (VirtualQuery(memory, &found, sizeof(found)) != 0)
        VirtualFree(found.AllocationBase, 0, MEM_RELEASE);
}

const uint8_t* map(Handle file, uint64_t, int& error) {
    const HANDLE section = CreateFileMappingW(raw(file), nullptr, PAGE_READONLY, 0, 0, nullptr);
    const void* data = nullptr;
    if (section) data = MapViewOfFile(section, FILE_MAP_READ, 0, 0, 0);
    error = data ? 0 : last_error();
    if (section) CloseHandle(section);  // the view keeps what it needs
    return static_cast<const uint8_t*>(data);
}

void unmap(const uint8_t* data, uint64_t) {
    UnmapViewOfFile(data);
}

int lock(const uint8_t* data, uint64_t bytes) {
    uint8_t* begin = const_cast<uint8_t*>(data);
    if (VirtualLock(begin, size_t(bytes))) return 0;
    // A process may lock as much as its least working set, which it may raise itself.
    SIZE_T least, most;
    const HANDLE self = GetCurrentProcess();
    if (!GetProcessWorkingSetSize(self, &least, &most) ||
        !SetProcessWorkingSetSize(self, least + size_t(bytes), most + size_t(bytes)) ||
        !VirtualLock(begin, size_t(bytes)))
        return last_error();
    return 0;
}

uint64_t most_locked() {
    return kUnknown;
}

uint64_t peak_memory() {
    PROCESS_MEMORY_COUNTERS counters{};
    counters.cb = sizeof(counters);
    const bool told = GetProcessMemoryInfo(GetCurrentProcess(), &counters, sizeof(counters));
    return told ? counters.PeakWorkingSetSize : 0;
}

uint64_t free_memory(const std::string&) {
    MEMORYSTATUSEX status{};
    status.dwLength = sizeof(status);
    if (!GlobalMemoryStatusEx(&status)) return kUnknown;
    return std::min({status.ullAvailPhys, status.ullAvailPageFile, status.ullAvailVirtual});
}

// ---- processors, threads, libraries ----------------------------------------------------------

namespace {

// The processors that this process may run on: a mask in one group of up to 64, or all.
struct Allowed {
    bool all = true;
    GROUP_AFFINITY some{};

    // How many of those that a mask names in its group.
    int count(const GROUP_AFFINITY& of) const {
        if (!all && of.Group != some.Group) return 0;
        return __builtin_popcountll(all ? of.Mask : of.Mask & some.Mask);
    }
};

Allowed allowed_processors() {
    Allowed found;
    DWORD_PTR ours = 0, system = 0;
    // A process with threads in several groups is told 0: it may use all.
    if (!GetProcessAffinityMask(GetCurrentProcess(), &ours, &system) || ours == 0) return found;
    GetThreadGroupAffinity(GetCurrentThread(), &found.some);  // tells the group
    found.some.Mask = ours;
    found.all = false;
    return found;
}

}  // namespace

int usable_processors(const std::string&) {
    const Allowed allowed = allowed_processors();
    if (!allowed.all) return allowed.count(allowed.some);
    const DWORD n = GetActiveProcessorCount(ALL_PROCESSOR_GROUPS);
    return int(n != 0 ? n : std::max(1u, std::thread::hardware_concurrency()));
}

Fast fast_processors(const std::string& root) {
    const int n = usable_processors(root);
    DWORD size = 0;
    GetLogicalProcessorInformationEx(RelationProcessorCore, nullptr, &size);  // tells the size
    const auto bytes = std::make_unique<uint8_t[]>(size);
    using Entry = SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX;
    if (!GetLogicalProcessorInformationEx(RelationProcessorCore,
                                          reinterpret_cast<Entry*>(bytes.get()), &size))
        return {n, n};
    const Allowed allowed = allowed_processors();
    int cores = 0;
    DWORD step = 0;
    for (DWORD at = 0; at < size; at += step) {
        const auto* entry = reinterpret_cast<const Entry*>(bytes.get() + at);
        step = std::max<DWORD>(entry->Size, 1);
        cores += allowed.count(entry->Processor.GroupMask[0]) > 0;  // a core is of one group
    }
    return {n, cores > 0 ? cores : n};
}

double cpu_quota(const std::string&) {
    return 1e9;
}

double cpu_seconds() {
    FILETIME made, ended, in_kernel, in_program;
    if (!GetProcessTimes(GetCurrentProcess(), &made, &ended, &in_kernel, &in_program)) return 0;
    const uint64_t sum = joined(in_kernel.dwHighDateTime, in_kernel.dwLowDateTime) +
                         joined(in_program.dwHighDateTime, in_program.dwLowDateTime);
    return double(sum) * 1e-7;
}

void at_fork(void (*)()) {}  // there is no fork()

struct Thread {
    HANDLE handle;
    void (*run)(void*);
    void* with;
};

int start(void (*run)(void*), void* with, size_t stack, Thread*& thread) {
    auto made = std::make_unique<Thread>(Thread{nullptr, run, with});
    const uintptr_t handle = _beginthreadex(
        nullptr, unsigned(stack),
        [](void* self) -> unsigned {
            const Thread& t = *static_cast<Thread*>(self);
            t.run(t.with);
            return 0;
        },
        made.get(), STACK_SIZE_PARAM_IS_A_RESERVATION, nullptr);
    thread = nullptr;
    if (handle == 0) return errno != 0 ? errno : EAGAIN;
    made->handle = reinterpret_cast<HANDLE>(handle);
    thread = made.release();
    return 0;
}

void join(Thread* thread) {
    WaitForSingleObject(thread->handle, INFINITE);
    CloseHandle(thread->handle);
    delete thread;
}

void* open_library(const char* name) {
    // Drivers install theirs there; a library of the current folder is not trusted.
    return LoadLibraryExA(name, nullptr, LOAD_LIBRARY_SEARCH_SYSTEM32);
}

void* find_in(void* library, const char* name) {
    return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(library), name));
}

}  // namespace ggml::os
