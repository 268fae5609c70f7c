#include "storage/table_rows.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "ggml/sizes.h"

namespace powerinfer {

using ggml::Code;
using ggml::format;

namespace {

constexpr int kRowReads = 32;        // in flight: on an SSD not much slower than 128
constexpr int kRowThreads = 8;       // where there is no io_uring
constexpr uint32_t kRowUnit = 4096;  // what any disk takes

// Bytes of the units in which a row may lie.
uint64_t row_landing(int64_t row_bytes) {
    return ggml::size_rounded_up(uint64_t(row_bytes) - 1, kRowUnit) + kRowUnit;
}

}  // namespace

// Memory for the reads in flight, and which rows each of them brings: wanted_[first] to wanted_[end
// - 1], which are the same one.
struct TableRows::Landing {
    Landing(int n, uint64_t each)
        : bytes(each), memory(uint64_t(n) * each, "rows of a table on the disk"), free(size_t(n)) {
        std::iota(free.begin(), free.end(), 0);
    }
    uint8_t* at(int place) const { return memory.data() + uint64_t(place) * bytes; }

    const uint64_t bytes;
    const ggml::Memory memory;
    struct Rows {
        size_t first, end;
    };
    Rows rows[kRowReads] = {};
    std::vector<int> free;
};

TableRows::TableRows(const ggml::File& file, std::unique_ptr<ggml::Reader> reader, uint64_t offset,
                     const ggml::Matrix& table)
    : file_(file),
      table_{table.type, ggml::Layout::rows, 1, table.cols, nullptr},
      offset_(offset),
      landing_(std::make_shared<Landing>(reader ? kRowReads : 1, row_landing(table.row_bytes()))),
      reads_(*this,
             [&] {
                 std::vector<std::unique_ptr<ggml::Reader>> readers;
                 if (reader) readers.push_back(std::move(reader));
                 return readers;
             }(),
             {landing_}) {}

ggml::ReaderOptions TableRows::options(bool direct) {
    ggml::ReaderOptions options;
    options.direct = direct;
    options.align = kRowUnit;
    options.depth = kRowReads;
    options.threads = kRowThreads;
    return options;
}

uint64_t TableRows::memory(int64_t row_bytes) {
    return ggml::size_sum(ggml::Reader::memory(options(true)),
                          ggml::size_product(uint64_t(kRowReads), row_landing(row_bytes)));
}

void TableRows::ask(const int64_t* rows, int64_t n, float* y) {
    wanted_.clear();
    sent_ = left_ = 0;
    if (reads_.owed() || reads_.unsettled()) {
        if (!reads_.settle()) reads_.require();
        landing_->free.resize(kRowReads);  // a fork leaves reads in flight to the parent
        std::iota(landing_->free.begin(), landing_->free.end(), 0);
    }
    for (int64_t i = 0; i < n; i++) wanted_.push_back({rows[i], y + i * table_.cols});
    std::sort(wanted_.begin(), wanted_.end(), [](const Wanted& a, const Wanted& b) {
        return a.row != b.row ? a.row < b.row : a.to < b.to;
    });
    left_ = wanted_.size();
    send();
}

size_t TableRows::end_of(size_t first) const {
    size_t end = first;
    while (end < wanted_.size() && wanted_[end].row == wanted_[first].row) end++;
    return end;
}

void TableRows::decode(const uint8_t* row, size_t first, size_t end) {
    ggml::Matrix one = table_;
    one.data = row;
    ggml::decode_row(one, 0, wanted_[first].to);
    for (size_t i = first + 1; i < end; i++) {
        std::copy_n(wanted_[first].to, table_.cols, wanted_[i].to);
    }
    left_ -= end - first;
}

void TableRows::send() {
    const auto row_bytes = uint64_t(table_.row_bytes());
    while (!reads_.failed() && sent_ < wanted_.size() && !landing_->free.empty()) {
        const size_t end = end_of(sent_);
        const uint64_t begin = place(sent_);
        if (reads_.n_files() == 0) {
            file_.read(begin, landing_->at(0), size_t(row_bytes));
            decode(landing_->at(0), sent_, end);
            sent_ = end;
            continue;
        }
        const int to = landing_->free.back();
        ggml::Read read;
        read.offset = begin / kRowUnit * kRowUnit;
        read.tag = uint64_t(to);
        read.n_pieces = 1;
        const uint64_t bytes =
            ggml::size_rounded_up(begin + row_bytes - read.offset, uint64_t(kRowUnit));
        read.pieces[0] = {landing_->at(to), uint32_t(bytes)};
        if (reads_.submit(0, &read, 1) == 0) return;
        landing_->free.pop_back();
        landing_->rows[to] = {sent_, end};
        sent_ = end;
    }
}

void TableRows::read_done(int32_t file, const ggml::ReadDone& done) {
    const auto at = int(done.tag);
    landing_->free.push_back(at);
    if (wanted_.empty()) return;  // nobody waits for it any more
    if (done.error) {
        reads_.fail(Code::io, file,
                    done.error == ggml::kShortRead
                        ? "the file ends before the weights that it had when it was opened"
                        : format("reading a row failed: %s", std::strerror(done.error)));
        return;
    }
    const auto [first, end] = landing_->rows[at];
    decode(landing_->at(at) + place(first) % kRowUnit, first, end);
}

void TableRows::wait() {
    reads_.wait_until([this] { return left_ == 0; }, [] { return false; }, [] { return 0; });
    reads_.require();
    file_.require_unchanged();  // neurons have checksums, these rows have none
}

}  // namespace powerinfer
