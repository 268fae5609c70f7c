// Asynchronous reads of one file: for weights that stay on the disk.
//
// A Reader is used by one thread at a time. Reads come back in any order.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace ggml {

// Where a part of a read goes. to == nullptr: bytes that nobody wants (a gap), at most kReadGap.
struct ReadPiece {
    uint8_t* to;
    uint32_t bytes;
};

constexpr int kReadPieces = 16;
// On a disk of 12.5 us a read and 1 GB/s, a longer gap costs more than a read of its own.
constexpr uint32_t kReadGap = 32 << 10;

// Bytes that follow each other in the file. Offset, sizes and addresses are multiples of the
// reader's align. The memory belongs to the caller, who leaves it alone until the read is done. A
// read may end beyond the end that the file had when it was opened: those bytes are undefined.
struct Read {
    uint64_t offset = 0;
    uint64_t tag = 0;  // the caller's; comes back in ReadDone
    int32_t n_pieces = 0;
    ReadPiece pieces[kReadPieces];

    uint64_t bytes() const {
        uint64_t n = 0;
        for (int32_t i = 0; i < n_pieces; i++) n += pieces[i].bytes;
        return n;
    }
};

constexpr int32_t kShortRead = -1;  // the file ends early: it was cut short while it was open

struct ReadDone {
    uint64_t tag = 0;
    int32_t error = 0;  // 0, an errno, or kShortRead; then the bytes are undefined
};

struct ReaderOptions {
    std::string path;      // "threads" or "uring"; "": what POWERINFER_IO says, else the best here
    bool direct = true;    // past the system's cache, where the file system allows it
    uint32_t align = 512;  // a power of two from 512 to 4096
    int depth = 128;       // most reads in flight, 1..4096
    int threads = 16;      // of the path "threads", 1..256
};

// What is known of a reader once it is open.
struct ReaderFacts {
    const char* name = "";  // "threads", "uring"
    std::string path;       // of the file
    std::string note;       // why not uring, or why not direct; ""
    bool direct = false;
    uint32_t align = 512;
    uint64_t size = 0;  // of the file when it was opened
};

class Reader {
 public:
    // Waits for reads in flight, for ever if the disk does not answer: see drain().
    virtual ~Reader() = default;
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

    // Takes the first reads of the array, as many as fit, and returns their number. Does not wait
    // for the disk. Throws Error(argument) without taking any if one of them is not aligned;
    // failures of the disk come in ReadDone.
    //
    // In a child of fork() a reader begins anew with its next submit(), which then may throw
    // Error(memory) or Error(io). What was in flight at the fork is the parent's.
    virtual int submit(const Read* reads, int n) = 0;
    // Writes reads that are done, at most `most`, and returns their number. wait_s 0: only those
    // that are done already; otherwise it waits until there is one, or for that many seconds.
    // Returns at once if nothing is in flight.
    virtual int done(ReadDone* out, int most, double wait_s) = 0;

    int in_flight() const { return in_flight_; }  // taken, and not yet returned by done()
    // Of these, the ones that this process gets: none in a child of fork().
    virtual int owed() const { return in_flight_; }
    const char* name() const { return facts_.name; }
    const std::string& note() const { return facts_.note; }
    bool direct() const { return facts_.direct; }
    uint32_t align() const { return facts_.align; }
    uint64_t size() const { return facts_.size; }
    const std::string& path() const { return facts_.path; }

    // Bytes that a reader takes at most: its arrays, ring and threads, and what the kernel keeps
    // for reads in flight. Does not include the memory that is read into.
    static uint64_t memory(const ReaderOptions& options);

 protected:
    explicit Reader(ReaderFacts facts) : facts_(std::move(facts)) {}
    // Throws Error(argument) if a read is not what submit() takes.
    void check(const Read& read) const;

    ReaderFacts facts_;
    int in_flight_ = 0;
};

// Takes all reads in flight, as long as one of them comes within patience_s. False: the disk does
// not answer. The system may then write to the memory of these reads at any later time, so nobody
// may free it, nor the reader, whose own memory is written to as well: abandon() both.
bool drain(Reader& reader, double patience_s) noexcept;

// Keeps what it gets until the process ends, in a list where leak checkers find it.
struct Abandoned {
    virtual ~Abandoned() = default;
    Abandoned* before = nullptr;
};
void abandon(std::unique_ptr<Abandoned> what) noexcept;

// Opens a file. Throws Error(io) naming it; Error(io), too, if uring was asked for and the system
// refuses it; Error(argument) for options out of range or an unknown POWERINFER_IO.
std::unique_ptr<Reader> open_reader(const std::string& path, const ReaderOptions& options = {});

}  // namespace ggml
