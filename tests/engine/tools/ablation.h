// What a part of the storage tier is worth: the tier without it, for measurements.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "ggml/reader.h"

namespace ablation {

struct Without {
    bool bundles = false;  // each row of a neuron has a read of its own
    bool overlap = false;  // reads are waited for before anything is computed
};

// Reads through another reader, without what it is told.
class Reader final : public ggml::Reader {
 public:
    // longest_row: bytes of a row on the disk, at most.
    Reader(std::unique_ptr<ggml::Reader> inner, const Without& without, uint32_t longest_row)
        : ggml::Reader(facts_of(*inner)),
          inner_(std::move(inner)),
          without_(without),
          longest_row_(longest_row) {}

    int submit(const ggml::Read* reads, int n) override {
        for (int i = 0; i < n; i++) {
            size_t slot = 0;
            while (slot < asked_.size() && asked_[slot].left) slot++;
            if (slot == asked_.size()) asked_.emplace_back();
            asked_[slot] = {{reads[i].tag, 0}, 0};
            queue(reads[i], slot);
        }
        in_flight_ += n;
        send();
        while (without_.overlap && inner_->in_flight() + int(queued_.size()) > 0) take(1);
        return n;
    }

    int done(ggml::ReadDone* out, int most, double wait_s) override {
        send();
        if (done_.empty()) take(wait_s);
        int n = 0;
        for (; n < most && !done_.empty(); n++) {
            out[n] = done_.front();
            done_.pop_front();
        }
        in_flight_ -= n;
        return n;
    }

 private:
    struct Asked {
        ggml::ReadDone result;
        int left;  // reads of the other reader
    };

    static ggml::ReaderFacts facts_of(const ggml::Reader& inner) {
        ggml::ReaderFacts facts;
        facts.name = inner.name();
        facts.path = inner.path();
        facts.direct = inner.direct();
        facts.align = inner.align();
        facts.size = inner.size();
        return facts;
    }

    void queue(const ggml::Read& read, size_t slot) {
        const auto add = [&](ggml::Read one) {
            one.tag = slot;
            queued_.push_back(one);
            asked_[slot].left++;
        };
        if (!without_.bundles) return add(read);
        uint64_t at = read.offset;
        for (int32_t i = 0; i < read.n_pieces; at += read.pieces[i++].bytes) {
            const ggml::ReadPiece& piece = read.pieces[i];
            for (uint32_t begin = 0; piece.to && begin < piece.bytes; begin += longest_row_) {
                ggml::Read one;
                one.offset = at + begin;
                one.n_pieces = 1;
                one.pieces[0] = {piece.to + begin, std::min(longest_row_, piece.bytes - begin)};
                add(one);
            }
        }
    }

    void send() {
        while (!queued_.empty() && inner_->submit(&queued_.front(), 1) == 1) queued_.pop_front();
    }

    void take(double wait_s) {
        ggml::ReadDone out[64];
        const int n = inner_->done(out, 64, wait_s);
        for (int i = 0; i < n; i++) {
            Asked& of = asked_[out[i].tag];
            if (out[i].error) of.result.error = out[i].error;
            if (--of.left == 0) done_.push_back(of.result);
        }
        send();
    }

    const std::unique_ptr<ggml::Reader> inner_;
    const Without without_;
    const uint32_t longest_row_;
    std::vector<Asked> asked_;
    std::deque<ggml::Read> queued_;
    std::deque<ggml::ReadDone> done_;
};

}  // namespace ablation
