// Adapters: low-rank changes of a model's weights (LoRA, arXiv 2106.09685), from GGUF files in
// llama.cpp's format. W becomes W + scale * B A; the model's own weights do not change.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/model.h"

namespace powerinfer {

// The change of one weight: B A, of which every product adds `scale` times. Of a table, whose rows
// are looked up: B times rows of A.
struct LowRank {
    ggml::Matrix a;   // [rank, inputs]; of a table [its rows, rank]
    ggml::Matrix b;   // [outputs, rank]; of a table [its columns, rank]
    float scale = 1;  // alpha / rank
};

// One file. It does not change once loaded; any number of sessions may use it.
class Adapter {
 public:
    // Reads a file into memory from the model's budget. Throws Error naming file and tensor or key:
    // io; format if the file is damaged, is no adapter, or belongs to another model; unsupported if
    // it changes a weight that adapters cannot change here; memory.
    Adapter(std::shared_ptr<const Model> model, const std::string& path);

    const std::shared_ptr<const Model> model;
    const std::string& path() const { return file_.gguf.path(); }
    // By the address of the Matrix or NeuronRows in the model.
    const std::map<const void*, LowRank>& terms() const { return terms_; }
    // Of everything that results depend on.
    const std::string& hash() const { return hash_; }

 private:
    struct Pair;  // the two tensors of a weight
    void check_kind() const;
    std::vector<Pair> find_pairs() const;
    // Takes memory for the matrices of all pairs, and puts their addresses there; null if the
    // carver only counts.
    void set_addresses(ggml::Carver& carver, std::vector<Pair>& pairs) const;
    // turned: the file has it transposed.
    void read(const ggml::TensorInfo& t, const ggml::Matrix& to, bool turned = false) const;

    ModelFile file_;
    Reservation reserved_;
    ggml::Memory memory_;
    std::map<const void*, LowRank> terms_;
    std::string hash_;
};

}  // namespace powerinfer
