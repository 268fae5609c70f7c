// Whether predictors find the neurons that fire, watched while `auto` generates.
#pragma once

#include <vector>

#include "model.h"

namespace powerinfer {

struct Session;

// How a row's feed-forward block chooses its neurons.
enum class Masking : uint8_t {
    none,       // all are candidates
    predicted,  // those that the predictor proposes
    audited,    // all, and what the predictor would have missed is counted
};

// Every so often a masked row computes a layer in full, which can only improve its result, and what
// fires there is held against what the predictor proposed. A layer whose predictor finds too little
// is computed in full from then on.
class Audit {
 public:
    Audit() = default;  // asks nothing, trusts everything
    // Of resolved parameters: audits under `auto` where the file has predictors.
    Audit(const Config& config, const pi_session_params& params);
    static uint64_t bytes(const Config& config, const pi_session_params& params);

    // Decided by layer and position, so that a row's bits do not depend on what else is computed.
    Masking masking(int64_t layer, int64_t position) const;
    // Room for what fires in the rows of a block, [n_ubatch, n_ff]; null: nothing is audited.
    bool* flags() const { return flags_; }
    // One audited row: n neurons that fired, `found` of them proposed. Tells the session's log when
    // this is the first layer to lose its trust.
    void count(const Session& session, int64_t layer, int64_t n, int64_t found);

 private:
    struct Layer {
        int64_t fired = 0, found = 0;
        bool trusted = true;
    };
    ggml::Memory memory_;
    bool* flags_ = nullptr;
    std::vector<Layer> layers_;  // empty: nothing is audited
    bool told_ = false;
};

}  // namespace powerinfer
