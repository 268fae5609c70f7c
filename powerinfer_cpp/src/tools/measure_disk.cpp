#include <algorithm>
#include <chrono>
#include <random>
#include <system_error>
#include <vector>

#include "ggml/file_io.h"
#include "ggml/reader.h"
#include "ggml/status.h"
#include "ggml/threads.h"
#include "tools/measure.h"

namespace powerinfer {

namespace {

using ggml::Code;
using ggml::Error;

// Disks with blocks of 4,096 bytes refuse direct reads of 512.
std::unique_ptr<ggml::Reader> open_direct(const std::string& path, const DiskLoad& load) {
    ggml::ReaderOptions options;
    options.depth = load.depth;
    std::unique_ptr<ggml::Reader> reader = ggml::open_reader(path, options);
    if (reader->direct() || load.bytes % 4096 != 0) return reader;
    options.align = 4096;
    std::unique_ptr<ggml::Reader> other = ggml::open_reader(path, options);
    return other->direct() ? std::move(other) : std::move(reader);
}

// Where the next read begins.
class Places {
 public:
    Places(uint64_t size, uint32_t align, const DiskLoad& load)
        : random_(load.seed), n_((size - load.bytes) / align + 1), align_(align), load_(load) {}

    uint64_t next() {
        if (!load_.in_order) return random_() % n_ * align_;
        const uint64_t at = next_;
        next_ = at + load_.bytes;
        if (next_ / align_ >= n_) next_ = 0;
        return at;
    }

 private:
    std::mt19937_64 random_;
    uint64_t n_, align_, next_ = 0;
    const DiskLoad& load_;
};

constexpr double kPatience = 10;  // seconds, for one read of many

// A reader and the memory that it reads into, which outlives its reads.
struct Reads {
    struct Kept : ggml::Abandoned {
        ggml::Memory memory;
        std::unique_ptr<ggml::Reader> reader;
    };
    explicit Reads(std::unique_ptr<ggml::Reader> reader) : kept(std::make_unique<Kept>()) {
        kept->reader = std::move(reader);
    }
    ~Reads() {
        if (!ggml::drain(*kept->reader, kPatience)) ggml::abandon(std::move(kept));
    }
    std::unique_ptr<Kept> kept;
};

}  // namespace

DiskReport measure_disk(const std::string& path, const DiskLoad& load) {
    constexpr uint64_t kLeast = 64 << 20;
    Reads own(open_direct(path, load));
    ggml::Memory& memory = own.kept->memory;
    const std::unique_ptr<ggml::Reader>& reader = own.kept->reader;
    const uint64_t size = load.size ? std::min(load.size, reader->size()) : reader->size();
    if (size < std::max<uint64_t>(kLeast, load.bytes))
        throw Error(Code::argument,
                    ggml::format("%s: %llu bytes are too few to measure a disk "
                                 "with: at least 64 MiB are needed",
                                 path.c_str(), static_cast<unsigned long long>(size)));
    memory = ggml::Memory(uint64_t(load.depth) * load.bytes, "the disk test");
    std::fill_n(memory.data(), memory.size(), uint8_t(1));  // pages are there before the clock runs
    Places places(size, reader->align(), load);
    std::vector<ggml::Read> reads(size_t(load.depth), ggml::Read());
    std::vector<ggml::ReadDone> found(reads.size());
    std::vector<uint64_t> free(reads.size());
    for (size_t i = 0; i < free.size(); i++) free[i] = i;

    const auto wait = [&] {
        const int n = reader->done(found.data(), int(found.size()), kPatience);
        if (n == 0) throw Error(Code::io, path + ": the disk does not answer");
        for (int i = 0; i < n; i++) {
            const ggml::ReadDone& d = found[size_t(i)];
            if (d.error != 0)
                throw Error(Code::io, path + ": cannot be read: " +
                                          (d.error == ggml::kShortRead
                                               ? "it became shorter"
                                               : std::generic_category().message(d.error)));
            free.push_back(d.tag);
        }
        return uint64_t(n);
    };
    DiskReport report;
    using Clock = std::chrono::steady_clock;
    const double cpu = ggml::cpu_seconds();
    const Clock::time_point begin = Clock::now();
    double seconds = 0;
    while (seconds < load.seconds || report.reads == 0) {
        const int n = int(free.size());
        for (int i = 0; i < n; i++) {
            ggml::Read& r = reads[size_t(i)];
            r.offset = places.next();
            r.tag = free[size_t(i)];
            r.n_pieces = 1;
            r.pieces[0] = {memory.data() + r.tag * load.bytes, load.bytes};
        }
        reader->submit(reads.data(), n);
        free.clear();
        report.reads += wait();
        seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    }
    report.cpu_s = (ggml::cpu_seconds() - cpu) / double(report.reads);
    while (reader->in_flight() > 0) wait();  // not counted: the queue is no longer full
    report.io = reader->name();
    report.note = reader->note();
    report.direct = reader->direct();
    report.align = reader->align();
    report.file_bytes = reader->size();
    report.reads_per_s = double(report.reads) / seconds;
    report.bytes_per_s = report.reads_per_s * load.bytes;
    return report;
}

}  // namespace powerinfer
