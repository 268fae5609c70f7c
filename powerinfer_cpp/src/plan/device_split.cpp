#include "plan/device_split.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "device/device_model.h"
#include "ggml/sizes.h"
#include "ggml/status.h"
#include "memory/device_scratch.h"
#include "plan/keeps_to_cpu.h"

namespace powerinfer {

using ggml::Code;
using ggml::Error;
using ggml::format;
using ggml::size_sum;

namespace {

class Chooser {
 public:
    Chooser(const Model& m, const pi_model_params& params, const pi_session_params& session)
        : model_(m),
          params_(params),
          session_(session),
          fixed_(m.layers.size()),
          rows_(m.layers.size()),
          bundled_(m.layers.size()) {
        for (const WeightSpec& w : m.weights) {
            if (const auto* v = std::get_if<Vector>(&w.target)) vectors_.emplace(v->to, &w);
            const int64_t layer = layer_of(w.name);
            if (layer < 0) continue;
            if (w.chosen || w.expert_rows() || w.expert_bias) continue;
            if (w.by_neuron() && !m.beside_experts(*w.of)) {
                for (const DeviceMatrix& matrix : w.device_matrices()) {
                    rows_[size_t(layer)].push_back(matrix);
                }
                bundled_[size_t(layer)] = w.is<WholeBundle>();
            } else if (!w.stays_in_ram()) {
                fixed_[size_t(layer)] = size_sum(fixed_[size_t(layer)], w.device_bytes(w.rows));
            }
        }
    }

    // What layers from `first` on take without neuron rows, with all that the sessions need.
    uint64_t least(int64_t first) const {
        const int64_t n = model_.config.n_layer - first;
        const uint64_t sessions = sessions_bytes(model_, params_, session_, n, false, Tier::gpu);
        uint64_t sum = size_sum(sessions, device_table_bytes(model_.neurons_from(first)));
        sum = size_sum(sum, model_.device->device->context_bytes());
        sum = size_sum(sum, frame_shape(model_, first, 0, params_).device_bytes());
        for (size_t i = size_t(first); i < fixed_.size(); i++) sum = size_sum(sum, fixed_[i]);
        return sum;
    }

    uint64_t head() const {
        uint64_t sum = 0;
        for (const WeightSpec& w : model_.weights) {
            if (w.of_head()) sum = size_sum(sum, w.device_bytes(w.rows));
        }
        return sum;
    }

    // Bytes of a piece of neurons on their way to the device (PromptUpload), which has two of them:
    // at most kPiece, 1/16 of what is left for neurons, and a whole layer; 0 if that is not enough
    // for a few neurons of every layer.
    uint64_t piece(int64_t first, uint64_t left) const {
        constexpr uint64_t kPiece = 16 << 20;
        const Config& c = model_.config;
        uint64_t least = 0, most = 0;
        for (size_t i = size_t(first); i < rows_.size(); i++) {
            std::vector<ggml::DType> formats;
            for (const DeviceMatrix& m : rows_[i]) formats.push_back(m.type);
            if (formats.empty()) continue;
            const auto bytes = [&](int64_t n) { return PromptUpload::bytes(formats, c.n_embd, n); };
            least = std::max(least, bytes(PromptUpload::kNeurons));
            most = std::max(most, bytes(model_.only_ffn(int64_t(i)).n_ff));
        }
        uint64_t piece = std::min({kPiece, left / 16, most});
        piece = piece / ggml::kDeviceGranule * ggml::kDeviceGranule;
        return piece < least ? 0 : piece;
    }

    // Gives the device neurons of `split`'s layers, in `left` bytes.
    void fill(DeviceSplit& split, uint64_t left) const {
        struct Neuron {
            bool placed;
            float rate;
            int32_t layer, id;
        };
        std::vector<Neuron> all;
        const Placement* placement = model_.placement ? &*model_.placement : nullptr;
        if (placement && !placement->applies(model_.device->budget->limit())) placement = nullptr;
        for (int64_t i = split.first_layer; i < model_.config.n_layer; i++) {
            if (rows_[size_t(i)].empty()) continue;
            const int64_t n_ff = model_.only_ffn(i).n_ff;
            const std::vector<float> rate = rates(i);
            for (int32_t n = 0; n < n_ff; n++) {
                const bool placed =
                    placement && placement->layers[size_t(i)][0].tier[size_t(n)] == Tier::gpu;
                all.push_back({placed, rate.empty() ? 0 : rate[size_t(n)], int32_t(i), n});
            }
            split.slot[size_t(i)].assign(size_t(n_ff), -1);
        }
        std::stable_sort(all.begin(), all.end(), [](const Neuron& a, const Neuron& b) {
            return a.placed != b.placed ? a.placed : a.rate > b.rate;
        });
        std::vector<int64_t> counts(rows_.size(), 0);
        for (const Neuron& n : all) {
            int64_t& count = counts[size_t(n.layer)];
            const uint64_t bytes = neurons(n.layer, count + 1) - neurons(n.layer, count);
            if (bytes > left) continue;
            left -= bytes;
            count++;
            split.slot[size_t(n.layer)][size_t(n.id)] = 0;
        }
        for (size_t i = 0; i < split.slot.size(); i++) number(split.slot[i], bundled_[i]);
    }

 private:
    // Bytes of n neurons of a layer.
    uint64_t neurons(int64_t layer, int64_t n) const {
        uint64_t sum = 0;
        for (const DeviceMatrix& m : rows_[size_t(layer)]) sum = size_sum(sum, m.bytes(n));
        return sum;
    }

    // Rows in the order of the neurons; nothing where all are on the device. bundled: RAM has all
    // rows.
    static void number(std::vector<int32_t>& slot, bool bundled) {
        int32_t here = 0, in_ram = 0;
        for (size_t i = 0; i < slot.size(); i++) {
            slot[i] = slot[i] == 0 ? here++ : -1 - (bundled ? int32_t(i) : in_ram++);
        }
        if (size_t(here) == slot.size()) slot.clear();
    }

    // How often the neurons of a layer fire; empty if the file does not say.
    std::vector<float> rates(int64_t layer) const {
        const Ffn& f = model_.only_ffn(layer).blocks[0];
        const auto found = vectors_.find(&f.rate);
        if (found == vectors_.end()) return {};
        const ggml::TensorInfo& tensor = *found->second->tensor;
        const std::vector<uint8_t> bytes = model_.file.read(tensor, tensor.bytes);
        std::vector<float> rate(size_t(f.neurons.n));
        std::memcpy(rate.data(), bytes.data(), rate.size() * sizeof(float));
        return rate;
    }

    const Model& model_;
    const pi_model_params& params_;
    const pi_session_params& session_;
    std::vector<uint64_t> fixed_;                  // [n_layer]
    std::vector<std::vector<DeviceMatrix>> rows_;  // [n_layer]: of neurons; or FFNs are matrices
    std::vector<bool> bundled_;                    // [n_layer]: in the file
    std::unordered_map<const void*, const WeightSpec*> vectors_;  // by where they go
};

// Experts of a mixture that a device has operators for.
bool has_frames(const Model& m, const FeedForward& part, int64_t first) {
    return part.routed() && part.layer >= first && part.layer < m.config.n_layer;
}

// Is it weights of the first expert of a part?
bool of_first_expert(const WeightSpec& w) {
    return w.expert_rows() ? w.row0 == 0 : w.chosen && w.block == 0;
}

// Which matrices of an expert have biases: gate, up, down.
class ExpertBiases {
 public:
    explicit ExpertBiases(const Model& m) {
        for (const WeightSpec& w : m.weights) {
            if (w.expert_bias) there_.insert(std::get<Vector>(w.target).to);
        }
    }
    std::vector<bool> of(const FeedForward& part) const {
        const Ffn& f = part.blocks[0];
        std::vector<bool> found;
        const ggml::Neurons& rows = f.neurons;
        const float* const* const of_rows[] = {&rows.gate_bias, &rows.up_bias, &rows.down_bias};
        const float* const* const of_matrices[] = {&f.gate_bias, &f.up_bias, &f.down_bias};
        for (const float* const* bias : rows.n > 0 ? of_rows : of_matrices) {
            found.push_back(there_.count(bias) > 0);
        }
        return found;
    }

 private:
    std::unordered_set<const void*> there_;
};

// Gives every class frames for the same share of its experts, in at most `bytes`; those that stay
// with the CPU get none.
void divide(FrameShape& shape, const std::vector<bool>& stay, uint64_t bytes) {
    std::vector<int64_t> blocks(shape.card.classes.size());
    for (size_t i = 0; i < shape.card.class_of.size(); i++) {
        const int32_t c = shape.card.class_of[i];
        if (c >= 0 && !stay[size_t(c)])
            blocks[size_t(c)] += shape.card.before[i + 1] - shape.card.before[i];
    }
    constexpr int64_t kSteps = 1 << 20;
    int64_t good = 0, bad = kSteps + 1;
    const auto give = [&](int64_t step) {
        for (size_t c = 0; c < blocks.size(); c++) {
            shape.card.classes[c].frames = blocks[c] * step / kSteps;
        }
    };
    while (bad - good > 1) {
        const int64_t middle = good + (bad - good) / 2;
        give(middle);
        (shape.device_bytes() <= bytes ? good : bad) = middle;
    }
    give(good);
}

// The layer before whose keys and values this one reads; -1: it has its own, or none.
int64_t owner(const Model& m, int64_t layer) {
    const Attention* const a = m.layers[size_t(layer)].find<Attention>();
    return a ? a->kv_of : -1;
}

// The layers that a device can begin with, the last one first, and why none before them is one.
struct Starts {
    std::vector<int64_t> layers;
    LeftToCpu left;

    // most: so many layers at most.
    Starts(const Model& m, const KeptToCpu& kept, int64_t most) {
        int64_t needed = m.config.n_layer;  // the first layer whose keys and values are read
        for (int64_t i = m.config.n_layer - 1; i >= 0; i--) {
            if (i < m.config.n_layer - most) {
                left.layer = format("n_gpu_layers is %lld", (long long)most);
                break;
            }
            if (const std::string why = kept.layer(i); !why.empty()) {
                left.layer = format("layer %lld: %s", (long long)i, why.c_str());
                left.needs_operator = true;
                break;
            }
            if (owner(m, i) >= 0) needed = std::min(needed, owner(m, i));
            if (needed >= i) layers.push_back(i);
        }
    }
};

// If the layer before `first` is not there because one from it on reads the keys and values of a
// layer further before: a sentence that says so, and what follows it.
std::string behind(const Model& m, int64_t first, int64_t next, std::string why) {
    for (int64_t i = first - 1; next < first - 1 && i < m.config.n_layer; i++) {
        if (owner(m, i) < 0 || owner(m, i) >= first - 1) continue;
        return format("layer %lld reads the keys and values of layer %lld; ", (long long)i,
                      (long long)owner(m, i)) +
               why;
    }
    return why;
}

}  // namespace

FrameShape frame_shape(const Model& m, int64_t first, uint64_t bytes,
                       const pi_model_params& params) {
    FrameShape shape;
    std::vector<bool> stay;  // classes: of experts that stay with the CPU
    shape.matrices.resize(m.ffns.size());
    shape.in_rows.resize(m.ffns.size());
    shape.card.class_of.assign(m.ffns.size(), -1);
    for (const FeedForward* part : m.ffns) shape.card.before.push_back(part->first_block);
    shape.card.before.push_back(m.n_blocks());
    std::vector<bool> suits(m.ffns.size(), true);
    for (const WeightSpec& w : m.weights) {
        if (!of_first_expert(w) || !has_frames(m, *w.of, first)) continue;
        const auto i = size_t(w.of->index);
        shape.needed = true;
        shape.in_rows[i] = w.expert_rows();
        for (const DeviceMatrix& matrix : w.device_matrices()) {
            shape.matrices[i].push_back({matrix.type, w.rows, matrix.cols});
            if (w.expert_rows() && !ggml::has_neuron_experts(matrix.type, matrix.cols)) {
                suits[i] = false;
            }
        }
        if (!w.suits_device()) suits[i] = false;
    }
    // A row of each matrix's biases, where there are any.
    const ExpertBiases biases(m);
    for (size_t i = 0; i < m.ffns.size(); i++) {
        std::vector<FrameShape::Matrix>& matrices = shape.matrices[i];
        if (matrices.empty() || !suits[i]) continue;
        const std::vector<bool> biased = biases.of(*m.ffns[i]);
        for (size_t k = 0, n = matrices.size(); k < n; k++) {
            // A row of down is what a neuron sends to each column.
            const bool by_neuron = shape.in_rows[i] && k + 1 == n;
            const int64_t values = by_neuron ? matrices[k].cols : matrices[k].rows;
            matrices.push_back({ggml::DType::F32, biased[k + 3 - n], values});
        }
        uint64_t frame = 0, in_ram = 0;
        for (FrameShape::Matrix& matrix : matrices) {
            matrix.offset = frame;
            frame += DeviceMatrix{nullptr, matrix.type, matrix.cols, false}.bytes(matrix.rows);
            in_ram += matrix.landing_bytes();
        }
        auto& classes = shape.card.classes;
        const bool stays = m.ffns[i]->layer < params.n_cpu_moe;
        size_t c = 0;
        while (c < classes.size() && (classes[c].bytes != frame || stay[c] != stays)) c++;
        shape.card.class_of[i] = int32_t(c);
        if (c == classes.size()) {
            classes.push_back({frame, 0});
            stay.push_back(stays);
        }
        shape.staged = std::max(shape.staged, in_ram);
    }
    if (shape.card.classes.empty()) return shape;
    shape.visits = params.op_offload;
    divide(shape, stay, bytes);
    return shape;
}

DeviceSplit split_with_device(const Model& m, const pi_model_params& params,
                              const pi_session_params& session) {
    const int32_t n_gpu_layers = params.n_gpu_layers;
    constexpr double kMiB = 1 << 20;
    const int64_t n_layer = m.config.n_layer;
    const Budget& budget = *m.device->budget;
    // All else that is planned is a multiple of this: so the weights are, too.
    const uint64_t limit = budget.limit() / ggml::kDeviceGranule * ggml::kDeviceGranule;
    const Chooser chooser(m, params, session);
    const int64_t most = n_gpu_layers < 0 ? n_layer : std::min<int64_t>(n_gpu_layers, n_layer);
    DeviceSplit split;
    split.first_layer = n_layer;
    split.slot.resize(size_t(n_layer));
    const KeptToCpu kept(m);
    const Starts starts(m, kept, most);
    // More layers take more, so how many of the starts fit is found by halving.
    size_t fit = 0, beyond = starts.layers.size() + 1;
    while (beyond - fit > 1) {
        const size_t middle = fit + (beyond - fit) / 2;
        (chooser.least(starts.layers[middle - 1]) <= limit ? fit : beyond) = middle;
    }
    if (fit > 0) split.first_layer = starts.layers[fit - 1];
    int64_t next = -1;  // the start that does not fit
    split.left = starts.left;
    if (fit < starts.layers.size()) {
        next = starts.layers[fit];
        const double mib = double(chooser.least(next)) / kMiB;
        if (n_gpu_layers > 0 || (budget.given() && fit == 0)) {
            throw Error(
                Code::memory,
                format("%s: %lld of %lld layers and a context of %d positions would take "
                       "%.2f MiB of VRAM, and %.2f MiB may be used",
                       m.file.gguf.path().c_str(), (long long)(n_layer - next), (long long)n_layer,
                       session.n_ctx, mib, double(budget.limit()) / kMiB));
        }
        split.left.needs_operator = false;
        split.left.layer = format(
            "layer %lld does not fit (%.2f MiB of VRAM with it, %.2f may be "
            "used)",
            (long long)next, mib, double(budget.limit()) / kMiB);
    }
    split.left.layer = behind(m, split.first_layer, next, std::move(split.left.layer));
    if (split.first_layer == n_layer) return split;
    uint64_t left = limit - chooser.least(split.first_layer);
    if (n_gpu_layers >= 0 && n_gpu_layers <= n_layer) {
        split.left.head = format("n_gpu_layers is %d", n_gpu_layers);
    } else if (!kept.head().empty()) {
        split.left.head = kept.head();
        split.left.needs_operator = true;
    } else if (chooser.head() > left) {
        split.left.head = format("it does not fit (it takes %.2f MiB of VRAM, %.2f are left)",
                                 double(chooser.head()) / kMiB, double(left) / kMiB);
    } else {
        split.head = true;
        left -= chooser.head();
    }
    const auto frames = [&](uint64_t bytes) {
        return frame_shape(m, split.first_layer, bytes, params).device_bytes();
    };
    const uint64_t table = frames(0);
    split.expert_bytes = left / ggml::kDeviceGranule * ggml::kDeviceGranule + table;
    left -= frames(split.expert_bytes) - table;
    const auto fill = [&](uint64_t bytes) {
        chooser.fill(split, params.placement == PI_PLACEMENT_NONE ? 0 : bytes);
        for (int64_t i = split.first_layer; i < n_layer; i++) {
            if (split.splits(i)) return false;
        }
        return true;
    };
    if (fill(left) || !params.op_offload) return split;
    split.piece = chooser.piece(split.first_layer, left);
    fill(left - 2 * split.piece);
    return split;
}

}  // namespace powerinfer
