// The last layers of a forward pass, on a device. Of a layer whose neurons are split, the CPU
// computes those in RAM (the "cold" ones) while the device computes the others. For that the device
// publishes the input of the FFN, and it waits for the CPU's sums before it merges both.
#pragma once

#include <array>
#include <map>
#include <tuple>

#include "device/device_model.h"
#include "forward/pass.h"
#include "memory/device_scratch.h"
#include "memory/kv_pages.h"

namespace powerinfer {

class DeviceForward : public DeviceKv {
 public:
    // Allocates what a session takes on the model's device. params must be resolved. Throws
    // Error(memory | device).
    DeviceForward(const Model& model, const pi_session_params& params,
                  const std::vector<RopeTable>& ropes);

    // Computes the device's layers for the rows of p.work.batch. p.work.x is the residual stream.
    // If the device has the head, the result is logits; if not, the rows go back to p.work.x. The
    // bits of a row do not depend on its neighbours. Throws Error(device | cancelled), and what the
    // CPU's neurons throw (store.h).
    void run(const Pass& p);
    bool computes_head() const { return head_; }
    // Number of kernels and copies in the largest graphs that are kept.
    int most_nodes() const;
    // For how many kinds of rows graphs are kept now, and at most. There is a limit because no
    // memory plan knows what the driver takes for a graph. 32 sequences that all want logits need
    // graphs for each number of rows, and others when their attention has twice as many blocks.
    size_t n_recorded() const { return recorded_.size(); }
    static constexpr size_t kMostRecorded = 64;

    void copy_page(int64_t kind, int32_t from, int32_t to) override;
    void read_page(int64_t kind, int32_t page, int64_t n, uint8_t* out) override;
    void write_page(int64_t kind, int32_t page, int64_t n, const uint8_t* from) override;
    void read_state(int32_t slot, uint8_t* out) override;
    void write_state(int32_t slot, const uint8_t* from) override;
    // Folds the first n rows of a sequence's last call, of which it was kept what enters, behind
    // the states in slot `from` (-1: there are none) into slot `to`. They have the same bits as
    // those of the call. Throws Error(device).
    void replay(int32_t seq, int64_t n, int32_t from, int32_t to);

 private:
    // Rows of the same kind are computed by the same operators, so they can use the same graphs.
    struct Kind {
        bool masked, uploads_cold;  // as in Batch
        bool visits;                // experts of RAM may come to the device
        bool keeps;                 // what enters states is kept, of some row
        int rows, kept;
        int blocks;  // into which attention divides the positions
        auto tied() const {
            return std::tie(masked, uploads_cold, visits, keeps, rows, kept, blocks);
        }
        bool operator<(const Kind& other) const { return tied() < other.tied(); }
    };
    // recorded: operators become graphs, which are launched later; the CPU computes its parts
    // meanwhile. by_layer: operators are launched layer by layer, and the CPU computes its part of
    // a layer when all of that is launched. stepwise: before each CPU part the device comes to
    // rest.
    enum class LaunchMode { recorded, by_layer, stepwise };
    // One graph for all layers. If the CPU may wait for the disk, a graph ends before every merge
    // and the next one is launched when the CPU's part is done, so that the device does not spin.
    using Graphs = std::vector<ggml::Owned<ggml::DeviceGraph>>;
    struct Recorded {
        Graphs graphs;
        uint64_t used = 0;  // value of uses_ at the last use
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

    // These launch operators, or record them in a graph.
    friend class DeviceSteps;
    void launch_rows(const Pass& p, const Kind& kind, LaunchMode mode);
    void launch_layer(const Pass& p, int64_t i, const Kind& kind, LaunchMode mode);
    void launch_head(const Kind& kind, int64_t first, int64_t n);
    void launch_logits(const ggml::DeviceInput& normed);
    void launch_attention(int64_t i, const Attention& a, const ggml::DeviceInput& x, float* y,
                          const Kind& kind);
    ggml::DeviceHeads own_heads(const Attention& a, const ggml::DeviceInput& x);
    ggml::DeviceHeads latent_heads(const Attention& a, const ggml::DeviceInput& x);
    void rotate(const Attention& a, ggml::DeviceHeads& heads) const;
    void launch_gate(const Attention& a, const ggml::DeviceInput& x);
    void gate(const Attention& a, const ggml::DeviceInput& y);
    void norm_rows(const Attention& a, float* x, int64_t cols, const float* const& weight,
                   int rows);
    void launch_by_head(const ggml::DeviceInput& x, const std::vector<ggml::Matrix>& w,
                        int64_t y_row, float* y, const Kind& kind);
    ggml::DeviceInput attended(int64_t i, const Attention& a, const ggml::KvLayer& kv,
                               const Kind& kind);
    void attend(int64_t i, const Attention& a, const ggml::KvLayer& kv, const Kind& kind,
                const ggml::DeviceInput& to);
    void launch_predictor(const Ffn& f, const ggml::DeviceInput& normed);
    void launch_selection(int64_t i, const ggml::DeviceInput& x, const Kind& kind);
    void launch_neurons(const Pass& p, int64_t i, const ggml::DeviceInput& x, float* y,
                        const Kind& kind, LaunchMode mode);
    void launch_merge(const Pass& p, int64_t i, const ggml::DeviceInput& x, float* y,
                      const Kind& kind);
    ggml::DeviceNeurons gpu_neurons(int64_t i) const;
    ggml::DeviceFfnScratch ffn_scratch(int64_t i) const;
    uint64_t upload_cold(const Pass& p, int64_t i, const PromptUpload::Use& use);
    void launch_route(const Router& router, const ggml::DeviceInput& x);
    // meanwhile() launches what does not need the CPU's part.
    template <typename F>
    void launch_mixture(const Pass& p, int64_t i, const FeedForward& part,
                        const ggml::DeviceInput& x, float* y, const Kind& kind, LaunchMode mode,
                        const F& meanwhile);
    template <typename F>
    void launch_experts(const Pass& p, int64_t i, const FeedForward& part,
                        const ggml::DeviceInput& x, float* y, const Kind& kind, LaunchMode mode,
                        const F& meanwhile);
    void launch_frames(const FeedForward& part, const ggml::DeviceInput& x,
                       const ggml::DeviceFrames& frames, bool visitors);
    bool visits(const FeedForward& part, const Kind& kind) const;
    bool visit_experts(const Pass& p, int64_t i, const FeedForward& part,
                       const ggml::DeviceInput& x, const Kind& kind);
    void launch_values(const FeedForward& part, const ggml::DeviceChoice& pairs,
                       const ggml::DeviceFrames& frames, float* h, const float* up,
                       const ggml::DeviceProduct& down);
    void launch_whole_rows(const FeedForward& part, const ggml::DeviceInput& x, float* y);
    void launch_matrices(const FeedForward& part, const ggml::DeviceInput& x, float* y);
    void weigh(const FeedForward& part, const ggml::DeviceInput& x, float* y);
    void launch_embedding(int64_t i, const LayerEmbedding& e, const ggml::DeviceInput& x, float* y);
    // Parts with a state (device_states.cpp), as forward/parts/recurrent.h has them for the CPU.
    // Values of rows: row t begins at x + t * row. No width: none.
    struct Column {
        float* x = nullptr;
        int64_t row = 0, width = 0;
    };
    using Entering = std::array<Column, ggml::kDeviceColumns>;
    void fill_states(const Pass& p, int64_t begin, int64_t end, const DeviceStep& step);
    ggml::DeviceSequences sequences(int64_t n, int64_t at) const;
    template <typename T>
    Entering entering(const T& part, int64_t n) const;
    void launch_project(const ShortConvolution& s, const ggml::DeviceInput& x);
    void launch_project(const Mamba2& s, const ggml::DeviceInput& x);
    void launch_project(const DeltaNet& s, const ggml::DeviceInput& x);
    void take_by_head(const DeltaNet& s, const Entering& to, int n);
    void launch_low(const ggml::DeviceInput& x, const ggml::Matrix& low, const ggml::Matrix& w,
                    float* y);
    void launch_fold(int64_t i, const ShortConvolution& s, const Entering& of, int64_t n);
    void launch_fold(int64_t i, const Mamba2& s, const Entering& of, int64_t n);
    void launch_fold(int64_t i, const DeltaNet& s, const Entering& of, int64_t n);
    void launch_finish(const ShortConvolution& s, const ggml::DeviceInput& folded);
    void launch_finish(const Mamba2& s, const ggml::DeviceInput& folded);
    void launch_finish(const DeltaNet& s, const ggml::DeviceInput& folded);
    template <typename T>
    void launch_state(int64_t i, const T& part, const ggml::DeviceInput& x, float* y,
                      const Kind& kind);
    void launch_norm(const NormWeights& w, float* x, const ggml::DeviceInput& y);
    ggml::DeviceNorm norm_of(const NormWeights& w) const;
    void norm_in_place(const NormWeights& w, float* y, const Kind& kind);
    void rms_norm_in_place(const float* const& weight, float eps, const ggml::DeviceInput& x);
    void add_to_stream(const ggml::DeviceAdded& y, int rows);
    void finish(ggml::DeviceAdded& y, int rows);
    void add_now(int rows);
    void launch_products(const ggml::DeviceInput& x,
                         std::initializer_list<ggml::DeviceProduct> products);
    // A product with weights that the device finds by the addresses of their members in Model.
    ggml::DeviceProduct product(const ggml::NeuronRows& w, float* y,
                                const float* const& bias) const;
    ggml::DeviceProduct product(const ggml::Matrix& w, float* y) const;
    ggml::DeviceProduct product(const ggml::Matrix& w, float* y, const float* const& bias) const;
    // The index of a layer's first neuron in the tables of DeviceModel.
    int64_t first_neuron(int64_t i) const;
    const int32_t* slots(int64_t i) const;
    // Do predictors mask the rows in layer i?
    bool masks(int64_t i, const Kind& kind) const;
    // The feed-forward part of a layer that the CPU may have a part of, and the number of its first
    // block.
    const FeedForward& ffn(int64_t i) const { return *model_.ffn_of(i); }
    int32_t first_block(int64_t i) const { return ffn(i).number(0); }
    // Where the device counts the neurons of a part.
    unsigned long long* counts_of(const FeedForward& part) const {
        return scratch_.counts + 3 * part.index;
    }
    int n_embd() const { return int(model_.config.n_embd); }
    // May the CPU compute neurons or experts of layer i for these rows?
    bool cpu_has_part(int64_t i, const Kind& kind) const;
    // May it have to wait for the disk?
    static bool cpu_may_read(const Pass& p) { return p.source.waits() || p.source.pages_experts(); }
    // The next layer whose neurons are split, or -1.
    int32_t next_split(int64_t i) const;
    template <typename F>
    void each_run(int64_t kind, int32_t page, int64_t n, const F& f);

    // What has to happen before the merge of a layer is launched.
    void cpu_part_before_merge(const Pass& p, int64_t i, const Kind& kind, LaunchMode mode);
    // The CPU's part of a layer: waits for the published input, computes, sends the sums.
    void compute_cpu_part(const Pass& p, int64_t i, const Kind& kind);
    void compute_cold(const Pass& p, int64_t i, const Kind& kind);
    void compute_experts(const Pass& p, int64_t i, const Kind& kind);
    static void count_experts(const Pass& p, const FeedForward& part, int64_t pairs);
    // Copies of experts, between the rows of two passes.
    void move_experts(const Pass& p);
    void await(const Pass& p, const ggml::DeviceExchange& e);
    // After an error: ends all waits on the device, and waits until it has come to rest.
    void release();

    const Model& model_;
    const pi_session_params& params_;
    const DeviceModel& on_;
    ggml::Device& device_;
    const ggml::DeviceOps& ops_;
    const int64_t first_;  // the first layer on the device
    const bool head_;

    const KvLayout kv_layout_;  // of kv_
    ggml::DeviceArray<uint8_t> kv_, state_memory_, memory_;
    StateSlots states_;  // in state_memory_
    ggml::SharedArray<uint8_t> shared_;
    DeviceScratch scratch_;  // in memory_, for the rows that are being computed
    uint8_t* host_step_ = nullptr;
    std::vector<double> rope_magnitude_;          // of each table of RoPE
    std::vector<ggml::DeviceExchange> exchange_;  // [layers on the device]
    // [layers on the device][n_ff]: the rows of DeviceModel::cold that the CPU computes; empty: all
    // of them. A bundled file's rows stay in RAM even if the device has them, too.
    std::vector<std::vector<uint8_t>> cold_rows_;
    std::unique_ptr<bool[]> every_row_;        // flags that are all true
    std::vector<unsigned long long> counted_;  // values of scratch_.counts at the last count()
    bool uncounted_ = false;                   // a failed call left counts that belong to no call
    uint32_t epoch_ = 0;
    ggml::DeviceAdded added_[2];  // what the next norm adds to x
    int listed_heads_ = 0;        // so many heads are in scratch_.all_heads; 0: none yet
    ggml::Owned<ggml::DeviceStream> stream_;  // declared after the memory that its work uses
    std::map<Kind, Recorded> recorded_;
    uint64_t uses_ = 0;  // of recorded_, to find what was used least recently
    Graphs* recording_ = nullptr;
};

}  // namespace powerinfer
