// From options to text: loads the model, reads the prompt, continues it or converses.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat.h"
#include "options.h"
#include "powerinfer.h"
#include "work.h"

using Clock = std::chrono::steady_clock;

struct Timing {
    Clock::time_point start = Clock::now();
    double load = 0, prompt = 0, eval = 0, sampling = 0;  // ms
    double first_token = 0;                               // from reading the prompt on
    int64_t n_prompt = 0, n_eval = 0, n_sampled = 0;
    std::vector<double> token_ms;  // of each evaluated token
    Work read, generated;          // what prompts and evaluated tokens cost
    int64_t n_ff = 0;              // neurons of a layer, or of one expert

    void print() const;
    void print_work() const;
    // The tokens that figures per token are about: the generated ones or, where there are none, the
    // prompt's.
    const Work& decoding() const { return generated.sum.rows ? generated : read; }
};

template <auto release>
struct Release {
    template <class T>
    void operator()(T* handle) const {
        release(handle);
    }
};
using Model = std::unique_ptr<pi_model, Release<pi_model_free>>;
using Session = std::unique_ptr<pi_session, Release<pi_session_free>>;
using Sampler = std::unique_ptr<pi_sampler, Release<pi_sampler_free>>;
using Plan = std::unique_ptr<pi_plan, Release<pi_plan_free>>;

pi_model_params model_params(Options& options);
pi_session_params session_params(const Options& options, int32_t trained_for);
std::string isa();  // throws where GGML_ISA names one that this processor does not have

class Generation {
 public:
    explicit Generation(Options& options);
    // Continues the prompt, or holds a conversation. 0 or an exit status.
    int run();

 private:
    void print_settings(const pi_session_params& session) const;
    void set_prompt();
    void evaluate(const int32_t* tokens, size_t n);
    void read(const std::vector<int32_t>& tokens, size_t n_accepted);
    int32_t choose();
    void generate();
    bool show(std::string_view text);

    void converse();
    bool take_turn(const std::string& message);
    std::vector<int32_t> chat_ids(const std::vector<ChatPart>& parts) const;
    int32_t control_token(const std::string& text) const;

    Options& options_;
    Timing timing_;
    std::optional<ChatFormat> chat_;  // of a conversation
    Model model_;
    Session session_;
    Sampler sampler_;
    std::vector<int32_t> tokens_;     // of the prompt
    std::string shown_;               // what is printed of it
    std::vector<int32_t> forbidden_;  // tokens that --ignore-eos rules out
    std::vector<float> biased_;
    std::vector<std::string> stops_;  // texts that end a generation
    std::string tail_;                // of the generated text, as much as a stop may begin in
    int32_t pending_ = -1;            // token that was shown and not yet evaluated; -1: none
    const float* logits_ = nullptr;   // after the last token
    bool full_ = false;
    bool begun_ = false;  // a turn of the conversation is in the cache
};
