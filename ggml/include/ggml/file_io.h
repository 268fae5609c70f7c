// Files, mappings and memory from the operating system. Paths are UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "ggml/status.h"

namespace ggml {

// Does the path exist? Also false if that cannot be determined.
bool file_exists(const std::string& path);

// A regular file opened for reading. The constructor throws Error(io) naming the path if it is
// missing, empty, unreadable, or not a regular file.
class File {
 public:
    explicit File(const std::string& path);
    ~File();
    File(const File&) = delete;
    File& operator=(const File&) = delete;

    const std::string& path() const { return path_; }
    uint64_t size() const { return size_; }
    // Reads exactly n bytes at offset. Throws Error(io) if there are fewer.
    void read(uint64_t offset, void* dst, size_t n) const;
    // A hint to the system: the range will soon be read. Parts outside the file are ignored.
    void will_read(uint64_t offset, uint64_t n) const;
    // Throws Error(format) if the file was written to since it was opened: what was read before
    // this call may be of two files. That its name went to another one changes nothing.
    void require_unchanged() const;
    // Is its name still its own? Another file may have got it, or it was removed.
    bool is_named() const;

 private:
    friend class Mapping;
    std::string path_;
    intptr_t handle_ = -1;
    uint64_t size_ = 0;
    int64_t modified_ = 0;  // nanoseconds
};

// A read-only mapping of a whole file. It shares the page cache with other processes. The
// constructor throws Error(io) or Error(memory).
class Mapping {
 public:
    explicit Mapping(const File& file);
    ~Mapping();
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;

    const uint8_t* data() const { return data_; }
    uint64_t size() const { return size_; }
    // Keeps the pages of a range in RAM. Throws Error(memory) if the limit (ulimit -l) is too low.
    void lock(uint64_t offset, uint64_t n) const;

 private:
    std::string path_;
    const uint8_t* data_ = nullptr;
    uint64_t size_ = 0;
};

// Zeroed, page-aligned memory. Pages are committed on first use; the system may use huge pages.
// Throws Error(memory) naming `what` and the size. For 0 bytes data() is null.
class Memory {
 public:
    Memory() = default;
    Memory(uint64_t bytes, const char* what);
    ~Memory();
    Memory(Memory&& other) noexcept;
    Memory& operator=(Memory&& other) noexcept;

    uint8_t* data() const { return data_; }
    template <typename T>
    T* as() const {
        return reinterpret_cast<T*>(data_);
    }
    uint64_t size() const { return size_; }
    void lock() const;

 private:
    uint8_t* data_ = nullptr;
    uint64_t size_ = 0;
};

// Another process is writing a file; it has Code::io.
class Busy : public Error {
 public:
    using Error::Error;
};

// A file that appears under its name when it is complete, and on the disk. Until finish() it is
// PATH.part, which the destructor removes; what a killed process leaves there the next one writes
// over. Written pages do not stay in the page cache: a model would push out everything else.
// Everything throws Error(io) naming the path, also for a full disk. After an error only the
// destructor may be called.
class OutputFile {
 public:
    // Throws Busy if another process is writing PATH.
    explicit OutputFile(const std::string& path);
    ~OutputFile();
    OutputFile(const OutputFile&) = delete;
    OutputFile& operator=(const OutputFile&) = delete;

    const std::string& path() const { return path_; }
    bool is_open() const { return handle_ != -1; }
    uint64_t size() const { return size_; }  // bytes written so far
    void write(const void* data, size_t n);
    void finish();
    void abandon();  // removes it; nothing if it is finished

 private:
    [[noreturn]] void fail(int error);
    void flush();
    void put(const char* data, size_t n);
    // Lets the disk write the last window while the next one is filled, and drops the pages of the
    // one before.
    void release();
    std::string path_, part_, buffer_;
    intptr_t handle_ = -1;
    uint64_t size_ = 0;     // with what is in the buffer
    uint64_t begun_ = 0;    // up to here the system has begun to write to the disk
    uint64_t settled_ = 0;  // up to here it has written, and has no pages left
};

// The folder of a path, "." for a name alone; whether this process may make files in a folder; and
// the bytes that are free for it on the folder's disk, kUnknownBytes if the system does not say.
std::string folder_of(const std::string& path);
bool may_write_in(const std::string& folder);
constexpr uint64_t kUnknownBytes = UINT64_MAX;
uint64_t free_disk(const std::string& folder);
// Makes a folder and those above it that are missing. Throws Error(io).
void make_folders(const std::string& folder);
// Are these names of one file?
bool same_file(const std::string& one, const std::string& other);
// Where a user's programs keep what they can make again. "" if the user has no such folder.
std::string cache_folder();

// Bytes of memory that this process can still take. On Linux it is the smallest of three values:
// MemAvailable; the limits of each cgroup (v1 and v2: memory.max, memory.high, memory with swap)
// less its use, where what the kernel can take back (file cache that is written, caches of names)
// does not count as use; and RLIMIT_AS less the address space in use. `root` is prepended to all
// paths under /proc and the cgroup mounts, so that tests can imitate other systems.
uint64_t available_memory(const std::string& root = "");
// The most RAM that this process has had, in bytes; 0 if unknown.
uint64_t peak_memory();

}  // namespace ggml
