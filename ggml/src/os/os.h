// The operating system: what the library needs of it. Nothing else in the library calls it, except
// for io_uring (reader/uring.cpp). posix.cpp is for Linux and macOS, with linux.cpp or macos.cpp;
// windows.cpp is all of Windows, and alone includes windows.h, whose names collide with ours.
//
// Paths are UTF-8. Errors are values of errno on every system; 0: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace ggml::os {

constexpr uint64_t kUnknown = UINT64_MAX;  // bytes that the system does not tell, or does not limit

std::string reason(int error);
bool is_full(int error);  // of a disk, or of what a user may have of it

// ---- files -----------------------------------------------------------------------------------

using Handle = intptr_t;
constexpr Handle kNoHandle = -1;

enum class Kind { file, folder, other };

struct About {
    Kind kind = Kind::other;
    uint64_t size = 0;
    int64_t modified = 0;           // nanoseconds
    uint64_t disk = 0, number = 0;  // the same for all names of a file
};
int about(const std::string& path, About& found);
int about(Handle file, About& found);

// To read; kNoHandle with an error. Does not wait for the writer of a named pipe.
int open_to_read(const std::string& path, Handle& file);
// To write: a regular file, which is emptied. EBUSY if another process is writing it.
int open_to_write(const std::string& path, Handle& file);
void close(Handle file);

// A place in memory; the same as the system's iovec.
struct Part {
    void* to;
    size_t bytes;
};
// One call of the system: the number of bytes, 0 at the file's end, or -errno.
int64_t read_at(Handle file, uint64_t offset, const Part* parts, int n);
int64_t write(Handle file, const void* data, size_t n);
// Reads past the system's cache, or not. The handle may become another one.
int set_direct(Handle& file, bool direct);
// Hints: reads will be anywhere, so reading ahead is in vain; and this range is read soon.
void read_anywhere(Handle file);
void will_read(Handle file, uint64_t offset, uint64_t bytes);

// A range of a file was written: the disk may begin with it; and it is on the disk and its pages
// may leave the cache.
void begin_to_store(Handle file, uint64_t begin, uint64_t end);
void end_to_store(Handle file, uint64_t begin, uint64_t end);
// All of it is on the disk, and its pages may leave the cache.
int store(Handle file);
int rename(const std::string& from, const std::string& to);  // replaces a file
void remove(const std::string& path);

// The characters that separate folders, and the length of what a path begins with that is no
// folder's name: "/", "C:\".
extern const char* const kSeparators;
size_t root_of(const std::string& path);
int make_folder(const std::string& folder);
void store_names(const std::string& folder);  // where the system can
bool may_write_in(const std::string& folder);
uint64_t free_disk(const std::string& folder);
// Where a user's programs keep what they can make again. "" if the user has no such folder.
std::string cache_folder();

// A handle that is closed with its owner.
class Owned {
 public:
    Owned() = default;
    explicit Owned(Handle handle) : handle_(handle) {}
    ~Owned() {
        if (handle_ != kNoHandle) close(handle_);
    }
    Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, kNoHandle)) {}
    Owned& operator=(Owned&& other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    Handle get() const { return handle_; }
    Handle& get() { return handle_; }

 private:
    Handle handle_ = kNoHandle;
};

// ---- memory ----------------------------------------------------------------------------------

uint64_t page_size();
constexpr uint64_t kHugePage = uint64_t(2) << 20;
// Zeroed pages that begin at a multiple of `align`, a page or kHugePage; then in huge pages if the
// system has them. Null with an error.
void* allocate(uint64_t bytes, uint64_t align, int& error);
void release(void* memory, uint64_t bytes);
// A whole file, to read. Null with an error.
const uint8_t* map(Handle file, uint64_t bytes, int& error);
void unmap(const uint8_t* data, uint64_t bytes);
// Keeps whole pages in RAM.
int lock(const uint8_t* data, uint64_t bytes);
uint64_t most_locked();  // the limit on all of them
uint64_t peak_memory();  // the most RAM that this process has had; 0 if unknown
// What this process can still take: see available_memory in file_io.h.
uint64_t free_memory(const std::string& root);

// ---- processors, threads, libraries ----------------------------------------------------------

// root, here: of the file system, for tests.
int usable_processors(const std::string& root);  // that this process may run on, at least 1
// Of these, the ones that are at least half as fast as the fastest: in a phone, without the small
// cores, for which the others would wait.
struct Fast {
    int processors;
    int cores;  // that these belong to: two processors of one core share its arithmetic
};
Fast fast_processors(const std::string& root);
double cpu_quota(const std::string& root);  // of processors at a time; a large number if all
bool may_use_tiles();                       // of AMX; on Linux alone
double cpu_seconds();                       // of this process's threads together
// Calls this in every child of fork().
void at_fork(void (*in_child)());

// A thread with a small stack.
struct Thread;
int start(void (*run)(void*), void* with, size_t stack, Thread*& thread);
void join(Thread* thread);

void* open_library(const char* name);  // until the process ends; null if there is none
void* find_in(void* library, const char* name);

}  // namespace ggml::os
