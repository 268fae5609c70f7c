// From options to text: loads the model, reads tokens, generates what follows them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine.h"
#include "options.h"
#include "timing.h"

class Generation {
 public:
    // Opens the model and, except for a conversation, reads options.prompt as its prompt.
    explicit Generation(Options& options);
    // Prints the prompt and what follows it.
    void continue_prompt();

    // What conversations are made of. Evaluates tokens, the first n_generated of which were
    // generated, so that the sampler knows them.
    void read(const std::vector<int32_t>& tokens, size_t n_generated);
    // Generates and prints until the text, the context or options.n_predict ends.
    void generate();
    void stop_at(const std::string& text) { stops_.push_back(text); }
    // The token that was shown and not yet evaluated; -1: none.
    int32_t pending() const { return pending_; }
    bool full() const { return full_; }
    const pi_model* model() const { return model_.get(); }
    pi_session* session() const { return session_.get(); }
    const Timing& timing() const { return timing_; }

 private:
    void print_settings(const pi_session_params& session) const;
    void set_prompt();
    void evaluate(const std::vector<int32_t>& tokens, size_t n_generated);
    int32_t choose();
    bool show(std::string_view text);

    Options& options_;
    Timing timing_;
    Model model_;
    Session session_;
    Sampler sampler_;
    std::vector<int32_t> tokens_;     // of the prompt
    std::string shown_;               // what is printed of it
    std::vector<int32_t> forbidden_;  // tokens that --ignore-eos rules out
    std::vector<float> biased_;
    std::vector<std::string> stops_;  // texts that end a generation
    std::string tail_;                // of the generated text, as much as a stop may begin in
    int32_t pending_ = -1;
    const float* logits_ = nullptr;  // after the last token
    bool full_ = false;
};
