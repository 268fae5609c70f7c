// A tensor that an architecture needs: its shape, what it fills, and where it lies in memory.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/names.h"
#include "ggml/gguf.h"
#include "ggml/tensor.h"

namespace powerinfer {

struct Bundle;
struct FeedForward;
struct StoredNeurons;
struct StoredTable;

// The target of a weight, and how it is stored.
struct Vector {  // F32
    const float** to;
};
struct Product {  // weight of matmul(): packed into strips if the type has them
    ggml::Matrix* to;
};
struct Turned {  // transposed, in F32: few weights of old files
    ggml::Matrix* to;
};
struct Table {  // rows are looked up: stays as stored
    ggml::Matrix* to;
    StoredTable* stored = nullptr;  // for one that may stay on the disk
    bool on_disk = false;           // always: it is large, and a token needs few rows of it
};
struct Decoded {  // rows of floats of any type, in F32
    const float** to;
};
struct Signs {  // bytes with eight signs of a sketch each
    ggml::Matrix* to;
};
struct NeuronPart {  // rows of one part, to be packed into a bundle
    Bundle* to;
    size_t part;
};
struct WholeBundle {  // bytes of a bundled file, used as they are (version 1)
    Bundle* to;
};
// Bytes of a bundled file of version 2: all rows of neurons, to be packed into two bundles, which
// lie one after the other, and a tensor with their checksums.
struct StoredBundle {
    Bundle* gates;  // null: no gate
    Bundle* bundle;
    StoredNeurons* neurons;

    // Bytes of n neurons in memory: of the first bundle, with the gap after it, and of both.
    uint64_t gate_bytes(int64_t n) const;
    uint64_t bytes(int64_t n) const;
};
using Target = std::variant<Vector, Product, Turned, Table, Decoded, Signs, NeuronPart, WholeBundle,
                            StoredBundle>;

// Where a weight lies once it is loaded.
struct Location {
    enum class Memory {
        mapped,  // in the mapped file
        packed,  // Model::packed: strips and bundles
        plain,   // Model::plain: as stored, but read, not mapped
        disk,    // stays there (store.h)
    };
    Memory memory = Memory::mapped;
    uint64_t offset = 0;  // in packed or plain memory; for a part of a bundle, that of the bundle
    int64_t rows = 0;     // in RAM; 0: on a device only
    uint64_t device_offset = 0;
    int64_t device_rows = 0;  // 0: not on a device
};

// A matrix or vector as a device stores it. The key is the address of the member of Model that has
// it in RAM.
struct DeviceMatrix {
    const void* key;
    ggml::DType type;
    int64_t cols;
    bool as_stored;  // vectors and signs; matrices are packed (ggml::pack_device_row)

    int64_t stride() const;  // bytes of a row
    // Bytes of n rows, a multiple of kDeviceLine.
    uint64_t bytes(int64_t n) const;
};
constexpr uint64_t kDeviceLine = 256;
constexpr uint64_t kWeightLine = 64;  // packed and plain weights start at a cache line

// What of a model stays on the disk if it runs from storage: rows of neurons and predictors of
// experts; or whole experts; or all feed-forward blocks. And the embedding where only single rows
// of it are needed.
enum class OnDisk : uint8_t { nothing, neurons, experts, blocks };

// Stands for the address of a weight that RAM does not hold: says that the model has it, and faults
// when it is read.
inline const uint8_t* const kElsewhere = reinterpret_cast<const uint8_t*>(64);

// A tensor or a range of its rows: its target, its location, and its part in a memory plan.
struct WeightSpec {
    Part part;
    std::string name;
    std::vector<int64_t> shape;  // of the tensor in the file, fastest first
    int64_t row0, rows, cols;    // the range; rows * cols elements
    Target target;
    const ggml::TensorInfo* tensor = nullptr;  // set when found in the file
    Location location;                         // set by plan_weights()
    const FeedForward* of = nullptr;           // the feed-forward part that it belongs to
    int64_t block = -1;                        // of that, if it is a matrix of one
    bool chosen = false;                       // does a router choose that block?
    bool expert_bias = false;                  // is it a vector that belongs to such a block?
    bool expert_scales = false;                // or one with a number for each such block?

    template <typename T>
    bool is() const {
        return std::holds_alternative<T>(target);
    }
    // Does it become F32, whatever the file has?
    bool in_floats() const { return is<Turned>() || is<Decoded>(); }
    bool strips() const { return is<Product>() && ggml::has_strips(tensor->type); }
    // Bytes of n rows in RAM, including the padding of the last strip.
    uint64_t bytes(int64_t n) const;
    uint64_t bytes() const { return bytes(rows); }
    // The matrices that it is on a device: one, or those of a bundled file, one after the other.
    std::vector<DeviceMatrix> device_matrices() const;
    // Bytes of n rows of them.
    uint64_t device_bytes(int64_t n) const;
    // Does a device have operators for it?
    bool suits_device() const;
    // Is it rows of neurons, which RAM and a device may share out?
    bool by_neuron() const { return is<NeuronPart>() || is<WholeBundle>() || is<StoredBundle>(); }
    // Is it rows of neurons of experts, which a router chooses?
    bool expert_rows() const;
    // Is it a part of an expert's predictor, which is needed when a row chooses the expert?
    bool by_expert() const {
        return part == Part::predictor && shape.size() == 3 && (is<Product>() || is<Signs>());
    }
    bool stays_on_disk(OnDisk what) const {
        const auto* table = std::get_if<Table>(&target);
        if (table && table->on_disk) return true;
        if (what == OnDisk::nothing) return false;
        const bool stays = what == OnDisk::neurons   ? by_neuron() || by_expert()
                           : what == OnDisk::experts ? chosen
                                                     : block >= 0;
        return stays || (table && table->stored);
    }
    // Does whoever computes the logits need it: the last norm and the matrix?
    bool of_head() const;
    // Does RAM need it even if a device has it? Rates and the embedding are read there, and the
    // last norm for embeddings.
    bool stays_in_ram() const;
    // The offset of the range in the file.
    uint64_t file_offset() const;
};

// Throws Error(format) naming file, tensor and both shapes if the shape (fastest first) differs.
void check_shape(const ggml::Gguf& gguf, const ggml::TensorInfo& t,
                 const std::vector<int64_t>& shape);

// The name of the checksums of a stored bundle: "blk.0.ffn_bundle_crc", "..._crc_exps",
// "..._crc_shexp".
std::string checksums_of(const std::string& bundle);

// The layer of a tensor "blk.N. ..."; -1 for other names.
int64_t layer_of(const std::string& tensor);

}  // namespace powerinfer
