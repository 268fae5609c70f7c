// Rows of a table that stays on the disk. All that a pass needs are asked for at once, and early:
// they are read beside each other while other things are computed.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ggml/file_io.h"
#include "ggml/reader.h"
#include "ggml/tensor.h"
#include "storage/page_reads.h"

namespace powerinfer {

class TableRows final : PageReads::Policy {
 public:
    // A table that begins at `offset` of the file, which stays open as long as this. `table` says
    // its type and sizes. reader: of the same file; null: rows are read one after the other
    // (whoever has the file open can read it when its name is gone, a reader cannot be opened).
    TableRows(const ggml::File& file, std::unique_ptr<ggml::Reader> reader, uint64_t offset,
              const ggml::Matrix& table);

    // y [n, cols] gets these rows as floats until wait() returns. What was asked for before and not
    // waited for is forgotten. Throws Error(io).
    void ask(const int64_t* rows, int64_t n, float* y);
    // Throws Error(io) if a read failed, Error(format) if the file was written to.
    void wait();

    // How files are read; direct: past the system's cache. And the bytes that the reader and what
    // it reads into take for rows of so many bytes.
    static ggml::ReaderOptions options(bool direct);
    static uint64_t memory(int64_t row_bytes);

 private:
    struct Wanted {
        int64_t row;
        float* to;
    };
    struct Landing;

    // Of rows wanted_[first] to wanted_[end - 1], which are the same one: its place in the file,
    // and what it becomes.
    uint64_t place(size_t first) const {
        return offset_ + uint64_t(wanted_[first].row) * uint64_t(table_.row_bytes());
    }
    size_t end_of(size_t first) const;
    void decode(const uint8_t* row, size_t first, size_t end);
    void send() override;
    void read_done(int32_t file, const ggml::ReadDone& done) override;

    const ggml::File& file_;
    const ggml::Matrix table_;
    const uint64_t offset_;
    std::shared_ptr<Landing> landing_;  // shared with the reads
    PageReads reads_;
    std::vector<Wanted> wanted_;  // by row
    size_t sent_ = 0, left_ = 0;  // of wanted_: those asked of the disk, and those not there yet
};

}  // namespace powerinfer
