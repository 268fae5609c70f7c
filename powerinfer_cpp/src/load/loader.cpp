// Brings weights into memory: mapped, read, or packed into strips and bundles.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "ggml/status.h"
#include "load/load.h"
#include "load/weight_reader.h"

namespace powerinfer {

using ggml::Code;
using ggml::Error;
using ggml::format;

namespace {

class Loader {
 public:
    Loader(Model& model, const pi_model_params& params)
        : model_(model),
          params_(params),
          context_(ggml::threads_used(params.n_threads)),
          reader_(model.file, context_.threads, *model.budget, to_read()) {}

    void run() {
        model_.packed = ggml::Memory(model_.plan.packed, "weights");
        model_.plain = ggml::Memory(model_.plan.plain, "weights");
        for (const WeightSpec& w : model_.weights) total_ += w.bytes();
        progress(0);
        for (const WeightSpec& w : model_.weights) {
            place(w);
            placed_ += w.bytes();
            if (!w.location.device_rows) continue;
            move();  // so that the upload finds the file's pages in the system's cache
            upload(w);
        }
        move();
        if (params_.use_mlock) lock();
    }

    // The rows of the neurons of a layer that are on a device, or null: all that the device has.
    const std::vector<int32_t>* slots(const WeightSpec& w) const {
        const int64_t layer = layer_of(w.name);
        const bool shared = w.by_neuron() && model_.device && model_.device->split.splits(layer);
        if (!shared) return nullptr;
        return &model_.device->split.slot[size_t(layer)];
    }

 private:
    // The weights whose bytes are read from the file, in the order of run().
    std::vector<const WeightSpec*> to_read() const {
        std::vector<const WeightSpec*> all;
        for (const WeightSpec& w : model_.weights) {
            const Location& l = w.location;
            const bool moved = l.rows > 0 && (l.memory == Location::Memory::packed ||
                                              l.memory == Location::Memory::plain);
            if (moved || l.device_rows > 0 || (params_.check_tensors && is_bundled(w)))
                all.push_back(&w);
        }
        return all;
    }
    static bool is_bundled(const WeightSpec& w) {
        return w.is<NeuronPart>() || w.is<StoredBundle>();
    }

    // The address of a weight. Only packed and plain ones are writable.
    uint8_t* at(const WeightSpec& w) const {
        switch (w.location.memory) {
            case Location::Memory::packed:
                return model_.packed.data() + w.location.offset;
            case Location::Memory::plain:
                return model_.plain.data() + w.location.offset;
            case Location::Memory::mapped:
            case Location::Memory::disk:  // at() is not for these
                break;
        }
        return const_cast<uint8_t*>(model_.file.mappings[w.tensor->file]->data()) + w.file_offset();
    }

    // Copies a weight's rows to the device, a slab of the file at a time. A bundled file's rows are
    // those of several matrices side by side.
    void upload(const WeightSpec& w) {
        const std::vector<int32_t>* slot = slots(w);
        const std::vector<Rows> parts = rows_of(w);
        const int64_t row = ggml::info(w.tensor->type).size(w.cols);
        const int64_t slab = std::max<int64_t>(1, (8 << 20) / row);
        std::vector<uint8_t> read(size_t(std::min(slab, w.rows) * row)), stored, chosen;
        const uint8_t* const from = read.data();
        int64_t done = 0;  // rows on the device
        for (int64_t r0 = 0; r0 < w.rows; r0 += slab) {
            const int64_t n = std::min(slab, w.rows - r0);
            const int32_t* here = slot ? slot->data() + r0 : nullptr;
            const int64_t n_here =
                here ? std::count_if(here, here + n, [](int32_t at) { return at >= 0; }) : n;
            reader_.read(w, r0, n, read.data());
            if (parts.empty()) {
                const uint8_t* rows = here ? hot_rows(here, from, n, row, chosen) : from;
                model_.device->put(w, 0, done, n_here, rows);
            }
            for (size_t part = 0; part < parts.size(); part++) {
                const int64_t bytes = ggml::info(parts[part].type).size(parts[part].cols);
                stored.resize(size_t(n * bytes));
                parts[part].take(from, n, stored.data());
                const uint8_t* rows = stored.data();
                if (here) rows = hot_rows(here, rows, n, bytes, chosen);
                model_.device->put(w, part, done, n_here, rows);
            }
            done += n_here;
        }
    }

    // Of n rows, those that the device has; slot is that of the first row.
    static const uint8_t* hot_rows(const int32_t* slot, const uint8_t* rows, int64_t n,
                                   int64_t bytes, std::vector<uint8_t>& out) {
        out.clear();
        for (int64_t i = 0; i < n; i++) {
            if (slot[i] >= 0) out.insert(out.end(), rows + i * bytes, rows + (i + 1) * bytes);
        }
        return out.data();
    }

    // Moves the rows of all weights that have been placed.
    void move() {
        reader_.move(moves_, [&](uint64_t bytes) { progress(done_ + bytes); });
        moves_.clear();
        done_ = placed_;
        progress(done_);
    }

    // Tells a weight's address to whoever needs it, and notes how its rows get there.
    void place(const WeightSpec& w) {
        if (const auto* neurons = std::get_if<NeuronPart>(&w.target)) {
            bundle(w, *neurons);
        } else if (const auto* stored = std::get_if<StoredBundle>(&w.target)) {
            unpack(w, *stored);
        } else if (const auto* turned = std::get_if<Turned>(&w.target)) {
            turn(w, *turned);
        } else if (const auto* floats = std::get_if<Decoded>(&w.target)) {
            decode(w, *floats);
        } else {
            fill(w);
        }
    }

    // The scale is a weight of its own.
    static void put(ggml::Matrix m, ggml::Matrix& to) {
        m.scale = to.scale;
        to = m;
    }

    // Moves rows to columns.
    void turn(const WeightSpec& w, const Turned& target) {
        uint8_t* const to = at(w);
        put({ggml::DType::F32, ggml::Layout::rows, w.cols, w.rows, to}, *target.to);
        const auto take = [this, &w, to](int64_t first, int64_t n, const uint8_t* from) {
            check(w, from, first, n);
            const ggml::Matrix rows{w.tensor->type, ggml::Layout::rows, n, w.cols, from};
            std::vector<float> row(size_t(w.cols));
            for (int64_t r = 0; r < n; r++) {
                ggml::decode_row(rows, r, row.data());
                auto* column = reinterpret_cast<float*>(to) + first + r;
                for (int64_t c = 0; c < w.cols; c++) column[c * w.rows] = row[size_t(c)];
            }
        };
        moves_.push_back({&w, 1, take});
    }

    void decode(const WeightSpec& w, const Decoded& target) {
        auto* const to = reinterpret_cast<float*>(at(w));
        *target.to = to;
        const auto take = [this, &w, to](int64_t first, int64_t n, const uint8_t* from) {
            check(w, from, first, n);
            const ggml::Matrix rows{w.tensor->type, ggml::Layout::rows, n, w.cols, from};
            for (int64_t r = 0; r < n; r++) ggml::decode_row(rows, r, to + (first + r) * w.cols);
        };
        moves_.push_back({&w, 1, take});
    }

    void fill(const WeightSpec& w) {
        const auto layout = w.strips() ? ggml::Layout::strips : ggml::Layout::rows;
        const bool here = w.location.rows > 0;
        const ggml::Matrix m{w.tensor->type, layout, w.rows, w.cols, here ? at(w) : kElsewhere};
        if (const auto* v = std::get_if<Vector>(&w.target)) {
            *v->to = reinterpret_cast<const float*>(m.data);
        } else if (const auto* p = std::get_if<Product>(&w.target)) {
            put(m, *p->to);
        } else if (const auto* t = std::get_if<Table>(&w.target)) {
            *t->to = m;
            if (w.location.memory == Location::Memory::disk) {
                *t->stored = {model_.file.files[size_t(w.tensor->file)].get(), w.file_offset(), m};
            }
        } else if (const auto* s = std::get_if<Signs>(&w.target)) {
            *s->to = m;
        } else if (const auto* b = std::get_if<WholeBundle>(&w.target)) {
            b->to->set_addresses(m.data);
        }
        const bool mapped = w.location.memory == Location::Memory::mapped;
        if (!here || (mapped && !params_.check_tensors)) return;
        uint8_t* const to = mapped ? nullptr : at(w);
        const auto take = [this, &w, to](int64_t first, int64_t n, const uint8_t* from) {
            check(w, from, first, n);
            if (!to) return;
            const int64_t row = ggml::info(w.tensor->type).size(w.cols);
            if (!w.strips()) {
                std::memcpy(to + first * row, from, size_t(n * row));
                return;
            }
            for (int64_t r = 0; r < n; r += ggml::kStrip) {
                ggml::pack_strip(w.tensor->type, from + r * row, std::min(ggml::kStrip, n - r),
                                 w.cols, to + (first + r) * row);
            }
        };
        moves_.push_back({&w, w.strips() ? ggml::kStrip : 1, take, mapped ? at(w) : nullptr});
    }

    // Moves rows to their places in the bundles.
    void bundle(const WeightSpec& w, const NeuronPart& neurons) {
        const BundleLayout& layout = neurons.to->layout;
        uint8_t* const bundles = w.location.rows ? at(w) : nullptr;
        neurons.to->set_addresses(bundles ? bundles : kElsewhere);
        if (!bundles && !params_.check_tensors) return;
        const std::vector<int32_t>* const slot = slots(w);
        const size_t part = neurons.part;
        const auto take = [this, &w, &layout, part, bundles, slot](int64_t first, int64_t n,
                                                                   const uint8_t* from) {
            check(w, from, first, n);  // as stored: the values are the same
            if (!bundles) return;
            if (layout.apart) {
                layout.put_apart(part, from, first, n, bundles);
                return;
            }
            if (!slot) {
                layout.put(part, from, n, bundles + first * layout.stride());
                return;
            }
            const int64_t row = ggml::info(w.tensor->type).size(w.cols);
            for (int64_t i = 0; i < n; i++) {
                const int32_t at = (*slot)[size_t(first + i)];
                if (at >= 0) continue;
                layout.put(part, from + i * row, 1, bundles + (-1 - int64_t(at)) * layout.stride());
            }
        };
        moves_.push_back({&w, ggml::kStrip, take});
    }

    // Moves the rows of a bundled file of version 2 to the two bundles in memory.
    void unpack(const WeightSpec& w, const StoredBundle& target) {
        const bool here = w.location.rows > 0;
        uint8_t* const gates = here ? at(w) : nullptr;
        uint8_t* const bundles = here ? gates + target.gate_bytes(w.location.rows) : nullptr;
        if (target.gates) target.gates->set_addresses(here ? gates : kElsewhere);
        target.bundle->set_addresses(here ? bundles : kElsewhere);
        if (!here && !params_.check_tensors) return;
        const std::vector<int32_t>* const slot = slots(w);
        const auto take = [this, &w, &target, gates, bundles, slot](int64_t first, int64_t n,
                                                                    const uint8_t* from) {
            check(w, from, first, n);
            if (!bundles) return;
            const int64_t stride = target.neurons->layout.stride;
            if (target.bundle->layout.apart) {
                for (int64_t i = 0; i < n; i += ggml::kStrip) {
                    unpack_apart(target, from + i * stride, first + i, gates, bundles);
                }
                return;
            }
            for (int64_t i = 0; i < n; i++) {
                const int64_t on = slot ? (*slot)[size_t(first + i)] : -1 - (first + i);
                if (on < 0) unpack_neuron(target, from + i * stride, -1 - on, gates, bundles);
            }
        };
        moves_.push_back({&w, ggml::kStrip, take});
    }

    static void unpack_neuron(const StoredBundle& target, const uint8_t* from, int64_t to,
                              uint8_t* gates, uint8_t* bundles) {
        const StoreLayout& layout = target.neurons->layout;
        const int64_t pair = target.bundle->layout.stride();
        if (layout.gated()) {
            const int64_t bytes = layout.gate().bytes;
            std::memcpy(gates + to * bytes, from + layout.gate().offset, size_t(bytes));
        }
        const StoreLayout::Row &up = layout.up(), &down = layout.down();
        std::memcpy(bundles + to * pair, from + up.offset, size_t(up.bytes));
        std::memcpy(bundles + to * pair + up.bytes, from + down.offset, size_t(down.bytes));
    }

    // Neurons `first` and following, kStrip of them.
    static void unpack_apart(const StoredBundle& target, const uint8_t* from, int64_t first,
                             uint8_t* gates, uint8_t* bundles) {
        const StoreLayout& layout = target.neurons->layout;
        const auto tile = [&](const Bundle& to, size_t part, const StoreLayout::Row& row,
                              uint8_t* bundle) {
            std::vector<uint8_t> rows(size_t(ggml::kStrip * row.bytes));
            for (int64_t i = 0; i < ggml::kStrip; i++) {
                std::memcpy(&rows[size_t(i * row.bytes)], from + i * layout.stride + row.offset,
                            size_t(row.bytes));
            }
            to.layout.put_apart(part, rows.data(), first, ggml::kStrip, bundle, true);
        };
        if (layout.gated()) tile(*target.gates, 0, layout.gate(), gates);
        tile(*target.bundle, 0, layout.up(), bundles);
        tile(*target.bundle, 1, layout.down(), bundles);
    }

    // Checks rows [first, first + n) of a weight as they are stored, if the caller wants this.
    void check(const WeightSpec& w, const uint8_t* rows, int64_t first, int64_t n) const {
        if (!params_.check_tensors || w.is<Signs>()) return;  // any bits are valid signs
        if (w.is<WholeBundle>() || w.is<StoredBundle>()) {
            check_bundle(w, rows, first, n);
        } else {
            check_rows(w.name, {w.tensor->type, ggml::Layout::rows, n, w.cols, rows}, first);
        }
    }

    // Checks each part of rows [first, first + n) of a bundled file; data: of the first one.
    void check_bundle(const WeightSpec& w, const uint8_t* data, int64_t first, int64_t n) const {
        for (const Rows& part : rows_of(w)) {
            ggml::Matrix m{part.type, ggml::Layout::rows, 0, part.cols, nullptr};
            const int64_t slab = std::max<int64_t>(1, (1 << 20) / m.row_bytes());
            std::vector<uint8_t> stored(size_t(slab * m.row_bytes()));
            m.data = stored.data();
            for (int64_t r = 0; r < n; r += slab) {
                m.rows = std::min(slab, n - r);
                part.take(data + r * w.cols, m.rows, stored.data());
                check_rows(w.name, m, first + r);
            }
        }
    }

    // The parts of a bundled file's rows: take() gives them as other files store them. Nothing for
    // other weights.
    struct Rows {
        ggml::DType type;
        int64_t cols;
        std::function<void(const uint8_t*, int64_t, uint8_t*)> take;
    };
    static std::vector<Rows> rows_of(const WeightSpec& w) {
        std::vector<Rows> parts;
        const auto add = [&](const auto& layout, size_t i, ggml::DType type) {
            parts.push_back({type, layout.cols, [&layout, i](auto from, auto n, auto to) {
                                 layout.take(i, from, n, to);
                             }});
        };
        if (const auto* whole = std::get_if<WholeBundle>(&w.target)) {
            const BundleLayout& layout = whole->to->layout;
            for (size_t i = 0; i < layout.parts.size(); i++) add(layout, i, layout.parts[i]);
        } else if (const auto* stored = std::get_if<StoredBundle>(&w.target)) {
            const StoreLayout& layout = stored->neurons->layout;
            for (size_t i = 0; i < layout.rows.size(); i++) add(layout, i, layout.rows[i].type);
        }
        return parts;
    }

    // Checks rows of a tensor, of which m has those from `first` on.
    void check_rows(const std::string& name, const ggml::Matrix& m, int64_t first) const {
        std::vector<float> row(size_t(m.cols));
        for (int64_t r = 0; r < m.rows; r++) {
            ggml::decode_row(m, r, row.data());
            if (std::all_of(row.begin(), row.end(), [](float v) { return std::isfinite(v); }))
                continue;
            throw Error(
                Code::format,
                format("%s: tensor \"%s\" holds a value that is not finite in row %lld",
                       model_.file.gguf.path().c_str(), name.c_str(), (long long)(first + r)));
        }
    }

    void lock() {
        if (model_.packed.size()) model_.packed.lock();
        if (model_.plain.size()) model_.plain.lock();
        for (const WeightSpec& w : model_.weights) {
            if (w.location.memory != Location::Memory::mapped || w.location.rows == 0) continue;
            model_.file.mappings[w.tensor->file]->lock(w.file_offset(), w.bytes());
        }
    }

    void progress(uint64_t done) {
        if (!params_.progress) return;
        const float fraction = total_ ? float(double(done) / double(total_)) : 1.0f;
        if (!params_.progress(fraction, params_.progress_data)) {
            throw Error(Code::cancelled, "loading was cancelled");
        }
    }

    Model& model_;
    const pi_model_params& params_;
    ggml::Context context_;
    WeightReader reader_;
    std::vector<WeightMove> moves_;               // of the weights that are placed, and not moved
    uint64_t total_ = 0, placed_ = 0, done_ = 0;  // bytes
};

// For neurons that fire more often than this, predicting costs more than it saves: their gates are
// always computed.
void mark_unpredicted(Ffn& f) {
    constexpr float kRate = 0.5f;
    if (!f.rate) return;
    f.unpredicted.resize(size_t(f.neurons.n));
    for (size_t i = 0; i < f.unpredicted.size(); i++) f.unpredicted[i] = f.rate[i] >= kRate;
}

// Gives the matrices of experts their scales.
void scale_experts(FeedForward& part) {
    for (size_t e = 0; e < part.blocks.size(); e++) {
        Ffn& f = part.blocks[e];
        if (part.gate_scale) f.gate.scale = part.gate_scale + e;
        if (part.up_scale) f.up.scale = part.up_scale + e;
        if (part.down_scale) f.down.scale = part.down_scale + e;
    }
}

}  // namespace

void load_weights(Model& model, const pi_model_params& params) {
    Loader(model, params).run();
    if (!model.output) model.output = model.token_embd;
    for (Layer& l : model.layers) {
        for (LayerPart& part : l.parts) {
            if (auto* f = std::get_if<FeedForward>(&part.op)) {
                for (Ffn& block : f->blocks) mark_unpredicted(block);
                scale_experts(*f);
            }
        }
    }
    if (model.device) load_device_tables(model);
}

}  // namespace powerinfer
