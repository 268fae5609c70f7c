// Opens readers: chooses the path, and direct or buffered reads.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "ggml/file_io.h"
#include "ggml/status.h"
#include "parts.h"

namespace ggml {

namespace {

using os::reason;

os::Owned open_file(const std::string& path) {
    os::Handle file;
    const int error = os::open_to_read(path, file);
    if (error == 0) return os::Owned(file);
    throw Error(Code::io, path + (error == ENOENT ? ": there is no such file"
                                                  : ": cannot be opened: " + reason(error)));
}

uint64_t size_of(const os::Owned& file, const std::string& path) {
    os::About found;
    if (const int error = os::about(file.get(), found))
        throw Error(Code::io, path + ": cannot be examined: " + reason(error));
    if (found.kind != os::Kind::file) throw Error(Code::io, path + ": is not a regular file");
    if (found.size == 0) throw Error(Code::io, path + ": is empty");
    return found.size;
}

// Makes reads direct, or returns the errno of the refusal. File systems say which alignment they
// need, but not all say it, and not all that say it are right: the proof is a read with the least
// alignment of offset, size and address.
int make_direct(os::Owned& file, uint64_t size, uint32_t align) {
    if (const int error = os::set_direct(file.get(), true)) return error;
    const Memory memory(2 * align, "a probing read");
    const os::Part part{memory.data() + align, align};
    int64_t got;
    do {
        got = os::read_at(file.get(), size > align ? align : 0, &part, 1);
    } while (got == -EINTR);
    if (got >= 0) return 0;
    os::set_direct(file.get(), false);
    return int(-got);
}

// "threads", "uring", or "" for the best.
std::string wanted_path(const ReaderOptions& o) {
    const bool given = !o.path.empty();
    const char* variable = given ? nullptr : std::getenv("POWERINFER_IO");
    const std::string wanted = variable ? variable : o.path;
    if (!wanted.empty() && wanted != "threads" && wanted != "uring")
        throw Error(Code::argument,
                    format("%s must be threads or uring, not '%s'",
                           given ? "the io path" : "POWERINFER_IO", wanted.c_str()));
    return wanted;
}

void check_options(const ReaderOptions& o) {
    if (o.align < 512 || o.align > 4096 || (o.align & (o.align - 1)) != 0)
        throw Error(Code::argument, "a reader's align must be 512, 1024, 2048 or 4096");
    if (o.depth < 1 || o.depth > 4096)
        throw Error(Code::argument, "a reader's depth must be from 1 to 4096");
    if (o.threads < 1 || o.threads > 256)
        throw Error(Code::argument, "a reader's threads must be from 1 to 256");
}

void add(std::string& note, const std::string& more) {
    note += (note.empty() ? "" : "; ") + more;
}

}  // namespace

bool drain(Reader& reader, double patience_s) noexcept {
    ReadDone some[16];
    while (reader.owed() > 0) {
        if (reader.done(some, 16, patience_s) == 0) return false;
    }
    return true;
}

void abandon(std::unique_ptr<Abandoned> what) noexcept {
    static std::atomic<Abandoned*> last{nullptr};
    Abandoned* const a = what.release();
    a->before = last.load();
    while (!last.compare_exchange_weak(a->before, a)) {
    }
}

std::unique_ptr<Reader> open_reader(const std::string& path, const ReaderOptions& options) {
    const std::string wanted = wanted_path(options);
    check_options(options);
    ReaderFacts facts;
    facts.path = path;
    facts.align = options.align;
    os::Owned file = open_file(path);
    facts.size = size_of(file, path);
    if (options.direct) {
        const int error = make_direct(file, facts.size, options.align);
        facts.direct = error == 0;
        if (!facts.direct)
            add(facts.note, format("buffered: the file system refuses direct reads of %u bytes: %s",
                                   options.align, reason(error).c_str()));
    }
    // Without this the system would read ahead what nobody wants.
    if (!facts.direct) os::read_anywhere(file.get());

    // A program for musl may run there, too, where uring.cpp cannot know.
    const bool android = std::getenv("ANDROID_ROOT");
    if (wanted.empty() && android) {
        add(facts.note, "no io_uring: Android kills a process that asks for it");
    } else if (wanted != "threads") {
        std::string why;
        std::unique_ptr<Reader> reader = make_uring(file, facts, options, why);
        if (reader) return reader;
        if (wanted == "uring")
            throw Error(Code::io, path + ": cannot be read through io_uring: " + why);
        add(facts.note, "no io_uring: " + why);
    }
    return make_threads(std::move(file), std::move(facts), options);
}

uint64_t Reader::memory(const ReaderOptions& options) {
    check_options(options);
    const std::string wanted = wanted_path(options);
    // Whether uring works is known when the file is open.
    if (wanted == "uring") return uring_memory(options);
    if (wanted == "threads") return threads_memory(options);
    return std::max(uring_memory(options), threads_memory(options));
}

void Reader::check(const Read& read) const {
    const uint64_t mask = facts_.align - 1;
    bool sound = read.n_pieces >= 1 && read.n_pieces <= kReadPieces && (read.offset & mask) == 0;
    for (int32_t i = 0; sound && i < read.n_pieces; i++) {
        const ReadPiece& piece = read.pieces[i];
        sound = piece.bytes > 0 && (piece.bytes & mask) == 0 &&
                (reinterpret_cast<uintptr_t>(piece.to) & mask) == 0 &&
                (piece.to || piece.bytes <= kReadGap);
    }
    // One call of the system reads less than 2 GiB.
    if (sound) sound = read.bytes() <= 1u << 30 && read.offset <= uint64_t(INT64_MAX) - (1u << 30);
    if (!sound)
        throw Error(Code::argument,
                    format("%s: a read at offset %llu has pieces that are not multiples of %u "
                           "bytes, or too many of them, or too long ones",
                           facts_.path.c_str(), static_cast<unsigned long long>(read.offset),
                           facts_.align));
}

// ---- parts --------------------------------------------------------------------------------------

void Transfer::begin(const Read& read, uint8_t* scratch, uint64_t file_size) {
    offset = read.offset;
    tag = read.tag;
    left = 0;
    first = end = 0;
    retries = error = 0;
    const uint8_t* expected = nullptr;
    for (int32_t i = 0; i < read.n_pieces; i++) {
        const ReadPiece& piece = read.pieces[i];
        left += piece.bytes;
        if (piece.to && piece.to == expected) {
            parts[end - 1].bytes += piece.bytes;
        } else {
            parts[end++] = {piece.to ? piece.to : scratch, piece.bytes};
        }
        expected = piece.to ? piece.to + piece.bytes : nullptr;
    }
    const uint64_t last = offset + left;
    beyond = last > file_size ? std::min(left, last - file_size) : 0;
}

bool Transfer::over(int64_t result, uint32_t unit) {
    constexpr int32_t kRetries = 1000;
    if (result == -EINTR || result == -EAGAIN) {
        if (++retries < kRetries) return false;
        error = int32_t(-result);
        return true;
    }
    if (result < 0) {
        error = int32_t(-result);
        return true;
    }
    if (uint64_t(result) + beyond >= left && beyond < left) return true;
    if (result == 0 || result % unit != 0) {
        error = kShortRead;
        return true;
    }
    offset += uint64_t(result);
    left -= uint64_t(result);
    for (size_t n = size_t(result); n > 0;) {
        os::Part& part = parts[first];
        const size_t full = std::min(n, part.bytes);
        part.to = static_cast<uint8_t*>(part.to) + full;
        part.bytes -= full;
        n -= full;
        if (part.bytes == 0) first++;
    }
    return false;
}

}  // namespace ggml
