// What Linux and macOS have in common.
#include "os/posix.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <system_error>

namespace ggml::os {

namespace {

int opened(const char* path, int flags, Handle& file) {
    int fd;
    do {
        // O_NONBLOCK: opening a named pipe must not wait for a writer. Regular files ignore it.
        fd = open(path, flags | O_CLOEXEC | O_NOCTTY, 0666);
    } while (fd < 0 && errno == EINTR);
    file = fd;
    return fd < 0 ? errno : 0;
}

About told(const struct stat& st) {
    const timespec time = modified(st);
    About found;
    found.kind = S_ISREG(st.st_mode)   ? Kind::file
                 : S_ISDIR(st.st_mode) ? Kind::folder
                                       : Kind::other;
    found.size = st.st_size > 0 ? uint64_t(st.st_size) : 0;
    found.modified = int64_t(time.tv_sec) * 1000000000 + time.tv_nsec;
    found.disk = uint64_t(st.st_dev);
    found.number = uint64_t(st.st_ino);
    return found;
}

}  // namespace

std::string reason(int error) {
    return std::generic_category().message(error);
}

bool is_full(int error) {
    return error == ENOSPC || error == EDQUOT || error == EFBIG;
}

// ---- files -----------------------------------------------------------------------------------

int about(const std::string& path, About& found) {
    struct stat st {};
    if (stat(path.c_str(), &st) != 0) return errno;
    found = told(st);
    return 0;
}

int about(Handle file, About& found) {
    struct stat st {};
    if (fstat(int(file), &st) != 0) return errno;
    found = told(st);
    return 0;
}

int open_to_read(const std::string& path, Handle& file) {
    return opened(path.c_str(), O_RDONLY | O_NONBLOCK, file);
}

int open_to_write(const std::string& path, Handle& file) {
    for (;;) {
        if (const int error = opened(path.c_str(), O_RDWR | O_CREAT, file)) return error;
        const int fd = int(file);
        int error = 0;
        // Some file systems have no locks; then two writers at once are not noticed.
        if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) error = EBUSY;
        About mine, named;
        if (error == 0) error = about(file, mine);
        if (error == 0 && mine.kind != Kind::file) error = EINVAL;
        // Between opening and locking, another process may have given the file its final name.
        const bool same = error == 0 && about(path, named) == 0 && named.number == mine.number &&
                          named.disk == mine.disk;
        if (same && ftruncate(fd, 0) == 0) return 0;
        if (same) {
            error = errno;
            remove(path);
        }
        close(std::exchange(file, kNoHandle));
        if (error != 0) return error;
    }
}

void close(Handle file) {
    ::close(int(file));
}

int64_t read_at(Handle file, uint64_t offset, const Part* parts, int n) {
    static_assert(sizeof(Part) == sizeof(iovec) &&
                  offsetof(Part, to) == offsetof(iovec, iov_base) &&
                  offsetof(Part, bytes) == offsetof(iovec, iov_len));
    const ssize_t got =
        n == 1 ? pread(int(file), parts->to, parts->bytes, off_t(offset))
               : preadv(int(file), reinterpret_cast<const iovec*>(parts), n, off_t(offset));
    return got < 0 ? -errno : got;
}

int64_t write(Handle file, const void* data, size_t n) {
    const ssize_t done = ::write(int(file), data, n);
    return done < 0 ? -errno : done;
}

int rename(const std::string& from, const std::string& to) {
    return std::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

void remove(const std::string& path) {
    unlink(path.c_str());
}

const char* const kSeparators = "/";

size_t root_of(const std::string& path) {
    return !path.empty() && path[0] == '/' ? 1 : 0;
}

int make_folder(const std::string& folder) {
    return mkdir(folder.c_str(), 0777) == 0 ? 0 : errno;
}

void store_names(const std::string& folder) {
    Handle file = kNoHandle;
    if (opened(folder.c_str(), O_RDONLY | O_DIRECTORY, file) != 0) return;
    fsync(int(file));
    close(file);
}

bool may_write_in(const std::string& folder) {
    return access(folder.c_str(), W_OK | X_OK) == 0;
}

uint64_t free_disk(const std::string& folder) {
    struct statvfs disk {};
    if (statvfs(folder.c_str(), &disk) != 0) return kUnknown;
    return uint64_t(disk.f_bavail) * uint64_t(disk.f_frsize);
}

std::string cache_folder() {
    // The specification of XDG says that a path that is not absolute is ignored.
    const char* cache = std::getenv("XDG_CACHE_HOME");
    if (cache && *cache == '/') return cache;
    const char* home = std::getenv("HOME");
    return home && *home == '/' ? std::string(home) + "/.cache" : "";
}

// ---- memory ----------------------------------------------------------------------------------

uint64_t page_size() {
    static const uint64_t size = uint64_t(sysconf(_SC_PAGESIZE));
    return size;
}

void* allocate(uint64_t bytes, uint64_t align, int& error) {
    const bool huge = align > page_size();
    const uint64_t slack = huge ? align : 0;
    error = ENOMEM;
    if (bytes > SIZE_MAX / 2 - align) return nullptr;
    const uint64_t length = (bytes + page_size() - 1) / page_size() * page_size();
    void* p =
        mmap(nullptr, length + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    error = p == MAP_FAILED ? errno : 0;
    if (error != 0) return nullptr;
    if (!huge) return p;
    // mmap aligns to small pages only: cut out an aligned piece.
    uint8_t* begin = static_cast<uint8_t*>(p);
    const uint64_t head = (align - reinterpret_cast<uintptr_t>(begin) % align) % align;
    if (head > 0) munmap(begin, head);
    if (head < slack) munmap(begin + head + length, slack - head);
    use_huge_pages(begin + head, length);
    return begin + head;
}

void release(void* memory, uint64_t bytes) {
    munmap(memory, bytes);
}

const uint8_t* map(Handle file, uint64_t bytes, int& error) {
    void* p = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, int(file), 0);
    error = p == MAP_FAILED ? errno : 0;
    return error != 0 ? nullptr : static_cast<const uint8_t*>(p);
}

void unmap(const uint8_t* data, uint64_t bytes) {
    munmap(const_cast<uint8_t*>(data), bytes);
}

int lock(const uint8_t* data, uint64_t bytes) {
    return mlock(data, bytes) == 0 ? 0 : errno;
}

uint64_t most_locked() {
    rlimit limit{};
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kUnknown;
    return limit.rlim_cur;
}

uint64_t peak_memory() {
    rusage usage{};
    return getrusage(RUSAGE_SELF, &usage) == 0 ? peak_bytes(usage.ru_maxrss) : 0;
}

// ---- processors, threads, libraries ----------------------------------------------------------

double cpu_seconds() {
    return double(std::clock()) / CLOCKS_PER_SEC;
}

void at_fork(void (*in_child)()) {
    pthread_atfork(nullptr, nullptr, in_child);
}

struct Thread {
    pthread_t id;
    void (*run)(void*);
    void* with;
};

int start(void (*run)(void*), void* with, size_t stack, Thread*& thread) {
    auto made = std::make_unique<Thread>(Thread{{}, run, with});
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    int error = pthread_attr_setstacksize(&attributes, stack);
    if (error == 0) {
        error = pthread_create(
            &made->id, &attributes,
            [](void* self) -> void* {
                const Thread& t = *static_cast<Thread*>(self);
                t.run(t.with);
                return nullptr;
            },
            made.get());
    }
    pthread_attr_destroy(&attributes);
    thread = error == 0 ? made.release() : nullptr;
    return error;
}

void join(Thread* thread) {
    pthread_join(thread->id, nullptr);
    delete thread;
}

void* open_library(const char* name) {
    return dlopen(name, RTLD_NOW | RTLD_LOCAL);
}

void* find_in(void* library, const char* name) {
    return dlsym(library, name);
}

}  // namespace ggml::os
