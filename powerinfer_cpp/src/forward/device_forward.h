// The last layers of a forward pass, on a device. Neurons that RAM holds are computed by the CPU at
// the same time.
#pragma once

#include <map>
#include <tuple>

#include "device/device_model.h"
#include "forward/pass.h"
#include "memory/device_scratch.h"
#include "memory/kv_pages.h"

namespace powerinfer {

class DeviceForward : public DeviceKv {
 public:
    // Allocates the memory of a session on the model's device. params must be resolved. Throws
    // Error(memory | device).
    DeviceForward(const Model& model, const pi_session_params& params,
                  const std::vector<RopeTable>& ropes);

    // Computes the device's layers for the rows of p.work.batch, from the residual stream p.work.x,
    // and the head if it computes that; else the rows go back to p.work.x. A row's bits do not
    // depend on its neighbours. Throws Error(device | cancelled).
    void run(const Pass& p);
    bool computes_head() const { return head_; }
    // Kernels and copies of the largest graph that is kept.
    int most_nodes() const;
    // How many kinds of rows have graphs now, and at most: what the driver takes for one is in no
    // plan. 32 sequences that all want logits need one a number of rows, and another when their
    // attention has twice as many blocks.
    size_t n_recorded() const { return recorded_.size(); }
    static constexpr size_t kMostRecorded = 64;

    void copy_page(int32_t from, int32_t to) override;
    void read_page(int32_t page, int64_t n, uint8_t* out) override;
    void write_page(int32_t page, int64_t n, const uint8_t* from) override;

 private:
    // What makes the operators of some rows different from those of others.
    struct Kind {
        bool masked, uploads_cold;  // as in Batch
        int rows, kept;
        int blocks;  // of attention
        auto tied() const { return std::tie(masked, uploads_cold, rows, kept, blocks); }
        bool operator<(const Kind& other) const { return tied() < other.tied(); }
    };
    // How operators reach the device: recorded as graphs, without the CPU's halves; layer after
    // layer, each with its CPU part; or one by one, waiting for each published half.
    enum class LaunchMode { recorded, by_layer, stepwise };
    // One, or if the CPU's halves may wait for the disk, as many as there are halves, and one: each
    // ends before a half is merged, and the next one begins when that is there.
    using Graphs = std::vector<ggml::Owned<ggml::DeviceGraph>>;
    struct Recorded {
        Graphs graphs;
        uint64_t used = 0;  // the largest was used last
    };

    void carve(int64_t n);
    void mark_cold_rows();
    void rows(const Pass& p, int64_t begin, int64_t end);
    void count(const Pass& p);
    std::vector<unsigned long long> counts_now();
    void fill_step(const Pass& p, int64_t begin, int64_t end);
    const Graphs& recorded(const Pass& p, const Kind& kind);
    Graphs record(const Pass& p, const Kind& kind);
    void end_graph(Graphs& graphs);
    void copy_results(const Pass& p, int64_t begin, const Kind& kind);

    // The operators of some rows.
    void launch_rows(const Pass& p, const Kind& kind, LaunchMode mode);
    void launch_layer(const Pass& p, int64_t i, const Kind& kind, LaunchMode mode);
    void launch_head(const Kind& kind, int64_t first, int64_t n);
    void launch_logits(const ggml::DeviceInput& normed);
    void launch_attention(int64_t i, const Kind& kind);
    void launch_predictor(const Ffn& f);
    void launch_selection(int64_t i, const Kind& kind);
    ggml::DeviceNeurons gpu_neurons(int64_t i) const;
    ggml::DeviceFfnScratch ffn_scratch(int64_t i) const;
    void launch_gpu_neurons(int64_t i);
    void launch_merge(const Pass& p, int64_t i, const Kind& kind);
    uint64_t upload_cold(const Pass& p, int64_t i, const PromptUpload::Use& use);
    void launch_matrices(int64_t i);
    void launch_norm(const NormWeights& w, float* x, const ggml::DeviceInput& y);
    void launch_products(const ggml::DeviceInput& x,
                         std::initializer_list<ggml::DeviceProduct> products);
    // Of weights by their members in Model.
    ggml::DeviceProduct product(const ggml::Matrix& w, float* y, const float* const& bias) const;
    // The number of a layer's first neuron in the device's tables.
    int64_t first_neuron(int64_t i) const;
    const int32_t* slots(int64_t i) const;
    // Do predictors mask the rows in this layer?
    bool masks(int64_t i, const Kind& kind) const;
    // The feed-forward part of a layer, and the number of its block.
    const FeedForward& ffn(int64_t i) const {
        return *model_.layers[size_t(i)].find<FeedForward>();
    }
    int32_t first_block(int64_t i) const { return int32_t(ffn(i).first_block); }
    // Does the CPU compute a half of this layer?
    bool cpu_has_part(int64_t i, const Kind& kind) const;
    // The next layer that is shared with the CPU, or -1.
    int32_t next_split(int64_t i) const;
    ggml::KvLayer kv_layer(int64_t i) const;
    int64_t page_bytes() const;
    template <typename F>
    void each_run(int32_t page, int64_t n, const F& f);

    // What the CPU does before the device is given the merge of a layer.
    void cpu_part_before_merge(const Pass& p, int64_t i, const Kind& kind, LaunchMode mode);
    // The CPU's half of a layer: waits for its input, computes, answers.
    void compute_cpu_part(const Pass& p, int64_t i, const Kind& kind);
    void compute_cold(const Pass& p, int64_t i, const Kind& kind);
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
    DeviceScratch scratch_;  // for the rows that are computed
    uint8_t* host_step_ = nullptr;
    double rope_magnitude_ = 1;
    std::vector<ggml::DeviceExchange> exchange_;  // [layers on the device]
    // [layers on the device][n_ff]: which rows of a bundled layer the CPU computes; empty: all.
    std::vector<std::vector<uint8_t>> cold_rows_;
    std::unique_ptr<bool[]> every_row_;        // true
    std::vector<unsigned long long> counted_;  // of scratch_.counts, in p.counts already
    bool uncounted_ = false;                   // a failed call left some that belong nowhere
    uint32_t epoch_ = 0;
    const float* added_[2] = {nullptr, nullptr};  // to x, by the next norm
    ggml::Owned<ggml::DeviceStream> stream_;      // after the memory that its work uses
    std::map<Kind, Recorded> recorded_;
    uint64_t uses_ = 0;  // of recorded_
    Graphs* recording_ = nullptr;
};

}  // namespace powerinfer
