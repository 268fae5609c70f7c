// Files, mappings and memory from the operating system. With threads.cpp the only place of the
// tensor core that calls it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

namespace ggml {

// Is there something under this name? False also where it cannot be told.
bool file_exists(const std::string& path);

// A regular file opened for reading. Throws Error(io) naming the path: missing, a directory, a
// device or pipe, empty, unreadable.
class File {
 public:
    explicit File(const std::string& path);
    ~File();
    File(const File&) = delete;
    File& operator=(const File&) = delete;

    const std::string& path() const { return path_; }
    uint64_t size() const { return size_; }
    // Reads exactly n bytes at offset; a short read is Error(io).
    void read(uint64_t offset, void* dst, size_t n) const;

 private:
    friend class Mapping;
    std::string path_;
    int fd_ = -1;
    uint64_t size_ = 0;
};

// A read-only mapping of a whole file, shared with the page cache.
class Mapping {
 public:
    explicit Mapping(const File& file);
    ~Mapping();
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;

    const uint8_t* data() const { return data_; }
    uint64_t size() const { return size_; }
    // Tells the system that this range will be read soon, or is no longer needed by this process
    // (it stays readable). Parts outside the file are ignored.
    void will_need(uint64_t offset, uint64_t n) const;
    void drop(uint64_t offset, uint64_t n) const;
    // Keeps the pages of a range in RAM. Throws Error(memory) where the limit forbids it.
    void lock(uint64_t offset, uint64_t n) const;

 private:
    std::string path_;
    const uint8_t* data_ = nullptr;
    uint64_t size_ = 0;
};

// Zeroed, page-aligned memory that is committed when touched; huge pages where the system allows.
// Throws Error(memory) naming `what` and the size. No bytes: data() is null.
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

// Hands what was written to the device; false with errno set where that fails.
bool flush_to_disk(std::FILE* file);

// Bytes this process can still take: the least of MemAvailable, every cgroup's limit less its use
// (v1 and v2, file cache that can be dropped not counted), and RLIMIT_AS less the address space in
// use. `root` stands before /proc and the cgroup mounts: tests show it another system there.
uint64_t available_memory(const std::string& root = "");

}  // namespace ggml
