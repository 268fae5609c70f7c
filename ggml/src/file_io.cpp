#include "ggml/file_io.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <limits>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

#include "ggml/status.h"

namespace ggml {

namespace {

constexpr uint64_t kHugePage = uint64_t(2) << 20;
constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

std::string reason(int error) {
    return std::generic_category().message(error);
}

uint64_t page_size() {
    static const uint64_t size = uint64_t(sysconf(_SC_PAGESIZE));
    return size;
}

std::string size_text(uint64_t bytes) {
    if (bytes < 1 << 20) return format("%llu bytes", static_cast<unsigned long long>(bytes));
    if (bytes < 1 << 30) return format("%.1f MiB", double(bytes) / (1 << 20));
    return format("%.2f GiB", double(bytes) / (1 << 30));
}

void lock_pages(const uint8_t* data, uint64_t size, const std::string& what) {
    if (size == 0 || mlock(data, size) == 0) return;
    const int error = errno;
    std::string message = format("%s: cannot keep %s in RAM: %s", what.c_str(),
                                 size_text(size).c_str(), reason(error).c_str());
    rlimit limit{};
    // The limit covers all locked memory, so it may be the reason even if it is larger than `size`.
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        message += format(" (ulimit -l allows %s)", size_text(limit.rlim_cur).c_str());
    throw Error(Code::memory, message);
}

}  // namespace

// ---- files -----------------------------------------------------------------------------------

bool file_exists(const std::string& path) {
    struct stat st {};
    return stat(path.c_str(), &st) == 0;
}

namespace {

int64_t modified(const struct stat& st) {
#ifdef __APPLE__
    const timespec& t = st.st_mtimespec;
#else
    const timespec& t = st.st_mtim;
#endif
    return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}

}  // namespace

File::File(const std::string& path) : path_(path) {
    // O_NONBLOCK: opening a named pipe must not wait for a writer. Regular files ignore it.
    fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd_ < 0) {
        const int error = errno;
        throw Error(Code::io, error == ENOENT ? format("%s: there is no such file", path.c_str())
                                              : format("%s: cannot be opened: %s", path.c_str(),
                                                       reason(error).c_str()));
    }
    struct stat st {};
    std::string problem;
    if (fstat(fd_, &st) != 0) {
        problem = "cannot be examined: " + reason(errno);
    } else if (S_ISDIR(st.st_mode)) {
        problem = "is a directory, not a file";
    } else if (!S_ISREG(st.st_mode)) {
        problem = "is not a regular file";
    } else if (st.st_size <= 0) {
        problem = "is empty";
    }
    if (!problem.empty()) {
        close(fd_);
        throw Error(Code::io, path + ": " + problem);
    }
    size_ = uint64_t(st.st_size);
    modified_ = modified(st);
}

File::~File() {
    if (fd_ >= 0) close(fd_);
}

void File::read(uint64_t offset, void* dst, size_t n) const {
    if (n > size_ || offset > size_ - n)
        throw Error(Code::io,
                    format("%s: %zu bytes at offset %llu lie outside the file (size %llu)",
                           path_.c_str(), n, static_cast<unsigned long long>(offset),
                           static_cast<unsigned long long>(size_)));
    uint8_t* p = static_cast<uint8_t*>(dst);
    while (n > 0) {
        // One call reads at most about 2 GiB; smaller pieces can be interrupted sooner.
        const ssize_t got = pread(fd_, p, std::min(n, size_t(1) << 30), off_t(offset));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            throw Error(Code::io,
                        format("%s: cannot be read at offset %llu: %s", path_.c_str(),
                               static_cast<unsigned long long>(offset), reason(errno).c_str()));
        if (got == 0)
            throw Error(Code::io,
                        format("%s: ends at offset %llu; it was longer when it was opened",
                               path_.c_str(), static_cast<unsigned long long>(offset)));
        p += got;
        offset += uint64_t(got);
        n -= size_t(got);
    }
}

void File::require_unchanged() const {
    struct stat st {};
    if (fstat(fd_, &st) == 0 && uint64_t(st.st_size) == size_ && modified(st) == modified_) return;
    throw Error(Code::format, path_ + ": was changed while it was open");
}

// ---- files that are written ------------------------------------------------------------------

namespace {

constexpr size_t kBuffered = 1 << 20;  // smaller pieces are collected
constexpr uint64_t kWindow = 32 << 20;

// Opens `part` and locks it. -1 with errno; EBUSY: another process is writing it.
int open_part(const std::string& part) {
    for (;;) {
        const int fd = open(part.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666);
        if (fd < 0) return -1;
        int error = 0;
        // Some file systems have no locks; then two writers at once are not noticed.
        if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) error = EBUSY;
        struct stat mine {
        }, named{};
        if (error == 0 && fstat(fd, &mine) != 0) error = errno;
        if (error == 0 && !S_ISREG(mine.st_mode)) error = EINVAL;
        // Between opening and locking, another process may have given the file its final name.
        const bool same = error == 0 && stat(part.c_str(), &named) == 0 &&
                          named.st_ino == mine.st_ino && named.st_dev == mine.st_dev;
        if (same && ftruncate(fd, 0) == 0) return fd;
        if (same) {
            error = errno;
            unlink(part.c_str());
        }
        close(fd);
        if (error != 0) {
            errno = error;
            return -1;
        }
    }
}

}  // namespace

OutputFile::OutputFile(const std::string& path) : path_(path), part_(path + ".part") {
    struct stat st {};
    // rename() would replace a device by a file. That a folder has the name, it finds itself.
    if (stat(path.c_str(), &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) {
        throw Error(Code::io, path + ": exists and is not a regular file");
    }
    fd_ = open_part(part_);
    if (fd_ < 0) fail(errno);
}

OutputFile::~OutputFile() {
    abandon();
}

void OutputFile::abandon() {
    if (fd_ < 0) return;
    unlink(part_.c_str());  // before its lock is given back
    close(fd_);
    fd_ = -1;
}

void OutputFile::fail(int error) {
    abandon();
    const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
    if (error == EBUSY) throw Busy(Code::io, path_ + ": another process is writing it");
    const std::string why =
        full ? "no space left to write it" : "cannot be written: " + reason(error);
    throw Error(Code::io, path_ + ": " + why);
}

void OutputFile::write(const void* data, size_t n) {
    if (buffer_.size() + n <= kBuffered) {
        buffer_.append(static_cast<const char*>(data), n);
        size_ += n;
        return;
    }
    flush();
    size_ += n;
    put(static_cast<const char*>(data), n);
    if (size_ - begun_ >= kWindow) release();
}

void OutputFile::flush() {
    put(buffer_.data(), buffer_.size());
    buffer_.clear();
}

void OutputFile::put(const char* data, size_t n) {
    while (n > 0) {
        const ssize_t done = ::write(fd_, data, std::min(n, size_t(kWindow)));
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) fail(done < 0 ? errno : EIO);
        data += done;
        n -= size_t(done);
    }
}

void OutputFile::release() {
#ifdef __linux__
    constexpr unsigned all =
        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    sync_file_range(fd_, off_t(begun_), off_t(size_ - begun_), SYNC_FILE_RANGE_WRITE);
    if (begun_ > settled_) {
        sync_file_range(fd_, off_t(settled_), off_t(begun_ - settled_), all);
        posix_fadvise(fd_, off_t(settled_), off_t(begun_ - settled_), POSIX_FADV_DONTNEED);
    }
#endif
    settled_ = begun_;
    begun_ = size_;
}

void OutputFile::finish() {
    flush();
    // fsync before the rename, so that the name never refers to an incomplete file after a power
    // failure. Some file systems report a full disk only here.
    if (fsync(fd_) != 0) fail(errno);
#ifdef __linux__
    posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
#endif
    if (std::rename(part_.c_str(), path_.c_str()) != 0) fail(errno);
    close(fd_);
    fd_ = -1;
    // And of the folder, so that the name is there. Not every file system can do this.
    const int folder = open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return;
    fsync(folder);
    close(folder);
}

std::string folder_of(const std::string& path) {
    const size_t end = path.rfind('/');
    return end == std::string::npos ? "." : end == 0 ? "/" : path.substr(0, end);
}

bool may_write_in(const std::string& folder) {
    return access(folder.c_str(), W_OK | X_OK) == 0;
}

uint64_t free_disk(const std::string& folder) {
    struct statvfs disk {};
    if (statvfs(folder.c_str(), &disk) != 0) return kUnknownBytes;
    return uint64_t(disk.f_bavail) * uint64_t(disk.f_frsize);
}

void make_folders(const std::string& folder) {
    struct stat st {};
    if (stat(folder.c_str(), &st) == 0 && S_ISDIR(st.st_mode)) return;
    const std::string above = folder_of(folder);
    if (above != folder && above != ".") make_folders(above);
    if (mkdir(folder.c_str(), 0777) == 0 || errno == EEXIST) return;
    throw Error(Code::io, folder + ": the folder cannot be made: " + reason(errno));
}

bool same_file(const std::string& one, const std::string& other) {
    struct stat a {
    }, b{};
    return stat(one.c_str(), &a) == 0 && stat(other.c_str(), &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

// ---- mappings --------------------------------------------------------------------------------

Mapping::Mapping(const File& file) : path_(file.path()), size_(file.size()) {
    void* p = mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.fd_, 0);
    if (p == MAP_FAILED) {
        const int error = errno;
        throw Error(error == ENOMEM ? Code::memory : Code::io,
                    format("%s: cannot be mapped: %s", path_.c_str(), reason(error).c_str()));
    }
    data_ = static_cast<const uint8_t*>(p);
}

Mapping::~Mapping() {
    if (data_) munmap(const_cast<uint8_t*>(data_), size_);
}

void Mapping::will_need(uint64_t offset, uint64_t n) const {
    if (offset >= size_ || n == 0) return;
    const uint64_t end = offset + std::min(n, size_ - offset);
    const uint64_t begin = offset / page_size() * page_size();
    madvise(const_cast<uint8_t*>(data_) + begin, end - begin, MADV_WILLNEED);
}

void Mapping::drop(uint64_t offset, uint64_t n) const {
    if (offset >= size_ || n == 0) return;
    // Only whole pages: bytes outside the range may still be in use.
    uint64_t end = offset + std::min(n, size_ - offset);
    if (end < size_) end = end / page_size() * page_size();
    const uint64_t begin = (offset + page_size() - 1) / page_size() * page_size();
    if (begin < end) madvise(const_cast<uint8_t*>(data_) + begin, end - begin, MADV_DONTNEED);
}

void Mapping::lock(uint64_t offset, uint64_t n) const {
    if (offset >= size_ || n == 0) return;
    const uint64_t begin = offset / page_size() * page_size();
    lock_pages(data_ + begin, offset + std::min(n, size_ - offset) - begin, path_);
}

// ---- memory ----------------------------------------------------------------------------------

Memory::Memory(uint64_t bytes, const char* what) {
    if (bytes == 0) return;
    const bool huge = bytes >= kHugePage;
    const uint64_t slack = huge ? kHugePage : 0;
    void* p = MAP_FAILED;
    int error = ENOMEM;
    uint64_t length = 0;
    if (bytes <= std::numeric_limits<size_t>::max() / 2 - kHugePage) {
        length = (bytes + page_size() - 1) / page_size() * page_size();
        p = mmap(nullptr, length + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                 0);
        error = errno;
    }
    if (p == MAP_FAILED)
        throw Error(Code::memory, format("cannot allocate %s for %s: %s", size_text(bytes).c_str(),
                                         what, reason(error).c_str()));
    uint8_t* begin = static_cast<uint8_t*>(p);
    if (huge) {  // mmap aligns to small pages only: map more and cut out an aligned piece
        const uint64_t head =
            (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
        if (head > 0) munmap(begin, head);
        if (head < slack) munmap(begin + head + length, slack - head);
        begin += head;
        madvise(begin, length, MADV_HUGEPAGE);
    }
    data_ = begin;
    size_ = bytes;
}

Memory::~Memory() {
    if (data_) munmap(data_, size_);
}

Memory::Memory(Memory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

void Memory::lock() const {
    lock_pages(data_, size_, "memory");
}

// ---- available memory ------------------------------------------------------------------------

namespace {

// Finds the number after `key` in lines like "MemAvailable:  123 kB" or "inactive_file 123".
bool find_number(const std::string& path, const std::string& key, uint64_t& value) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        std::string word;
        if (words >> word && word == key && words >> value) return true;
    }
    return false;
}

// False if the file is missing or contains "max".
bool read_number(const std::string& path, uint64_t& value) {
    std::ifstream file(path);
    return bool(file >> value);
}

bool has_item(const std::string& list, const std::string& item) {
    return ("," + list + ",").find("," + item + ",") != std::string::npos;
}

// Bytes that one cgroup has left. Its use includes the page cache; the inactive part of that is
// reclaimed first and not counted.
uint64_t left_in_cgroup(const std::string& dir, bool v2) {
    uint64_t limit = 0, use = 0, cache = 0;
    if (!read_number(dir + (v2 ? "/memory.max" : "/memory.limit_in_bytes"), limit))
        return kUnlimited;
    if (!read_number(dir + (v2 ? "/memory.current" : "/memory.usage_in_bytes"), use)) return limit;
    find_number(dir + "/memory.stat", v2 ? "inactive_file" : "total_inactive_file", cache);
    use -= std::min(use, cache);
    return limit - std::min(limit, use);
}

// The smallest value for the cgroup `path` and its parents up to the mount point. In a container
// the mount may begin at an inner cgroup (`mount_root`), or the path may not be visible at all.
uint64_t left_in_hierarchy(std::string path, const std::string& mount_root,
                           const std::string& mount_point, bool v2) {
    if (mount_root != "/") {
        const bool inside = path.compare(0, mount_root.size(), mount_root) == 0 &&
                            (path.size() == mount_root.size() || path[mount_root.size()] == '/');
        path = inside ? path.substr(mount_root.size()) : "";
    }
    if (path == "/" || path.find("/..") != std::string::npos) path.clear();
    uint64_t left = kUnlimited;
    for (;; path.resize(path.rfind('/'))) {
        left = std::min(left, left_in_cgroup(mount_point + path, v2));
        if (path.empty() || path[0] != '/') return left;
    }
}

uint64_t left_in_cgroups(const std::string& root) {
    std::string v1_path, v2_path;
    std::ifstream self(root + "/proc/self/cgroup");
    for (std::string line; std::getline(self, line);) {  // "4:memory:/a/b", v2: "0::/a/b"
        const size_t a = line.find(':');
        const size_t b = a == std::string::npos ? a : line.find(':', a + 1);
        if (b == std::string::npos) continue;
        const std::string controllers = line.substr(a + 1, b - a - 1);
        if (controllers.empty()) v2_path = line.substr(b + 1);
        if (has_item(controllers, "memory")) v1_path = line.substr(b + 1);
    }
    uint64_t left = kUnlimited;
    std::ifstream mounts(root + "/proc/self/mountinfo");
    for (std::string line; std::getline(mounts, line);) {
        // id parent device root point options [tags] - type source super_options
        std::istringstream words(line);
        std::string word, mount_root, point, type, options;
        words >> word >> word >> word >> mount_root >> point;
        while (words >> word && word != "-") {
        }
        words >> type >> word >> options;
        if (type == "cgroup2" && !v2_path.empty())
            left = std::min(left, left_in_hierarchy(v2_path, mount_root, root + point, true));
        if (type == "cgroup" && has_item(options, "memory") && !v1_path.empty())
            left = std::min(left, left_in_hierarchy(v1_path, mount_root, root + point, false));
    }
    return left;
}

}  // namespace

uint64_t available_memory(const std::string& root) {
    uint64_t left = kUnlimited, kib = 0;
    if (find_number(root + "/proc/meminfo", "MemAvailable:", kib)) left = kib << 10;
    left = std::min(left, left_in_cgroups(root));
    rlimit limit{};
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        find_number(root + "/proc/self/status", "VmSize:", kib)) {
        const uint64_t space = limit.rlim_cur;
        left = std::min(left, space - std::min(space, kib << 10));
    }
    return left;
}

}  // namespace ggml
