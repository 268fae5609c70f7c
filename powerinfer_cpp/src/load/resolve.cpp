// Checks that a file has every tensor that its architecture needs, with the right shape and type.
#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "ggml/device_ops.h"
#include "ggml/sizes.h"
#include "ggml/status.h"
#include "load/load.h"
#include "weights/neuron_layout.h"

namespace powerinfer {

using ggml::Code;
using ggml::DType;
using ggml::Error;
using ggml::format;

namespace {

std::string shape_text(const int64_t* sizes, size_t n) {
    std::string text;
    for (size_t i = 0; i < n; i++) text += (i ? ", " : "") + std::to_string(sizes[i]);
    return "[" + text + "]";
}

bool fits(const WeightSpec& w, DType type) {
    if (w.is<Vector>()) return type == DType::F32;
    if (w.is<WholeBundle>() || w.is<StoredBundle>() || w.is<Signs>()) return type == DType::I8;
    return ggml::info(type).is_float();
}

}  // namespace

int64_t layer_of(const std::string& tensor) {
    const bool named = !tensor.compare(0, 4, "blk.") && tensor.size() > 4;
    if (!named || !std::isdigit(uint8_t(tensor[4]))) return -1;
    return std::strtoll(tensor.c_str() + 4, nullptr, 10);
}

std::string checksums_of(const std::string& bundle) {
    const std::string name = "ffn_bundle";
    const size_t end = bundle.find(name) + name.size();
    return bundle.substr(0, end) + "_crc" + bundle.substr(end);
}

void check_shape(const ggml::Gguf& gguf, const ggml::TensorInfo& t,
                 const std::vector<int64_t>& shape) {
    if (size_t(t.n_dims) == shape.size() && std::equal(shape.begin(), shape.end(), t.ne)) return;
    throw Error(Code::format, gguf.path() + ": tensor \"" + t.name + "\" has shape " +
                                  shape_text(t.ne, size_t(t.n_dims)) + ", expected " +
                                  shape_text(shape.data(), shape.size()));
}

uint64_t StoredBundle::gate_bytes(int64_t n) const {
    if (!gates) return 0;
    return ggml::size_rounded_up(ggml::size_product(n, gates->layout.stride()), kWeightLine);
}

uint64_t StoredBundle::bytes(int64_t n) const {
    return ggml::size_sum(gate_bytes(n), ggml::size_product(n, bundle->layout.stride()));
}

uint64_t WeightSpec::bytes(int64_t n) const {
    if (const auto* s = std::get_if<StoredBundle>(&target)) return s->bytes(n);
    if (in_floats()) return ggml::size_product(n, cols * int64_t(sizeof(float)));
    const int64_t full = strips() ? (n + ggml::kStrip - 1) / ggml::kStrip * ggml::kStrip : n;
    return ggml::size_product(full, ggml::info(tensor->type).size(cols));
}

int64_t DeviceMatrix::stride() const {
    return as_stored ? ggml::info(type).size(cols) : ggml::device_row_bytes(type, cols);
}

uint64_t DeviceMatrix::bytes(int64_t n) const {
    return ggml::size_rounded_up(ggml::size_product(n, stride()), kDeviceLine);
}

std::vector<DeviceMatrix> WeightSpec::device_matrices() const {
    const ggml::DType type = tensor->type;
    if (const auto* v = std::get_if<Vector>(&target)) return {{v->to, type, cols, true}};
    if (const auto* p = std::get_if<Product>(&target)) return {{p->to, type, cols, false}};
    if (in_floats()) return {};  // of layers that keep to the CPU
    if (const auto* t = std::get_if<Table>(&target)) return {{t->to, type, cols, false}};
    if (const auto* s = std::get_if<Signs>(&target)) return {{s->to, type, cols, true}};
    if (const auto* n = std::get_if<NeuronPart>(&target)) {
        return {{n->to->rows[n->part], type, cols, false}};
    }
    std::vector<DeviceMatrix> parts;
    const auto add = [&](const Bundle& bundle) {
        for (size_t i = 0; i < bundle.rows.size(); i++) {
            parts.push_back({bundle.rows[i], bundle.layout.parts[i], bundle.layout.cols, false});
        }
    };
    if (const auto* b = std::get_if<WholeBundle>(&target)) {
        add(*b->to);
    } else {
        const StoredBundle& stored = std::get<StoredBundle>(target);
        if (stored.gates) add(*stored.gates);
        add(*stored.bundle);
    }
    return parts;
}

uint64_t WeightSpec::device_bytes(int64_t n) const {
    uint64_t sum = 0;
    for (const DeviceMatrix& m : device_matrices()) sum = ggml::size_sum(sum, m.bytes(n));
    return sum;
}

bool WeightSpec::suits_device() const {
    if (in_floats()) return false;
    const std::vector<DeviceMatrix> all = device_matrices();
    return std::all_of(all.begin(), all.end(), [this](const DeviceMatrix& m) {
        if (by_neuron() && m.cols % ggml::kQ) return false;
        return m.as_stored || ggml::has_device_rows(m.type, m.cols);
    });
}

bool WeightSpec::expert_rows() const {
    return by_neuron() && of && of->routed();
}

bool WeightSpec::of_head() const {
    return part == Part::head || name.rfind("output_norm", 0) == 0 ||
           name.rfind("token_embd_norm", 0) == 0;
}

bool WeightSpec::stays_in_ram() const {
    return layer_of(name) < 0 ? name != "output.weight"
                              : name.find(".ffn_rate") != std::string::npos;
}

uint64_t WeightSpec::file_offset() const {
    return tensor->offset + uint64_t(row0) * uint64_t(ggml::info(tensor->type).size(cols));
}

void refuse_further_layers(const Model& model) {
    for (const ggml::TensorInfo& t : model.file.gguf.tensors()) {
        const Config& c = model.config;
        if (layer_of(t.name) < c.n_layer + c.n_nextn) continue;
        throw Error(Code::format, format("%s: tensor \"%s\" belongs to a layer beyond the model's "
                                         "%lld",
                                         model.file.gguf.path().c_str(), t.name.c_str(),
                                         (long long)model.config.n_layer));
    }
}

// Finds the checksums of a bundle, and notes where both are.
static void resolve_stored(const ggml::Gguf& gguf, const WeightSpec& w, StoredNeurons& neurons) {
    const auto refuse = [&](const std::string& name, const std::string& why) {
        throw Error(Code::format, gguf.path() + ": tensor \"" + name + "\" " + why);
    };
    if (w.tensor->offset % uint64_t(neurons.layout.align)) {
        refuse(w.name,
               format("begins at byte %llu of the file, which is not a multiple of its "
                      "alignment, %lld",
                      (unsigned long long)w.tensor->offset, (long long)neurons.layout.align));
    }
    const std::string name = checksums_of(w.name);
    const ggml::TensorInfo* crc = gguf.find_tensor(name);
    if (!crc) refuse(name, "is missing");
    std::vector<int64_t> shape = w.shape;
    shape[0] = 2;
    check_shape(gguf, *crc, shape);
    if (crc->type != DType::I32)
        refuse(name, std::string("has type ") + ggml::info(crc->type).name);
    neurons.file = w.tensor->file;
    neurons.offset = w.file_offset();
    neurons.crc_file = crc->file;
    neurons.crc_offset = crc->offset + uint64_t(w.row0) * 2 * sizeof(uint32_t);
}

void resolve_weights(Model& model) {
    const ggml::Gguf& gguf = model.file.gguf;
    for (WeightSpec& w : model.weights) {
        const auto refuse = [&](const std::string& why) {
            throw Error(Code::format, gguf.path() + ": tensor \"" + w.name + "\" " + why);
        };
        w.tensor = gguf.find_tensor(w.name);
        if (!w.tensor) refuse("is missing");
        const ggml::TensorInfo& t = *w.tensor;
        check_shape(gguf, t, w.shape);
        if (!fits(w, t.type)) refuse(std::string("has type ") + ggml::info(t.type).name);
        if (const auto* neurons = std::get_if<NeuronPart>(&w.target)) {
            neurons->to->layout.parts.push_back(t.type);
            neurons->to->layout.cols = w.cols;
        }
        if (const auto* stored = std::get_if<StoredBundle>(&w.target)) {
            resolve_stored(gguf, w, *stored->neurons);
        }
    }
}

}  // namespace powerinfer
