// Chooses a token from logits, by steps with llama.cpp's names in the order that the caller asks
// for, and a draw. Mirostat takes the place of the filters.
//
// Sums and probabilities are doubles, ties go to the lower id, and the draw inverts the cumulative
// sum itself. So the draws of a seed depend neither on the sort or the distributions of a standard
// library nor, because of ggml/math.h, on the exp of a C library.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <unordered_map>
#include <utility>
#include <vector>

#include "powerinfer.h"
#include "sampler/dry.h"

namespace powerinfer {

class Sampler {
 public:
    // breakers: for params.dry_sequence_breakers. Throws Error(argument) naming the parameter that
    // is not finite or out of range, or the unknown sampler.
    explicit Sampler(const pi_sampler_params& params,
                     std::shared_ptr<const Breakers> breakers = nullptr);
    // Throws Error(argument) if every logit is NaN or minus infinity. Such tokens are never chosen.
    int32_t sample(const float* logits, int32_t n_vocab);
    // Throws as sample() would.
    static void require_choice(const float* logits, int32_t n_vocab);
    void accept(int32_t token);
    void reset();
    void seed(uint64_t seed) { random_.seed(seed); }
    double seconds = 0;  // that Session::sample took for it, of one thread

    enum class Step { penalties, dry, top_n_sigma, top_k, typical, top_p, min_p, xtc, temperature };

 private:
    struct Candidate {
        int32_t id;
        float logit;
        double weight;  // of weigh()
    };
    static bool before(const Candidate& a, const Candidate& b) {
        return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
    }
    void choose_steps(const std::vector<Step>& asked);
    bool has_effect(Step step) const;
    void apply(Step step);
    bool penalises() const;
    float penalised(float logit, int32_t count) const;
    float changed(Step step, int32_t id, float logit) const;
    void find_changes(const float* logits, int32_t n_vocab);
    void take_all(const float* logits, int32_t n_vocab);
    // Finds the candidates that top-k leaves without making all tokens candidates. Returns false,
    // and has changed nothing that counts, if that is not possible or not faster.
    bool find_best(const float* logits, int32_t n_vocab, size_t n);
    void penalise_kept(Step step);
    int32_t best() const;
    void keep_top_k();
    void keep_typical();
    void keep_top_p();
    void keep_min_p();
    void keep_top_n_sigma();
    void exclude_top_choices();
    double temperature();
    int32_t mirostat(int32_t n_vocab);
    double mirostat_width(int32_t n_vocab) const;
    double random();  // [0, 1)
    // Draws by weights, whose sum is given.
    const Candidate& draw(double sum);
    // Fills weights, relative to 1 for the best candidate, and returns their sum.
    double weigh();
    void sort_first(size_t n);
    void sort_up_to(size_t n);
    void sort_heaviest(double weight);
    double entropy(double sum);

    pi_sampler_params params_;
    std::vector<Step> steps_;  // that have an effect, in order
    size_t n_first_ = 0;       // of them: penalties and DRY before anything else
    bool greedy_ = false;
    Dry dry_;
    std::mt19937_64 random_;
    double mirostat_mu_;        // the surprise above which tokens are left out, in bits
    std::deque<int32_t> last_;  // the tokens that penalties look at
    std::unordered_map<int32_t, int32_t> counts_;  // how often each occurs in last_
    const std::unordered_map<int32_t, float>* repetitions_ = nullptr;  // of dry_, for this token
    std::unordered_map<int32_t, float> changes_;  // logits that the first steps change
    double temperature_ = 1;                      // by which the candidates' logits are divided
    std::vector<Candidate> candidates_;           // by id; the first sorted_ by descending logit
    size_t sorted_ = 0;
    std::optional<std::pair<float, double>> weighed_;  // best logit and temperature of the weights
    // These keep their memory for the next token.
    std::vector<double> logs_;        // of entropy()
    std::vector<char> keeps_;         // of keep_typical(), flags
    std::vector<double> heights_;     // of sort_heaviest()
    std::vector<Candidate> sorting_;  // of sort_up_to(), as the next two
    std::vector<uint64_t> order_, spare_;
};

}  // namespace powerinfer
