// The last layers of a forward pass, on a device. Neurons that RAM holds are computed by the CPU at
// the same time.
#pragma once

#include <map>
#include <tuple>

#include "device_model.h"
#include "device_scratch.h"
#include "kv_pages.h"
#include "pass.h"

namespace powerinfer {

class DeviceForward : public DeviceKv {
 public:
    // Allocates the memory of a session on the model's device. params must be resolved. Throws
    // Error(memory | device).
    DeviceForward(const Model& model, const pi_session_params& params, const RopeTable& rope);

    // Computes the device's layers for the rows of p.work.batch, from the residual stream p.work.x,
    // and the head if it computes that; else kept rows go back to p.work.x. One row after the
    // other, so that a row's bits do not depend on its neighbours. Throws Error(device |
    // cancelled).
    void run(const Pass& p);
    bool computes_head() const { return head_; }
    // Kernels and copies of the largest graph so far.
    int most_nodes() const;

    void copy_page(int32_t from, int32_t to) override;
    void read_page(int32_t page, int64_t n, uint8_t* out) override;
    void write_page(int32_t page, int64_t n, const uint8_t* from) override;

 private:
    // What makes the operators of one row different from those of another.
    struct Kind {
        bool masked, kept;
        int blocks;  // of attention, a power of two
        bool operator<(const Kind& other) const {
            return std::tie(masked, kept, blocks) <
                   std::tie(other.masked, other.kept, other.blocks);
        }
    };

    void row(const Pass& p, int64_t t);
    void count(const Pass& p);
    void fill_step(const Pass& p, int64_t t);
    ggml::Owned<ggml::DeviceGraph> record(const Kind& kind);

    // The operators of a row. now: computes the CPU's halves between them; null: they are being
    // recorded.
    void put(const Kind& kind, const Pass* now);
    void put_layer(int64_t i, const Kind& kind, const Pass* now);
    void put_attention(int64_t i, const Kind& kind);
    void put_predictor(const Ffn& f);
    void put_selection(int64_t i, const Kind& kind);
    void put_neurons(int64_t i);
    void put_matrices(int64_t i);
    void put_norm(const NormWeights& w, const ggml::DeviceInput& y);
    void put_products(const ggml::DeviceInput& x,
                      std::initializer_list<ggml::DeviceProduct> products);
    // Of weights by their members in Model.
    ggml::DeviceProduct product(const ggml::Matrix& w, float* y, const float* const& bias) const;
    const int32_t* slots(int64_t i) const;
    ggml::KvLayer kv_layer(int64_t i) const;
    int64_t page_bytes() const;
    template <typename F>
    void each_run(int32_t page, int64_t n, const F& f);

    // The CPU's half of a layer: waits for its input, computes, answers.
    void answer(const Pass& p, int64_t i);
    void await(const Pass& p, const ggml::DeviceExchange& e);
    // Ends all waits, and waits for the device to come to rest.
    void release();

    const Model& model_;
    const pi_session_params& params_;
    const DeviceModel& on_;
    ggml::Device& device_;
    const ggml::DeviceOps& ops_;
    const int64_t first_;  // layer
    const bool head_;

    ggml::DeviceArray<uint8_t> kv_, memory_;
    ggml::SharedArray<uint8_t> shared_;
    DeviceScratch scratch_;
    DeviceStep host_;
    uint64_t step_bytes_ = 0;
    double rope_magnitude_ = 1;
    std::vector<ggml::DeviceExchange> exchange_;  // [layers on the device]
    std::vector<unsigned long long> counted_;     // of scratch_.counts, in p.counts already
    uint32_t epoch_ = 0;
    const float* added_[2] = {nullptr, nullptr};  // to x, by the next norm
    ggml::Owned<ggml::DeviceStream> stream_;      // after the memory that its work uses
    std::map<Kind, ggml::Owned<ggml::DeviceGraph>> graphs_;
};

}  // namespace powerinfer
