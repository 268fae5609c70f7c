// A disk of a stated speed, for measurements where there is none: reads take their time and bring
// nothing, so they cost no processor either. For files whose text does not depend on what is read.
#pragma once

#include <algorithm>
#include <chrono>
#include <deque>
#include <thread>

#include "ggml/reader.h"

namespace delayed {

class Reader final : public ggml::Reader {
 public:
    // Like another reader, but with so many bytes a second, one read after the other, each 100 us
    // after the disk has begun with it at the earliest.
    Reader(const ggml::Reader& like, double bytes_per_s)
        : ggml::Reader(facts_of(like)), bytes_per_s_(bytes_per_s) {}

    int submit(const ggml::Read* reads, int n) override {
        constexpr double kLatency = 100e-6;
        for (int i = 0; i < n; i++) {
            free_at_ =
                std::max(free_at_, Clock::now()) + seconds(double(reads[i].bytes()) / bytes_per_s_);
            due_.push_back({reads[i].tag, free_at_ + seconds(kLatency)});
        }
        in_flight_ += n;
        return n;
    }

    int done(ggml::ReadDone* out, int most, double wait_s) override {
        if (due_.empty()) return 0;
        if (wait_s > 0) {
            std::this_thread::sleep_until(
                std::min(due_.front().at, Clock::now() + seconds(wait_s)));
        }
        int n = 0;
        for (; n < most && !due_.empty() && due_.front().at <= Clock::now(); n++) {
            out[n] = {due_.front().tag, 0};
            due_.pop_front();
        }
        in_flight_ -= n;
        return n;
    }

 private:
    using Clock = std::chrono::steady_clock;
    struct Due {
        uint64_t tag;
        Clock::time_point at;
    };

    static Clock::duration seconds(double s) {
        return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
    }
    static ggml::ReaderFacts facts_of(const ggml::Reader& like) {
        ggml::ReaderFacts facts;
        facts.name = "delayed";
        facts.path = like.path();
        facts.direct = true;
        facts.align = like.align();
        facts.size = like.size();
        return facts;
    }

    const double bytes_per_s_;
    Clock::time_point free_at_{};
    std::deque<Due> due_;
};

}  // namespace delayed
