#include "ggml/file_io.h"

#include <algorithm>
#include <cerrno>
#include <type_traits>
#include <utility>

#include "ggml/status.h"
#include "os/os.h"

namespace ggml {

namespace {

using os::page_size;
using os::reason;

std::string size_text(uint64_t bytes) {
    if (bytes < 1 << 20) return format("%llu bytes", static_cast<unsigned long long>(bytes));
    if (bytes < 1 << 30) return format("%.1f MiB", double(bytes) / (1 << 20));
    return format("%.2f GiB", double(bytes) / (1 << 30));
}

void lock_pages(const uint8_t* data, uint64_t size, const std::string& what) {
    const int error = size == 0 ? 0 : os::lock(data, size);
    if (error == 0) return;
    std::string message = format("%s: cannot keep %s in RAM: %s", what.c_str(),
                                 size_text(size).c_str(), reason(error).c_str());
    // The limit covers all locked memory, so it may be the reason even if it is larger than `size`.
    const uint64_t limit = os::most_locked();
    if (limit != os::kUnknown)
        message += format(" (ulimit -l allows %s)", size_text(limit).c_str());
    throw Error(Code::memory, message);
}

}  // namespace

// ---- files -----------------------------------------------------------------------------------

bool file_exists(const std::string& path) {
    os::About found;
    return os::about(path, found) == 0;
}

File::File(const std::string& path) : path_(path) {
    static_assert(std::is_same_v<os::Handle, decltype(handle_)> && os::kNoHandle == -1);
    os::Handle handle;
    if (const int error = os::open_to_read(path, handle))
        throw Error(Code::io, error == ENOENT ? format("%s: there is no such file", path.c_str())
                                              : format("%s: cannot be opened: %s", path.c_str(),
                                                       reason(error).c_str()));
    os::Owned file(handle);
    os::About found;
    std::string problem;
    if (const int error = os::about(handle, found)) {
        problem = "cannot be examined: " + reason(error);
    } else if (found.kind == os::Kind::folder) {
        problem = "is a directory, not a file";
    } else if (found.kind != os::Kind::file) {
        problem = "is not a regular file";
    } else if (found.size == 0) {
        problem = "is empty";
    }
    if (!problem.empty()) throw Error(Code::io, path + ": " + problem);
    size_ = found.size;
    modified_ = found.modified;
    handle_ = std::exchange(file.get(), os::kNoHandle);
}

File::~File() {
    if (handle_ != os::kNoHandle) os::close(handle_);
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
        const os::Part part{p, std::min(n, size_t(1) << 30)};
        const int64_t got = os::read_at(handle_, offset, &part, 1);
        if (got == -EINTR) continue;
        if (got < 0)
            throw Error(Code::io,
                        format("%s: cannot be read at offset %llu: %s", path_.c_str(),
                               static_cast<unsigned long long>(offset), reason(int(-got)).c_str()));
        if (got == 0)
            throw Error(Code::io,
                        format("%s: ends at offset %llu; it was longer when it was opened",
                               path_.c_str(), static_cast<unsigned long long>(offset)));
        p += got;
        offset += uint64_t(got);
        n -= size_t(got);
    }
}

void File::will_read(uint64_t offset, uint64_t n) const {
    if (offset < size_ && n > 0) os::will_read(handle_, offset, std::min(n, size_ - offset));
}

void File::require_unchanged() const {
    os::About now;
    if (os::about(handle_, now) == 0 && now.size == size_ && now.modified == modified_) return;
    throw Error(Code::format, path_ + ": was changed while it was open");
}

bool File::is_named() const {
    os::About mine, named;
    return os::about(handle_, mine) == 0 && os::about(path_, named) == 0 &&
           mine.disk == named.disk && mine.number == named.number;
}

// ---- files that are written ------------------------------------------------------------------

namespace {

constexpr size_t kBuffered = 1 << 20;  // smaller pieces are collected
constexpr uint64_t kWindow = 32 << 20;

}  // namespace

OutputFile::OutputFile(const std::string& path) : path_(path), part_(path + ".part") {
    os::About found;
    // rename() would replace a device by a file. That a folder has the name, it finds itself.
    if (os::about(path, found) == 0 && found.kind == os::Kind::other) {
        throw Error(Code::io, path + ": exists and is not a regular file");
    }
    if (const int error = os::open_to_write(part_, handle_)) fail(error);
}

OutputFile::~OutputFile() {
    abandon();
}

void OutputFile::abandon() {
    if (!is_open()) return;
    os::remove(part_);  // before its lock is given back
    os::close(std::exchange(handle_, os::kNoHandle));
}

void OutputFile::fail(int error) {
    abandon();
    if (error == EBUSY) throw Busy(Code::io, path_ + ": another process is writing it");
    const std::string why =
        os::is_full(error) ? "no space left to write it" : "cannot be written: " + reason(error);
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
        const int64_t done = os::write(handle_, data, std::min(n, size_t(kWindow)));
        if (done == -EINTR) continue;
        if (done <= 0) fail(done < 0 ? int(-done) : EIO);
        data += done;
        n -= size_t(done);
    }
}

void OutputFile::release() {
    os::begin_to_store(handle_, begun_, size_);
    if (begun_ > settled_) os::end_to_store(handle_, settled_, begun_);
    settled_ = begun_;
    begun_ = size_;
}

void OutputFile::finish() {
    flush();
    // Stored before the rename, so that the name never refers to an incomplete file after a power
    // failure. Some file systems report a full disk only here.
    if (const int error = os::store(handle_)) fail(error);
    if (const int error = os::rename(part_, path_)) fail(error);
    os::close(std::exchange(handle_, os::kNoHandle));
    os::store_names(folder_of(path_));  // so that the name is there, too
}

std::string folder_of(const std::string& path) {
    const size_t end = path.find_last_of(os::kSeparators), root = os::root_of(path);
    if (end == std::string::npos) return root == 0 ? "." : path.substr(0, root);
    return path.substr(0, std::max(end, root));
}

bool may_write_in(const std::string& folder) {
    return os::may_write_in(folder);
}

uint64_t free_disk(const std::string& folder) {
    static_assert(os::kUnknown == kUnknownBytes);
    return os::free_disk(folder);
}

void make_folders(const std::string& folder) {
    const std::string above = folder_of(folder);
    if (above != folder && above != ".") make_folders(above);
    const int error = os::make_folder(folder);
    if (error == 0 || error == EEXIST) return;
    throw Error(Code::io, folder + ": the folder cannot be made: " + reason(error));
}

bool same_file(const std::string& one, const std::string& other) {
    os::About a, b;
    return os::about(one, a) == 0 && os::about(other, b) == 0 && a.disk == b.disk &&
           a.number == b.number;
}

std::string cache_folder() {
    return os::cache_folder();
}

// ---- mappings --------------------------------------------------------------------------------

Mapping::Mapping(const File& file) : path_(file.path()), size_(file.size()) {
    int error;
    data_ = os::map(file.handle_, size_, error);
    if (!data_)
        throw Error(error == ENOMEM ? Code::memory : Code::io,
                    format("%s: cannot be mapped: %s", path_.c_str(), reason(error).c_str()));
}

Mapping::~Mapping() {
    if (data_) os::unmap(data_, size_);
}

void Mapping::lock(uint64_t offset, uint64_t n) const {
    if (offset >= size_ || n == 0) return;
    const uint64_t begin = offset / page_size() * page_size();
    lock_pages(data_ + begin, offset + std::min(n, size_ - offset) - begin, path_);
}

// ---- memory ----------------------------------------------------------------------------------

Memory::Memory(uint64_t bytes, const char* what) {
    if (bytes == 0) return;
    int error;
    void* p = os::allocate(bytes, bytes >= os::kHugePage ? os::kHugePage : page_size(), error);
    if (!p)
        throw Error(Code::memory, format("cannot allocate %s for %s: %s", size_text(bytes).c_str(),
                                         what, reason(error).c_str()));
    data_ = static_cast<uint8_t*>(p);
    size_ = bytes;
}

Memory::~Memory() {
    if (data_) os::release(data_, size_);
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

uint64_t available_memory(const std::string& root) {
    return os::free_memory(root);
}

uint64_t peak_memory() {
    return os::peak_memory();
}

}  // namespace ggml
