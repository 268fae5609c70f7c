// Generates text: loads the model, reads tokens, generates the tokens after them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine.h"
#include "options/options.h"
#include "timing.h"

class Generation {
 public:
    // Opens the model and, except for a conversation, tokenizes options.prompt.
    explicit Generation(Options& options);
    // Prints the prompt and evaluates it.
    void read_prompt();

    // Evaluates tokens, the first n_generated of which were generated; the
    // sampler accepts the others.
    void read(const std::vector<int32_t>& tokens, size_t n_generated);
    // Generates and prints until the text, the context or options.n_predict ends, or a stop comes.
    // True if the model ended the text.
    bool generate();
    // Writes the prompt cache, if the generated text belongs there.
    void end();
    void stop_at(const std::string& text) { stops_.push_back(text); }
    // The token that was printed but not yet evaluated; -1: none.
    int32_t pending() const { return pending_; }
    bool full() const { return full_; }
    const pi_model* model() const { return model_.get(); }
    pi_session* session() const { return session_.get(); }
    const Timing& timing() const { return timing_; }

 private:
    void print_settings(const pi_session_params& session) const;
    void set_prompt();
    void set_adapters();
    size_t take_cached(const std::vector<int32_t>& tokens, const bool* generated);
    void save_cache() const;
    void evaluate(const int32_t* tokens, const bool* generated, size_t n);
    int32_t choose();
    bool show(std::string_view text);

    Options& options_;
    Timing timing_;
    Model model_;
    Session session_;
    Sampler sampler_;
    std::vector<int32_t> tokens_;                  // of the prompt
    std::string shown_;                            // the printed part of the prompt
    std::vector<std::pair<int32_t, float>> bias_;  // of --logit-bias and --ignore-eos
    std::vector<float> biased_;
    std::vector<std::string> stops_;  // texts that end a generation
    std::string tail_;                // end of the generated text, where a stop may begin
    int32_t pending_ = -1;
    const float* logits_ = nullptr;  // after the last token
    bool full_ = false;
    bool begun_ = false;  // something was read
};
