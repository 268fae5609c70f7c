// Small files that ask for much: memory and time follow from what a file holds, not from what its
// numbers say.
#include <sys/resource.h>

#include <functional>

#include "families/family.h"
#include "ggml/check.h"
#include "model.h"
#include "tiny_model.h"

using namespace powerinfer;
using ggml::DType;

namespace {

const tiny::Folder folder;

// By how many MiB the most memory that this process ever had has grown.
double growth(const std::function<void()>& work) {
    const auto peak = [] {
        rusage usage{};
        getrusage(RUSAGE_SELF, &usage);
        return double(usage.ru_maxrss) / 1024;
    };
    const double before = peak();
    work();
    return peak() - before;
}

std::string message(const std::function<void()>& work) {
    try {
        work();
    } catch (const ggml::Error& e) {
        return e.what();
    }
    return "";
}

bool says(const std::function<void()>& work, const std::string& what) {
    return message(work).find(what) != std::string::npos;
}

void inspect(const tiny::Description& d) {
    const std::string path = folder / "model.gguf";
    tiny::write(d, path);
    Model::inspect(path, pi_model_default_params());
}

// A count of layers is held against the tensors, so they are there, with a byte each.
void experts_without_tensors() {
    for (const auto& [n_layer, why] :
         {std::pair{60u, "ffn_up_exps.weight"}, {300u, "more than 262144 together"}}) {
        tiny::Description d = tiny::describe([] {
            tiny::Shape shape;
            shape.n_layer = 1, shape.n_expert = 2;
            return shape;
        }());
        for (uint32_t i = 1; i < n_layer; i++) {
            d.tensors.push_back({blk(i, "x"), DType::I8, {1}, {0}});
        }
        d.remove("blk.0.ffn_up_exps.weight");
        d.keys["llama.block_count"] = n_layer;
        d.keys["llama.expert_count"] = uint32_t(4096);
        // An architecture's list of weights names those of expert 0 before anything is missed.
        CHECK(growth([&] { CHECK(message([&] { inspect(d); }) != ""); }) < 64);
        if (n_layer == 300) CHECK(says([&] { inspect(d); }, why));
    }
}

void ranks() {
    tiny::Shape shape;
    shape.activation = "relu", shape.down_t = true, shape.predictor_rank = 8;
    tiny::Description d = tiny::describe(shape);
    inspect(d);
    const int64_t rank = (1 << 16) + 1;
    d.tensor("blk.1.fc1.weight") = {"blk.1.fc1.weight", DType::I8, {1, rank}, {}};
    d.tensor("blk.1.fc1.weight").bytes.resize(size_t(rank));
    CHECK(says([&] { inspect(d); }, "\"blk.1.fc1.weight\" has rank 65537, beyond 65536"));
}

}  // namespace

int main() {
    experts_without_tensors();
    ranks();
    return check::summary("hostile");
}
