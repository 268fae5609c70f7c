// From a path to a Model: header, checks, memory budget, then mapping and packing of the weights.
#include <algorithm>
#include <atomic>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <set>

#include "families/family.h"
#include "ggml/status.h"
#include "gpu_index.h"
#include "model.h"
#include "plan.h"

namespace powerinfer {

using ggml::Code;
using ggml::Error;
using ggml::format;

namespace {

constexpr uint64_t kAlign = 64;  // a packed tensor starts at a cache line

uint64_t aligned(uint64_t n) {
    return (n + kAlign - 1) / kAlign * kAlign;
}

std::string shape_text(const int64_t* sizes, size_t n) {
    std::string text;
    for (size_t i = 0; i < n; i++) text += (i ? ", " : "") + std::to_string(sizes[i]);
    return "[" + text + "]";
}

// A layer beyond the number of layers: the number is wrong, and the model would run without its
// end.
void refuse_further_layers(const Model& model) {
    for (const ggml::TensorInfo& t : model.file.gguf.tensors()) {
        if (t.name.compare(0, 4, "blk.") || t.name.size() < 5 || !std::isdigit(t.name[4])) continue;
        if (std::strtoll(t.name.c_str() + 4, nullptr, 10) >= model.config.n_layer) {
            throw Error(Code::format,
                        format("%s: tensor \"%s\" belongs to a layer beyond the model's %lld",
                               model.file.gguf.path().c_str(), t.name.c_str(),
                               (long long)model.config.n_layer));
        }
    }
}

// Finds every weight in the file and checks type and shape.
void resolve(Model& model) {
    const ggml::Gguf& gguf = model.file.gguf;
    const auto refuse = [&](const WeightSpec& w, const std::string& why) {
        throw Error(Code::format, gguf.path() + ": tensor \"" + w.name + "\" " + why);
    };
    for (WeightSpec& w : model.weights) {
        w.tensor = gguf.find_tensor(w.name);
        if (!w.tensor) refuse(w, "is missing");
        const auto& t = *w.tensor;
        if (size_t(t.n_dims) != w.shape.size() ||
            !std::equal(w.shape.begin(), w.shape.end(), t.ne)) {
            refuse(w, "has shape " + shape_text(t.ne, size_t(t.n_dims)) + ", expected " +
                          shape_text(w.shape.data(), w.shape.size()));
        }
        using Use = WeightSpec::Use;
        const bool fits = w.use == Use::vector ? t.type == ggml::DType::F32
                          : w.is_bytes()       ? t.type == ggml::DType::I8
                                               : ggml::info(t.type).is_float();
        if (!fits) {
            refuse(w, std::string("has type ") + ggml::info(t.type).name);
        }
    }
}

// Where a weight's bytes begin in its file.
uint64_t file_offset(const WeightSpec& w) {
    return w.tensor->offset + uint64_t(w.row0) * uint64_t(ggml::info(w.tensor->type).size(w.cols));
}

class Loader {
 public:
    Loader(Model& model, const pi_model_params& params)
        : model_(model),
          params_(params),
          context_(params.n_threads > 0 ? params.n_threads : ggml::default_threads()) {}

    void run() {
        uint64_t packed = 0, plain = 0;
        struct Packed {
            Bundle* bundle;
            int64_t n;  // neurons
            uint64_t bytes() const { return aligned(uint64_t(n * bundle->layout.stride())); }
        };
        std::vector<Packed> bundles;
        for (WeightSpec& w : model_.weights) {
            total_ += w.bytes();
            if (w.use == WeightSpec::Use::neuron) {
                if (w.part_of_bundle == 0) bundles.push_back({w.bundle, w.rows});
                w.bundle->layout.parts.push_back(w.tensor->type);
                w.bundle->layout.cols = w.cols;
            } else if (w.packed()) {
                packed += aligned(w.bytes());
            } else if (!params_.use_mmap) {
                plain += aligned(w.bytes());
            }
        }
        const uint64_t strips = packed;
        for (const Packed& b : bundles) packed += b.bytes();
        if (packed) model_.packed = ggml::Memory(packed, "weights");
        uint8_t* next = model_.packed.data() + strips;
        for (const Packed& b : bundles) {
            b.bundle->packed = next;
            b.bundle->place(next);
            next += b.bytes();
        }
        if (plain) model_.plain = ggml::Memory(plain, "weights");
        progress();
        for (WeightSpec& w : model_.weights) load(w);
        if (!model_.output) model_.output = model_.token_embd;
        for (Layer& l : model_.layers) {
            mark_hot(l.ffn);
            for (Ffn& e : l.experts) mark_hot(e);
        }
        if (params_.use_mlock) lock();
    }

 private:
    // Above this rate a prediction saves less than it costs to make: the gate is computed anyway.
    static void mark_hot(Ffn& f) {
        constexpr float kHotRate = 0.5f;
        if (!f.rate) return;
        f.hot.resize(size_t(f.neurons.n));
        for (size_t i = 0; i < f.hot.size(); i++) f.hot[i] = f.rate[i] >= kHotRate;
    }

    // Is a weight used where the file is mapped?
    bool in_place(const WeightSpec& w) const {
        return params_.use_mmap && w.use != WeightSpec::Use::neuron && !w.packed();
    }

    // Rows go to their places in the bundles.
    void bundle(const WeightSpec& w) {
        const ggml::TensorInfo& t = *w.tensor;
        const int64_t row = ggml::info(t.type).size(w.cols);
        const int64_t slab = std::max<int64_t>(1, (8 << 20) / row);
        const BundleLayout& layout = w.bundle->layout;
        for (int64_t r0 = 0; r0 < w.rows; r0 += slab) {
            const int64_t n = std::min(slab, w.rows - r0);
            const uint64_t at = file_offset(w) + uint64_t(r0 * row);
            with_file_bytes(t.file, at, uint64_t(n * row), [&](const uint8_t* from) {
                context_.threads.run(n, 8, [&](int64_t begin, int64_t end, int) {
                    layout.put(w.part_of_bundle, from + begin * row, end - begin,
                               w.bundle->packed + (r0 + begin) * layout.stride());
                });
            });
        }
        if (params_
                .check_tensors) {  // the stored rows are the same numbers, and they lie in the file
            const uint8_t* stored = model_.file.mappings[t.file]->data() + file_offset(w);
            check_finite(w.name, {t.type, ggml::Layout::rows, w.rows, w.cols, stored});
        }
        done_ += w.bytes();
        progress();
    }

    void load(WeightSpec& w) {
        if (w.use == WeightSpec::Use::neuron) {
            bundle(w);
            return;
        }
        const ggml::TensorInfo& t = *w.tensor;
        ggml::Matrix m{t.type, ggml::Layout::rows, w.rows, w.cols, nullptr};
        if (w.packed()) {
            m.layout = ggml::Layout::strips;
            uint8_t* to = model_.packed.data() + packed_at_;
            packed_at_ += aligned(w.bytes());
            pack(m, w, to);
            m.data = to;
        } else if (params_.use_mmap) {
            m.data = model_.file.mappings[t.file]->data() + file_offset(w);
        } else {
            uint8_t* to = model_.plain.data() + plain_at_;
            plain_at_ += aligned(w.bytes());
            model_.file.files[t.file]->read(file_offset(w), to, w.bytes());
            m.data = to;
        }
        if (params_.check_tensors && w.use != WeightSpec::Use::signs) {
            w.bundle ? check_bundle(w, m.data) : check_finite(w.name, m);
        }
        if (w.bundle) {
            w.bundle->place(m.data);
        } else if (w.vector) {
            *w.vector = reinterpret_cast<const float*>(m.data);
        } else {
            *w.matrix = m;
        }
        done_ += w.bytes();
        progress();
    }

    // Slabs of a few MB: the pages of the file are given back as soon as they are packed, so that
    // the model is never in memory twice.
    void pack(const ggml::Matrix& m, const WeightSpec& w, uint8_t* to) {
        const int64_t strip = ggml::kStrip * m.row_bytes(),
                      n_strips = (m.rows + ggml::kStrip - 1) / ggml::kStrip;
        const int64_t slab = std::max<int64_t>(1, (8 << 20) / strip);
        for (int64_t s0 = 0; s0 < n_strips; s0 += slab) {
            const int64_t n = std::min(slab, n_strips - s0);
            const int64_t bytes = std::min(n * strip, m.rows * m.row_bytes() - s0 * strip);
            const uint64_t at = file_offset(w) + uint64_t(s0 * strip);
            with_file_bytes(w.tensor->file, at, uint64_t(bytes), [&](const uint8_t* from) {
                context_.threads.run(n, 4, [&](int64_t begin, int64_t end, int) {
                    for (int64_t s = begin; s < end; s++) {
                        const int64_t first = (s0 + s) * ggml::kStrip;
                        ggml::pack_strip(m.type, from + s * strip,
                                         std::min(ggml::kStrip, m.rows - first), m.cols,
                                         to + (s0 + s) * strip);
                    }
                });
            });
        }
    }

    // Calls use(bytes) with a range of a file, mapped or read.
    template <typename F>
    void with_file_bytes(int file, uint64_t offset, uint64_t n, const F& use) {
        if (!params_.use_mmap) {
            std::vector<uint8_t> buffer(n);
            model_.file.files[file]->read(offset, buffer.data(), n);
            use(buffer.data());
            return;
        }
        const ggml::Mapping& mapping = *model_.file.mappings[file];
        mapping.will_need(offset, n);
        use(mapping.data() + offset);
        mapping.drop(offset, n);
    }

    // The parts of a bundled file's rows, a slab at a time.
    void check_bundle(const WeightSpec& w, const uint8_t* data) {
        const BundleLayout& layout = w.bundle->layout;
        for (size_t i = 0; i < layout.parts.size(); i++) {
            ggml::Matrix m{layout.parts[i], ggml::Layout::rows, 0, layout.cols, nullptr};
            const int64_t slab = std::max<int64_t>(1, (1 << 20) / m.row_bytes());
            std::vector<uint8_t> stored(size_t(slab * m.row_bytes()));
            m.data = stored.data();
            for (int64_t r = 0; r < w.rows; r += slab) {
                m.rows = std::min(slab, w.rows - r);
                layout.take(i, data + r * layout.stride(), m.rows, stored.data());
                check_finite(w.name, m);
            }
        }
    }

    void check_finite(const std::string& name, const ggml::Matrix& m) {
        std::atomic<int64_t> bad{-1};
        context_.threads.run(m.rows, 16, [&](int64_t begin, int64_t end, int) {
            std::vector<float> row(m.cols);
            for (int64_t r = begin; r < end; r++) {
                ggml::decode_row(m, r, row.data());
                if (!std::all_of(row.begin(), row.end(), [](float v) { return std::isfinite(v); }))
                    bad = r;
            }
        });
        if (bad >= 0) {
            throw Error(
                Code::format,
                format("%s: tensor \"%s\" holds a value that is not finite in row %lld",
                       model_.file.gguf.path().c_str(), name.c_str(), (long long)bad.load()));
        }
    }

    void lock() {
        if (model_.packed.size()) model_.packed.lock();
        if (model_.plain.size()) model_.plain.lock();
        for (const WeightSpec& w : model_.weights) {
            if (!in_place(w)) continue;
            model_.file.mappings[w.tensor->file]->lock(file_offset(w), w.bytes());
        }
    }

    void progress() {
        if (!params_.progress) return;
        const float fraction = total_ ? float(double(done_) / double(total_)) : 1.0f;
        if (!params_.progress(fraction, params_.progress_data)) {
            throw Error(Code::cancelled, "loading was cancelled");
        }
    }

    Model& model_;
    const pi_model_params& params_;
    ggml::Context context_;
    uint64_t total_ = 0, done_ = 0, packed_at_ = 0, plain_at_ = 0;
};

// A placement beside the model must be this model's, even though without a GPU it changes nothing.
void check_gpu_index(const Model& model, const std::string& path, const pi_model_params& params) {
    const std::string index = gpu_index_path(path);
    if (!params.use_gpu_index || !ggml::file_exists(index)) return;
    const Config& c = model.config;
    if (c.n_expert) {
        throw Error(Code::format, index + ": placements of PowerInfer's know no experts, and " +
                                      path + " has them");
    }
    const std::vector<int64_t> n_gpu = read_gpu_index(index, c.n_layer, c.n_ff);
    if (!params.log) return;
    const int64_t marked = std::accumulate(n_gpu.begin(), n_gpu.end(), int64_t(0));
    params.log(3,
               format("%s marks %.0f%% of the neurons for a GPU; this build places none there",
                      index.c_str(), 100.0 * double(marked) / double(c.n_layer * c.n_ff))
                   .c_str(),
               params.log_data);
}

// Tells the log which tensors of the file play no part, once and together.
void log_unused(const Model& model, const pi_model_params& params) {
    if (!params.log) return;
    std::set<const ggml::TensorInfo*> used;
    for (const WeightSpec& w : model.weights) used.insert(w.tensor);
    const size_t unused = model.file.gguf.tensors().size() - used.size();
    if (unused) {
        params.log(3, format("%zu tensors of the file are not used in dense mode", unused).c_str(),
                   params.log_data);
    }
}

}  // namespace

uint64_t WeightSpec::bytes() const {
    const int64_t full = packed() ? (rows + ggml::kStrip - 1) / ggml::kStrip * ggml::kStrip : rows;
    return uint64_t(full) * uint64_t(ggml::info(tensor->type).size(cols));
}

ModelFile ModelFile::open(const std::string& path) {
    ModelFile f;
    const auto add = [&](const std::string& p) {
        f.files.push_back(std::make_unique<ggml::File>(p));
        f.mappings.push_back(std::make_unique<ggml::Mapping>(*f.files.back()));
        return ggml::Gguf::parse(f.mappings.back()->data(), f.mappings.back()->size(), p);
    };
    f.gguf = add(path);
    const std::vector<std::string> parts = ggml::split_paths(f.gguf);
    for (size_t i = 1; i < parts.size(); i++) f.gguf.append_tensors(add(parts[i]), int(i));
    return f;
}

std::unique_ptr<Model> Model::inspect(const std::string& path, const pi_model_params& params) {
    auto model = std::make_unique<Model>();
    model->budget = Budget::make(params.ram_budget);
    model->file = ModelFile::open(path);
    model->vocab = Vocab::load(model->file.gguf);
    if (params.vocab_only) {
        const std::string arch(model->file.gguf.string("general.architecture"));
        model->config.architecture = arch;
        model->config.n_vocab = model->vocab.size();
        model->config.n_ctx = model->file.gguf.integer(arch + ".context_length", 0, INT32_MAX, 0);
        model->config.n_embd =
            model->file.gguf.integer(arch + ".embedding_length", 0, INT32_MAX, 0);
        return model;
    }
    model->config = read_config(model->file.gguf, model->vocab.size());
    model->layers.resize(model->config.n_layer);
    refuse_further_layers(*model);
    model->weights = weight_specs(*model);
    resolve(*model);
    return model;
}

std::shared_ptr<const Model> Model::load(const std::string& path, const pi_model_params& params) {
    std::unique_ptr<Model> model = inspect(path, params);
    if (params.vocab_only) return model;
    model->reserved =
        model->budget->reserve(model->file.gguf.path() + ": the weights", model->weight_bytes());
    check_gpu_index(*model, path, params);
    log_unused(*model, params);
    Loader(*model, params).run();
    return model;
}

uint64_t Model::weight_bytes() const {
    uint64_t n = 0;
    for (const WeightSpec& w : weights) n += w.bytes();
    return n;
}

}  // namespace powerinfer
