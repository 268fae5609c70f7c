// A Reader for tests, without threads: it brings a file's bytes when it likes, in the order that it
// likes, and with the faults that it is told. Everything follows from the seed and the calls.
#pragma once

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ggml/file_io.h"
#include "ggml/reader.h"
#include "ggml/status.h"

namespace faulty {

enum class Fault {
    none,
    eio,      // fails with EIO; some bytes may have changed
    cut,      // kShortRead: the second half of the bytes does not come
    late,     // comes after many calls of done()
    flipped,  // one bit is wrong, and no error says so
    never,    // stays in flight for ever
};

// What befalls read `number` (0, 1, 2, ... as submitted).
using Choose = std::function<Fault(uint64_t number, const ggml::Read& read)>;

struct Order {
    uint64_t seed = 1;
    bool shuffled = true;  // else reads come back in the order in which they were submitted
    int most = 8;          // each call of done() brings 1 to `most` reads, when it waits
    int late = 40;         // calls of done() that a late read takes
    int depth = 128;
    uint32_t align = 512;
    const bool* broken = nullptr;  // while it is set, done() throws
};

// Each fault befalls a read with this probability.
inline Choose at_random(uint64_t seed, double share, std::vector<Fault> faults) {
    auto random = std::make_shared<std::mt19937_64>(seed);
    return [=](uint64_t, const ggml::Read&) {
        double u = double((*random)() >> 11) / double(uint64_t(1) << 53);
        for (Fault fault : faults)
            if ((u -= share) < 0) return fault;
        return Fault::none;
    };
}

// The one fault, at read `at`.
inline Choose once(uint64_t at, Fault fault) {
    return [=](uint64_t number, const ggml::Read&) { return number == at ? fault : Fault::none; };
}

class Reader final : public ggml::Reader {
 public:
    Reader(const std::string& path, const Order& order, Choose choose = nullptr)
        : ggml::Reader(facts(path, order)),
          file_(path),
          order_(order),
          choose_(std::move(choose)),
          random_(order.seed) {
        facts_.size = file_.size();
    }

    uint64_t submitted() const { return submitted_; }
    uint64_t faults() const { return faults_; }  // reads that something befell

    int submit(const ggml::Read* reads, int n) override {
        n = std::min(n, order_.depth - in_flight_);
        for (int i = 0; i < n; i++) check(reads[i]);
        for (int i = 0; i < n; i++) {
            Fault fault = choose_ ? choose_(submitted_, reads[i]) : Fault::none;
            submitted_++;
            faults_ += fault != Fault::none;
            const uint64_t ready = calls_ + (fault == Fault::late ? uint64_t(order_.late) : 0);
            waiting_.push_back({reads[i], fault, ready});
            // Until a read is done, its memory holds anything.
            each_piece(reads[i], [](const ggml::ReadPiece& piece, uint64_t) {
                std::fill_n(piece.to, piece.bytes, uint8_t(0xA5));
            });
        }
        in_flight_ += std::max(0, n);
        return std::max(0, n);
    }

    // Without a wait it often brings nothing, as a disk does.
    int done(ggml::ReadDone* out, int most, double wait_s) override {
        if (in_flight_ == 0 || most <= 0) return 0;
        if (order_.broken && *order_.broken)
            throw ggml::Error(ggml::Code::internal, "the reader is broken");
        calls_++;
        int wanted = int(random_() % uint64_t(order_.most + 1));
        if (wait_s > 0) wanted = std::max(wanted, 1);
        wanted = std::min(wanted, most);
        int n = 0;
        for (; n < wanted; n++) {
            const int found = next(wait_s > 0 && n == 0);
            if (found < 0) break;
            out[n] = finish(waiting_[size_t(found)]);
            waiting_.erase(waiting_.begin() + found);
        }
        in_flight_ -= n;
        if (n == 0 && wait_s > 0)  // only reads that never come
            std::this_thread::sleep_for(std::chrono::duration<double>(std::min(wait_s, 60.0)));
        return n;
    }

 private:
    struct Waiting {
        ggml::Read read;
        Fault fault;
        uint64_t ready;
    };

    static ggml::ReaderFacts facts(const std::string& path, const Order& order) {
        ggml::ReaderFacts f;
        f.name = "faulty";
        f.path = path;
        f.align = order.align;
        return f;
    }

    template <typename F>
    static void each_piece(const ggml::Read& read, const F& f) {
        uint64_t at = read.offset;
        for (int32_t i = 0; i < read.n_pieces; at += read.pieces[i++].bytes)
            if (read.pieces[i].to) f(read.pieces[i], at);
    }

    // The index of the read that comes next, or -1. force: a late one comes now if no other can.
    int next(bool force) {
        std::vector<int> can, late;
        for (size_t i = 0; i < waiting_.size(); i++) {
            if (waiting_[i].fault == Fault::never) continue;
            (waiting_[i].ready <= calls_ ? can : late).push_back(int(i));
        }
        if (can.empty() && force) can = late;
        if (can.empty()) return -1;
        return can[order_.shuffled ? size_t(random_() % can.size()) : 0];
    }

    ggml::ReadDone finish(const Waiting& w) {
        ggml::ReadDone result{w.read.tag, 0};
        // Nothing comes of what is beyond the end that the file had at first.
        uint64_t end = std::min(w.read.offset + w.read.bytes(), facts_.size);
        if (w.fault == Fault::cut) end = w.read.offset + w.read.bytes() / 2;
        if (end > file_.size()) result.error = ggml::kShortRead;
        end = std::min(end, file_.size());
        std::vector<ggml::ReadPiece> filled;
        try {
            each_piece(w.read, [&](const ggml::ReadPiece& piece, uint64_t at) {
                if (at >= end) return;
                file_.read(at, piece.to, size_t(std::min<uint64_t>(piece.bytes, end - at)));
                filled.push_back(piece);
            });
        } catch (const ggml::Error&) {
            result.error = ggml::kShortRead;  // cut short while it was open
        }
        if (w.fault == Fault::eio) result.error = EIO;
        if (w.fault == Fault::cut) result.error = ggml::kShortRead;
        if (w.fault == Fault::flipped && !filled.empty()) {
            const ggml::ReadPiece& piece = filled[random_() % filled.size()];
            piece.to[random_() % piece.bytes] ^= uint8_t(1u << random_() % 8);
        }
        return result;
    }

    ggml::File file_;
    Order order_;
    Choose choose_;
    std::mt19937_64 random_;
    std::vector<Waiting> waiting_;
    uint64_t submitted_ = 0, faults_ = 0, calls_ = 0;
};

}  // namespace faulty
