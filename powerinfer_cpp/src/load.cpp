// From a path to a Model: header, checks, memory budget, then mapping and packing of the weights.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "families.h"
#include "ggml/status.h"
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

// Finds every weight in the file and checks type and shape; reports what nobody asked for.
void resolve(Model& model) {
    const ggml::Gguf& gguf = model.file.gguf;
    for (WeightSpec& w : model.weights) {
        w.tensor = gguf.find_tensor(w.name);
        if (!w.tensor) {
            if (w.optional) continue;
            throw Error(Code::format, format("%s: tensor \"%s\" is missing", gguf.path().c_str(),
                                             w.name.c_str()));
        }
        const auto& t = *w.tensor;
        const bool is_vector = w.use == WeightSpec::Use::vector;
        const bool fits = is_vector ? t.n_dims == 1 && t.ne[0] == w.cols
                                    : t.n_dims == 2 && t.ne[0] == w.cols && t.ne[1] == w.rows;
        if (!fits) {
            throw Error(Code::format,
                        format("%s: tensor \"%s\" has shape [%lld, %lld], expected [%lld, %lld]",
                               gguf.path().c_str(), w.name.c_str(), (long long)t.ne[0],
                               (long long)t.ne[1], (long long)w.cols, (long long)w.rows));
        }
        if (is_vector ? t.type != ggml::DType::F32 : !ggml::info(t.type).is_float()) {
            throw Error(Code::format, format("%s: tensor \"%s\" has type %s", gguf.path().c_str(),
                                             w.name.c_str(), ggml::info(t.type).name));
        }
    }
}

// Where the bytes of a stored tensor are: in the mapping.
const uint8_t* mapped(const Model& model, const ggml::TensorInfo& t) {
    return model.file.mappings[t.file]->data() + t.offset;
}

class Loader {
 public:
    Loader(Model& model, const pi_model_params& params)
        : model_(model),
          params_(params),
          context_(params.n_threads > 0 ? params.n_threads : ggml::default_threads()) {}

    void run() {
        uint64_t packed = 0, plain = 0;
        for (const WeightSpec& w : model_.weights) {
            if (!w.tensor) continue;
            total_ += w.bytes();
            if (w.packed()) {
                packed += aligned(w.bytes());
            } else if (!params_.use_mmap) {
                plain += aligned(w.bytes());
            }
        }
        if (packed) model_.packed = ggml::Memory(packed, "weights");
        if (plain) model_.plain = ggml::Memory(plain, "weights");
        progress();
        for (WeightSpec& w : model_.weights) {
            if (w.tensor) load(w);
        }
        if (!model_.output) model_.output = model_.token_embd;
        if (params_.use_mlock) lock();
    }

 private:
    void load(WeightSpec& w) {
        const ggml::TensorInfo& t = *w.tensor;
        ggml::Matrix m{t.type, ggml::Layout::rows, w.rows, w.cols, nullptr};
        if (w.packed()) {
            m.layout = ggml::Layout::strips;
            uint8_t* to = model_.packed.data() + packed_at_;
            packed_at_ += aligned(w.bytes());
            pack(m, t, to);
            m.data = to;
        } else if (params_.use_mmap) {
            m.data = mapped(model_, t);
        } else {
            uint8_t* to = model_.plain.data() + plain_at_;
            plain_at_ += aligned(w.bytes());
            model_.file.files[t.file]->read(t.offset, to, t.bytes);
            m.data = to;
        }
        if (params_.check_tensors) check_finite(w.name, m);
        if (w.vector) {
            *w.vector = reinterpret_cast<const float*>(m.data);
        } else {
            *w.matrix = m;
        }
        done_ += w.bytes();
        progress();
    }

    // Slabs of a few MB: the pages of the file are given back as soon as they are packed, so that
    // the model is never in memory twice.
    void pack(const ggml::Matrix& m, const ggml::TensorInfo& t, uint8_t* to) {
        const ggml::Mapping& mapping = *model_.file.mappings[t.file];
        const int64_t strip = ggml::kStrip * m.row_bytes(),
                      n_strips = (m.rows + ggml::kStrip - 1) / ggml::kStrip;
        const int64_t slab = std::max<int64_t>(1, (8 << 20) / strip);
        std::vector<uint8_t> buffer(params_.use_mmap ? 0 : slab * strip);
        for (int64_t s0 = 0; s0 < n_strips; s0 += slab) {
            const int64_t n = std::min(slab, n_strips - s0);
            const uint64_t offset = t.offset + uint64_t(s0 * strip);
            const uint64_t bytes = std::min<uint64_t>(n * strip, t.bytes - uint64_t(s0 * strip));
            const uint8_t* from = mapping.data() + offset;
            if (params_.use_mmap) {
                mapping.will_need(offset, bytes);
            } else {
                model_.file.files[t.file]->read(offset, buffer.data(), bytes);
                from = buffer.data();
            }
            context_.threads.run(n, 4, [&](int64_t begin, int64_t end, int) {
                for (int64_t s = begin; s < end; s++) {
                    const int64_t rows = std::min(ggml::kStrip, m.rows - (s0 + s) * ggml::kStrip);
                    ggml::pack_strip(m.type, from + s * strip, rows, m.cols, to + (s0 + s) * strip);
                }
            });
            if (params_.use_mmap) mapping.drop(offset, bytes);
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
        if (params_.use_mmap) {
            for (const auto& mapping : model_.file.mappings) mapping->lock();
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

// Tells the log which tensors of the file play no part, once and together.
void log_unused(const Model& model, const pi_model_params& params) {
    if (!params.log) return;
    size_t n = 0;
    for (const WeightSpec& w : model.weights) n += w.tensor != nullptr;
    const size_t unused = model.file.gguf.tensors().size() - n;
    if (unused) {
        params.log(3, format("%zu tensors of the file are not used in dense mode", unused).c_str(),
                   params.log_data);
    }
}

}  // namespace

uint64_t WeightSpec::bytes() const {
    if (!tensor) return 0;
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

std::unique_ptr<Model> Model::inspect(const std::string& path, bool vocab_only) {
    auto model = std::make_unique<Model>();
    model->file = ModelFile::open(path);
    model->vocab = Vocab::load(model->file.gguf);
    if (vocab_only) {
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
    model->weights = weight_specs(*model);
    resolve(*model);
    return model;
}

std::shared_ptr<const Model> Model::load(const std::string& path, const pi_model_params& params) {
    std::unique_ptr<Model> model = inspect(path, params.vocab_only);
    model->ram_budget = params.ram_budget;
    if (params.vocab_only) return model;
    check_budget(model->file.gguf.path() + ": the weights", model->weight_bytes(),
                 usable_ram(params.ram_budget));
    log_unused(*model, params);
    Loader(*model, params).run();
    return model;
}

uint64_t Model::weight_bytes() const {
    uint64_t n = 0;
    for (const WeightSpec& w : weights) n += w.bytes();
    return n;
}

uint64_t Model::bytes_per_token() const {
    uint64_t n = 0;
    for (const WeightSpec& w : weights) {
        if (std::strcmp(w.part, "embedding")) n += w.bytes();
    }
    return n;
}

}  // namespace powerinfer
