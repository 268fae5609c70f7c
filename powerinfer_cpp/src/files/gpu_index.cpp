#include "files/gpu_index.h"

#include "ggml/file_io.h"
#include "ggml/gguf.h"
#include "ggml/status.h"
#include "model/families/family.h"

namespace powerinfer {

using ggml::Code;
using ggml::Error;
using ggml::format;

namespace {

class Reader {
 public:
    explicit Reader(const std::string& path) : file_(path), gguf_(ggml::Gguf::read(file_)) {}

    const ggml::Gguf& gguf() const { return gguf_; }

    [[noreturn]] void refuse(const std::string& what) const {
        throw Error(Code::format, gguf_.path() + ": " + what);
    }

    [[noreturn]] void refuse(const ggml::TensorInfo& t, const std::string& what) const {
        refuse("tensor \"" + t.name + "\" " + what);
    }

    const ggml::TensorInfo& list(const std::string& name) const {
        const ggml::TensorInfo* t = gguf_.find_tensor(name);
        if (!t) refuse("tensor \"" + name + "\" is missing");
        if (t->type != ggml::DType::I32 || t->n_dims != 1) refuse(*t, "is not a list of I32");
        return *t;
    }

    std::vector<int32_t> values(const ggml::TensorInfo& t) const {
        std::vector<int32_t> values(size_t(t.ne[0]));
        file_.read(t.offset, values.data(), size_t(t.bytes));
        return values;
    }

 private:
    ggml::File file_;
    ggml::Gguf gguf_;
};

// gpu_idx has 1 or 0 for every neuron; gpu_bucket lists the neurons with 1 in ascending order.
// PowerInfer reads the list only if a layer is split, so it is checked only then.
std::vector<int32_t> read_layer(const Reader& r, int64_t layer, int64_t n_ff) {
    const ggml::TensorInfo& index = r.list(blk(layer, "gpu_idx"));
    const ggml::TensorInfo& bucket = r.list(blk(layer, "gpu_bucket"));
    if (index.ne[0] != n_ff) {
        r.refuse(index, format("is for %lld neurons, and the model's layers have %lld",
                               (long long)index.ne[0], (long long)n_ff));
    }
    std::vector<int32_t> ids;
    const std::vector<int32_t> marks = r.values(index);
    for (int64_t i = 0; i < n_ff; i++) {
        const int32_t value = marks[size_t(i)];
        if (value != 0 && value != 1) r.refuse(index, format("holds %d, not 0 or 1", value));
        if (value) ids.push_back(int32_t(i));
    }
    const int64_t n_gpu = int64_t(ids.size());
    if (n_gpu == 0 || n_gpu == n_ff) return ids;
    if (bucket.ne[0] != n_gpu) {
        r.refuse(bucket, format("lists %lld neurons, but gpu_idx marks %lld",
                                (long long)bucket.ne[0], (long long)n_gpu));
    }
    int64_t previous = -1;
    for (const int64_t id : r.values(bucket)) {
        if (id <= previous || id >= n_ff) {
            r.refuse(bucket, format("does not list neurons 0 to %lld in ascending order: %lld "
                                    "follows %lld",
                                    (long long)(n_ff - 1), (long long)id, (long long)previous));
        }
        if (!marks[size_t(id)]) {
            r.refuse(bucket,
                     format("lists neuron %lld, which gpu_idx does not mark", (long long)id));
        }
        previous = id;
    }
    return ids;
}

}  // namespace

std::string gpu_index_path(const std::string& model_path) {
    return model_path + ".generated.gpuidx";
}

std::vector<std::vector<int32_t>> read_gpu_index(const std::string& path,
                                                 const std::vector<int64_t>& n_ff) {
    const auto n_layer = int64_t(n_ff.size());
    const Reader r(path);
    if (r.gguf().string("general.architecture") != "generic.gpu_index") {
        r.refuse("is not a placement of neurons (general.architecture is not generic.gpu_index)");
    }
    r.gguf().integer("split.vram_capacity", 0, INT64_MAX);
    if (int64_t(r.gguf().tensors().size()) != 2 * n_layer) {
        r.refuse(
            format("has %zu tensors, and a model of %lld layers has %lld: it belongs to "
                   "another model",
                   r.gguf().tensors().size(), (long long)n_layer, (long long)(2 * n_layer)));
    }
    std::vector<std::vector<int32_t>> ids;
    for (int64_t i = 0; i < n_layer; i++) ids.push_back(read_layer(r, i, n_ff[size_t(i)]));
    return ids;
}

}  // namespace powerinfer
