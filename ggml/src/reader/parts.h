// What both paths of the reader share: the open file, and a read on its way.
#pragma once

#include <memory>
#include <string>

#include "ggml/reader.h"
#include "os/os.h"

namespace ggml {

// A read on its way to memory. The system may need several calls for it.
struct Transfer {
    os::Part parts[kReadPieces];
    int32_t first, end;  // those of `parts` that are not full yet
    int32_t retries;
    int32_t error;
    uint64_t offset, left, tag;
    uint64_t beyond;  // bytes of `left` that the file does not have

    // Pieces that are neighbours in memory become one part. Gaps go to scratch [kReadGap].
    // file_size: when it was opened. The bytes that a read asks for beyond that are undefined.
    void begin(const Read& read, uint8_t* scratch, uint64_t file_size);
    // Takes the result of a call: a number of bytes, or -errno. Returns whether the read is over;
    // otherwise the rest is to be read. unit: a read that ends elsewhere than at its multiples has
    // met the end of the file.
    bool over(int64_t result, uint32_t unit);
};

// The number of bytes that a read can come to an end at without being at the file's end: direct
// reads are cut at blocks only.
inline uint32_t unit_of(const ReaderFacts& facts) {
    return facts.direct ? facts.align : 1;
}

std::unique_ptr<Reader> make_threads(os::Owned file, ReaderFacts facts, const ReaderOptions& o);
uint64_t threads_memory(const ReaderOptions& o);

// Null if the system refuses; then `why` says so, and the caller keeps the file.
std::unique_ptr<Reader> make_uring(os::Owned& file, const ReaderFacts& facts,
                                   const ReaderOptions& o, std::string& why);
uint64_t uring_memory(const ReaderOptions& o);  // 0 where it is not built in

}  // namespace ggml
