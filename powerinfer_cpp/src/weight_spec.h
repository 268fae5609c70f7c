// A tensor that an architecture wants: its shape, what it fills, and where it lies in memory.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "ggml/gguf.h"
#include "ggml/tensor.h"
#include "names.h"

namespace powerinfer {

struct Bundle;

// What a weight fills, and how.
struct Vector {  // F32, one row
    const float** to;
};
struct Product {  // right side of matmul(): packed into strips if the type has them
    ggml::Matrix* to;
};
struct Table {  // looked up row by row: stays as stored
    ggml::Matrix* to;
};
struct Signs {  // bytes: eight bits of a sketch each
    ggml::Matrix* to;
};
struct NeuronPart {  // the rows of one part of a bundle, to be packed into it
    Bundle* to;
    size_t part;
};
struct WholeBundle {  // of a bundled file: bytes, as they are
    Bundle* to;
};
using Target = std::variant<Vector, Product, Table, Signs, NeuronPart, WholeBundle>;

// Where a weight lies once it is loaded.
struct Place {
    enum class Memory {
        mapped,  // in the file, where it is stored
        packed,  // Model::packed: strips and bundles
        plain,   // Model::plain: as stored, read rather than mapped
    };
    Memory memory = Memory::mapped;
    uint64_t offset = 0;  // in packed or plain memory; of a part of a bundle: its bundle's
};

// A tensor, or a range of its rows, where it goes, and what it counts as in a memory plan.
struct WeightSpec {
    Part part;
    std::string name;
    std::vector<int64_t> shape;  // of the tensor in the file, fastest first
    int64_t row0, rows, cols;    // the range; rows * cols elements
    Target target;
    const ggml::TensorInfo* tensor = nullptr;  // set when found in the file
    Place place;                               // set by plan_weights()

    template <typename T>
    bool is() const {
        return std::holds_alternative<T>(target);
    }
    bool strips() const { return is<Product>() && ggml::has_strips(tensor->type); }
    // Bytes in memory: those of the file, a last incomplete strip filled up.
    uint64_t bytes() const;
    // Where the bytes begin in the file.
    uint64_t file_offset() const;
};

// Throws Error(format) naming file, tensor and both shapes where it has another one (fastest
// first).
void check_shape(const ggml::Gguf& gguf, const ggml::TensorInfo& t,
                 const std::vector<int64_t>& shape);

// The layer of a tensor "blk.N. ..."; -1: of none.
int64_t layer_of(const std::string& tensor);

}  // namespace powerinfer
