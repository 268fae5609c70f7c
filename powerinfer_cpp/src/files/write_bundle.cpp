#include "files/write_bundle.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <unordered_map>

#include "base/names.h"
#include "files/find_bundle.h"
#include "files/placement_file.h"
#include "files/weights_name.h"
#include "ggml/context.h"
#include "ggml/sizes.h"
#include "ggml/status.h"
#include "ggml/threads.h"
#include "model/families/family.h"

namespace powerinfer {

using ggml::Code;
using ggml::DType;
using ggml::Error;
using ggml::format;
using ggml::TensorInfo;

namespace {

constexpr int64_t kSlab = 8 << 20;  // bytes that are read at a time

std::string gibibytes(uint64_t bytes) {
    return format("%.2f GiB", double(bytes) / (1 << 30));
}

std::unique_ptr<Model> open_model(const std::string& path) {
    pi_model_params params = pi_model_default_params();
    params.placement = PI_PLACEMENT_NONE;
    params.allow_unknown = true;  // all of it is copied: whoever opens the copy decides
    return Model::inspect(path, params);
}

// Counts finished bytes for the caller.
class Progress {
 public:
    Progress(const pi_bundle_params& params, uint64_t total) : params_(params), total_(total) {
        add(0);
    }
    void add(uint64_t bytes) {
        done_ += bytes;
        if (!params_.progress) return;
        const float fraction = float(double(done_) / double(std::max<uint64_t>(total_, 1)));
        if (!params_.progress(std::min(fraction, 1.0f), params_.progress_data)) {
            throw Error(Code::cancelled, "bundling was cancelled");
        }
    }

 private:
    const pi_bundle_params& params_;
    uint64_t total_, done_ = 0;
};

// Where the source has one row of every neuron of a layer.
struct SourceRows {
    const TensorInfo* tensor;
    DType type;
    int64_t offset, stride;  // of neuron 0's row in the tensor, and to the next one
    bool folded;             // as it is computed with, since the source has bundles
};

// The neurons of a feed-forward part, those of its experts one after the other.
struct Block {
    int64_t layer = 0;
    const char* suffix = "";  // of its tensors' names
    std::string name;
    StoreLayout layout;
    std::vector<int64_t> shape;      // of its tensor
    std::vector<SourceRows> rows;    // gate (if there is one), up, down
    int64_t n = 0;                   // neurons
    std::string replaced_checksums;  // tensor of a source of version 2
};

class Bundler {
 public:
    Bundler(const std::string& source, const std::string& target, const pi_bundle_params& params)
        : model_(open_model(source)),
          gguf_(model_->file.gguf),
          target_(target),
          params_(params),
          context_(ggml::default_threads()) {
        for (const auto& file : model_->file.files) {
            if (!ggml::same_file(file->path(), target)) continue;
            throw Error(Code::argument, target + ": input and output are the same file");
        }
        for (const FeedForward* part : model_->ffns) {
            // Layers behind the model's guess tokens: none of their neurons is skipped.
            if (part->layer >= model_->config.n_layer) continue;
            Block b = block_of(*part);
            if (!b.rows.empty()) blocks_.push_back(std::move(b));
        }
        if (!blocks_.empty()) return;
        const int64_t layer = model_->ffns.empty() ? 0 : model_->ffns[0]->layer;
        throw Error(Code::unsupported,
                    format("%s: bundles need the rows of neurons, and layer %lld has none: the "
                           "file is not neuron-aware (convert.py makes it so)",
                           gguf_.path().c_str(), (long long)layer));
    }

    void run() {
        const std::unique_ptr<ggml::GgufWriter> file = opened();
        if (!file) return;
        ggml::GgufWriter& out = *file;
        const uint64_t total = say_size();
        add_keys(out);
        each_tensor([&](const TensorInfo& t) { out.add_tensor(t.name, t.type, sizes(t)); },
                    [&](const Block& b) {
                        out.add_tensor(b.name, DType::I8, b.shape);
                        out.add_tensor(checksums_of(b.name), DType::I32, checksum_shape(b));
                    });
        Progress progress(params_, total);
        each_tensor([&](const TensorInfo& t) { copy(t, out, progress); },
                    [&](const Block& b) { write(b, out, progress); });
        out.finish();
    }

    // Bytes of the tensors.
    uint64_t size() const {
        uint64_t total = 0;
        const auto add = [&](uint64_t bytes) {
            total = ggml::size_sum(total, ggml::size_rounded_up(bytes, kStoreFileAlign));
        };
        each_tensor([&](const TensorInfo& t) { add(t.bytes); },
                    [&](const Block& b) {
                        add(ggml::size_product(b.n, b.layout.stride));
                        add(ggml::size_product(b.n, 2 * sizeof(uint32_t)));
                    });
        return total;
    }

 private:
    static std::vector<int64_t> sizes(const TensorInfo& t) { return {t.ne, t.ne + t.n_dims}; }

    static std::vector<int64_t> checksum_shape(const Block& b) {
        std::vector<int64_t> shape = b.shape;
        shape[0] = 2;
        return shape;
    }

    // Without rows if the part has none.
    Block block_of(const FeedForward& part) const {
        const Ffn& f = part.blocks[0];
        Block b;
        b.layer = part.layer;
        b.suffix = part.routed()                         ? kExpertSuffix
                   : &part == model_->ffn_of(part.layer) ? ""
                                                         : kSharedSuffix;
        b.n = part.n_ff * part.n_blocks();
        b.name = format("blk.%lld.ffn_bundle%s", (long long)b.layer, b.suffix);
        const auto of_ffn = [&](const Bundle* to) { return to == &f.gates || to == &f.bundle; };
        for (const WeightSpec& w : model_->weights) {
            const TensorInfo* t = w.tensor;
            if (const auto* part = std::get_if<NeuronPart>(&w.target)) {
                if (!of_ffn(part->to)) continue;
                b.rows.push_back({t, t->type, 0, ggml::info(t->type).size(w.cols), false});
            } else if (const auto* whole = std::get_if<WholeBundle>(&w.target)) {
                if (!of_ffn(whole->to)) continue;
                const BundleLayout& from = whole->to->layout;
                for (size_t k = 0; k < from.parts.size(); k++) {
                    b.rows.push_back({t, from.parts[k], from.offset(k), from.stride(), true});
                }
            } else if (const auto* stored = std::get_if<StoredBundle>(&w.target)) {
                if (stored->neurons != &f.stored) continue;
                b.replaced_checksums = checksums_of(w.name);
                const StoreLayout& from = f.stored.layout;
                for (const StoreLayout::Row& row : from.rows) {
                    b.rows.push_back({t, row.type, row.offset, from.stride, true});
                }
            }
        }
        if (b.rows.empty()) return b;
        std::vector<DType> types;
        for (const SourceRows& row : b.rows) types.push_back(row.type);
        b.layout = StoreLayout::of(types, f.neurons.cols, params_.align);
        b.shape = {b.layout.stride, part.n_ff};
        if (part.routed()) b.shape.push_back(part.n_blocks());
        return b;
    }

    // Calls copied(tensor) or bundled(block) for all that the new file has, in its order: a bundle
    // takes the place of its first row's tensor.
    template <typename Copied, typename Bundled>
    void each_tensor(const Copied& copied, const Bundled& bundled) const {
        std::unordered_map<const TensorInfo*, const Block*> of;  // what the tensors become
        for (const Block& b : blocks_) {
            for (const SourceRows& row : b.rows) of.emplace(row.tensor, &b);
            of.emplace(gguf_.find_tensor(b.replaced_checksums), &b);
        }
        for (const TensorInfo& t : gguf_.tensors()) {
            const auto b = of.find(&t);
            if (b == of.end()) {
                copied(t);
            } else if (b->second->rows[0].tensor == &t) {
                bundled(*b->second);
            }
        }
    }

    // The file to write, or null if another process has just written a bundled file of this model.
    std::unique_ptr<ggml::GgufWriter> opened() const {
        for (bool waited = false;; waited = true) {
            try {
                auto out = std::make_unique<ggml::GgufWriter>(target_, "GGUF", kStoreFileAlign);
                return waited && is_bundle_of(target_, source_hash(model_->file)) ? nullptr
                                                                                  : std::move(out);
            } catch (const ggml::Busy& e) {
                if (!waited && params_.log) {
                    const std::string said = std::string(e.what()) + "; waiting for it";
                    params_.log(3, said.c_str(), params_.log_data);
                }
            }
            Progress(params_, 0);  // the caller may not want to wait
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
        }
    }

    // Says how large the file will be; throws if there is no room for it.
    uint64_t say_size() const {
        const uint64_t total = size();
        const uint64_t free = ggml::free_disk(ggml::folder_of(target_));
        const std::string room = free == ggml::kUnknownBytes ? "" : gibibytes(free) + " free";
        if (free < total) {
            throw Error(Code::io, target_ + ": " + gibibytes(total) + " needed, only " + room +
                                      " on that disk");
        }
        if (params_.log) {
            const std::string said = target_ + ": writing " + gibibytes(total) + " of " +
                                     gguf_.path() + " with the rows of each neuron together" +
                                     (room.empty() ? "" : " (" + room + ")");
            params_.log(3, said.c_str(), params_.log_data);
        }
        return total;
    }

    void add_keys(ggml::GgufWriter& out) const {
        const auto left_out = [](std::string_view key) {
            return key == "general.alignment" || key.rfind("split.", 0) == 0 ||
                   key.rfind("powerinfer.bundle.", 0) == 0;
        };
        for (const auto& [key, value] : gguf_.values()) {
            if (!left_out(key)) out.add_value(key, value);
        }
        // A PWRI file need not have these, and the magic no longer says them.
        if (!gguf_.find("powerinfer.version")) out.add_u32("powerinfer.version", 1);
        if (!gguf_.find("powerinfer.ffn.activation")) {
            out.add_string("powerinfer.ffn.activation", name(model_->config.activation));
        }
        out.add_u32("powerinfer.bundle.version", uint32_t(kStoreVersion));
        out.add_u32("powerinfer.bundle.align", uint32_t(params_.align));
        add_types(out, "gate",
                  [](const StoreLayout& l) { return l.gated() ? &l.gate() : nullptr; });
        add_types(out, "up", [](const StoreLayout& l) { return &l.up(); });
        add_types(out, "down", [](const StoreLayout& l) { return &l.down(); });
        out.add_string("powerinfer.bundle.source_hash", source_hash(model_->file));
        out.add_string("powerinfer.bundle.model_hash", model_hash(model_->file));
        out.add_string("powerinfer.bundle.weights_hash", weights_name(model_->file));
    }

    template <typename Find>
    void add_types(ggml::GgufWriter& out, const char* part, const Find& find) const {
        for (const char* suffix : {"", kSharedSuffix}) {
            const bool shared = *suffix;
            std::string usual;
            std::vector<std::string> names(size_t(model_->config.n_layer));
            for (const Block& b : blocks_) {
                const StoreLayout::Row* const row = find(b.layout);
                if (!row || (b.suffix == std::string(kSharedSuffix)) != shared) continue;
                names[size_t(b.layer)] = ggml::info(row->type).name;
                usual = names[size_t(b.layer)];
            }
            // Layers without neurons have any name.
            for (std::string& own : names) own = own.empty() ? usual : own;
            if (!usual.empty()) out.add_strings(bundled_type_key(part, suffix), names);
        }
    }

    const uint8_t* read(const TensorInfo& t, uint64_t offset, uint64_t n) {
        if (buffer_.size() < n) buffer_.resize(size_t(n));
        model_->file.files[size_t(t.file)]->read(t.offset + offset, buffer_.data(), size_t(n));
        return buffer_.data();
    }

    void copy(const TensorInfo& t, ggml::GgufWriter& out, Progress& progress) {
        for (uint64_t at = 0; at < t.bytes; at += kSlab) {
            const uint64_t n = std::min<uint64_t>(kSlab, t.bytes - at);
            out.write_part(read(t, at, n), n);
            progress.add(n);
        }
    }

    void write(const Block& b, ggml::GgufWriter& out, Progress& progress) {
        std::vector<uint32_t> sums(size_t(2 * b.n));
        const int64_t slab = std::max<int64_t>(1, kSlab / b.layout.stride);
        std::vector<uint8_t> bundles;
        for (int64_t r0 = 0; r0 < b.n; r0 += slab) {
            const int64_t n = std::min(slab, b.n - r0);
            bundles.assign(size_t(n * b.layout.stride), 0);
            for (size_t k = 0; k < b.rows.size(); k++) {
                const SourceRows& row = b.rows[k];
                const uint8_t* from =
                    read(*row.tensor, uint64_t(r0 * row.stride), uint64_t(n * row.stride));
                context_.threads.run(n, 8, [&](int64_t begin, int64_t end, int) {
                    put(b.layout, k, row, from, begin, end, bundles.data());
                });
            }
            context_.threads.run(n, 8, [&](int64_t begin, int64_t end, int) {
                for (int64_t i = begin; i < end; i++) {
                    const auto both = b.layout.checksums(&bundles[size_t(i * b.layout.stride)]);
                    std::copy(both.begin(), both.end(), &sums[size_t(2 * (r0 + i))]);
                }
            });
            out.write_part(bundles.data(), bundles.size());
            progress.add(bundles.size());
        }
        out.write(sums.data(), sums.size() * sizeof(uint32_t));
        progress.add(sums.size() * sizeof(uint32_t));
    }

    // Puts one row of the neurons [begin, end) to its place.
    static void put(const StoreLayout& layout, size_t k, const SourceRows& row, const uint8_t* from,
                    int64_t begin, int64_t end, uint8_t* bundles) {
        if (!row.folded) {
            layout.put(k, from + begin * row.stride, end - begin, bundles + begin * layout.stride);
            return;
        }
        const StoreLayout::Row& to = layout.rows[k];
        for (int64_t i = begin; i < end; i++) {
            std::memcpy(bundles + i * layout.stride + to.offset, from + i * row.stride + row.offset,
                        size_t(to.bytes));
        }
    }

    const std::unique_ptr<Model> model_;
    const ggml::Gguf& gguf_;
    const std::string target_;
    const pi_bundle_params& params_;
    ggml::Context context_;
    std::vector<Block> blocks_;  // of all parts that have neurons
    std::vector<uint8_t> buffer_;
};

// Compares the checksums of the neurons in a weight.
void check_neurons(const Model& model, const WeightSpec& w, const StoredNeurons& stored,
                   Progress& progress) {
    const StoreLayout& layout = stored.layout;
    const int64_t slab = std::max<int64_t>(1, kSlab / layout.stride);
    std::vector<uint8_t> bytes;
    std::vector<uint32_t> sums;
    for (int64_t r0 = 0; r0 < w.rows; r0 += slab) {
        const int64_t n = std::min(slab, w.rows - r0);
        bytes.resize(size_t(n * layout.stride));
        sums.resize(size_t(2 * n));
        model.file.files[size_t(stored.file)]->read(stored.offset_of(r0), bytes.data(),
                                                    bytes.size());
        model.file.files[size_t(stored.crc_file)]->read(stored.crc_offset + 8 * uint64_t(r0),
                                                        sums.data(), 8 * size_t(n));
        for (int64_t i = 0; i < n; i++) {
            const auto have = layout.checksums(&bytes[size_t(i * layout.stride)]);
            if (!std::memcmp(have.data(), &sums[size_t(2 * i)], sizeof(have))) continue;
            const bool first = have[0] != sums[size_t(2 * i)];
            const std::string expert =
                w.shape.size() == 3 ? format(" of expert %lld", (long long)(w.row0 / w.rows)) : "";
            throw Error(
                Code::format,
                format("%s: tensor \"%s\": neuron %lld%s is damaged: the checksum of its %s "
                       "differs",
                       model.file.gguf.path().c_str(), w.name.c_str(), (long long)(r0 + i),
                       expert.c_str(),
                       !first           ? "other rows"
                       : layout.gated() ? "gate row"
                                        : "up row"));
        }
        progress.add(bytes.size());
    }
}

}  // namespace

void write_bundled(const std::string& source, const std::string& target,
                   const pi_bundle_params& params) {
    if (!StoreLayout::valid_align(params.align)) {
        throw Error(Code::argument, "align must be 512, 1024, 2048 or 4096");
    }
    Bundler(source, target, params).run();
}

uint64_t bundled_size(const std::string& source) {
    return Bundler(source, "", pi_bundle_default_params()).size();
}

void check_bundled(const std::string& path, const pi_bundle_params& params) {
    const std::unique_ptr<Model> model = open_model(path);
    uint64_t total = 0;
    for (const WeightSpec& w : model->weights) {
        if (w.is<StoredBundle>()) total += uint64_t(w.rows) * uint64_t(w.cols);
    }
    if (total == 0) {
        throw Error(Code::unsupported, path +
                                           ": has no checksums (it is not bundled, or its "
                                           "bundles have version 1)");
    }
    Progress progress(params, total);
    for (const WeightSpec& w : model->weights) {
        if (const auto* stored = std::get_if<StoredBundle>(&w.target)) {
            check_neurons(*model, w, *stored->neurons, progress);
        }
    }
}

}  // namespace powerinfer
