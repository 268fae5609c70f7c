// From logits to a token, in llama.cpp's order: penalties, top-k, typical, top-p, min-p,
// temperature, draw.
//
// Sums and probabilities are doubles, ties go to the lower id, and the draw inverts the cumulative
// sum by hand: what a seed gives does not hang on a standard library's sort or distributions, nor,
// with ggml/math.h, on a C library's exp.
#pragma once

#include <cstdint>
#include <deque>
#include <random>
#include <unordered_map>
#include <vector>

#include "powerinfer.h"

namespace powerinfer {

class Sampler {
 public:
    // Throws Error(argument) naming the parameter that is not finite or out of range.
    explicit Sampler(const pi_sampler_params& params);
    // Throws Error(argument) when every logit is NaN or minus infinity; those are never chosen.
    int32_t sample(const float* logits, int32_t n_vocab);
    void accept(int32_t token);
    void reset();
    void seed(uint64_t seed) { random_.seed(seed); }

 private:
    struct Candidate {
        int32_t id;
        float logit;
        double weight;  // of weigh()
    };
    struct Distance {  // of a token's information from the expected one
        double value;
        Candidate candidate;
    };
    static bool before(const Candidate& a, const Candidate& b) {
        return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
    }
    void penalise();
    int32_t best() const;
    void keep_top_k();
    void keep_typical();
    void keep_top_p();
    void keep_min_p();
    int32_t draw();
    double weigh(
        double temperature);  // fills weights, relative to the best candidate's 1; their sum
    void sort_first(size_t n);

    pi_sampler_params params_;
    std::mt19937_64 random_;
    std::deque<int32_t> last_;                     // the tokens that penalties look at
    std::unordered_map<int32_t, int32_t> counts_;  // how often each occurs in last_
    std::vector<Candidate> candidates_;            // by id; the first sorted_ by falling logit
    size_t sorted_ = 0;
    std::vector<Distance> distances_;  // of keep_typical(), kept for its memory
};

}  // namespace powerinfer
