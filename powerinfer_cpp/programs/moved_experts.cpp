#include "moved_experts.h"

#include <algorithm>
#include <climits>
#include <memory>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "console/console.h"
#include "engine.h"

namespace {

// Where the experts of a layer may go is said by its number alone, so these are what counts.
const std::regex kExperts("blk\\.(\\d{1,6})\\.ffn_(gate|up|down|gate_up)_(ch)?exps\\.(.*)");

std::vector<std::regex> patterns_of(const std::string& moved) {
    std::vector<std::regex> found;
    for (const std::string& each : split(moved, ",")) {
        const size_t equals = each.find('=');
        if (equals == each.npos || equals == 0)
            bad_value("-ot", each, "a pattern and what it is for, such as exps=CPU");
        if (each.substr(equals + 1) != "CPU")
            throw UsageError("option -ot: '" + each +
                             "': what is on the GPU follows from -ngl and --vram-budget; only "
                             "experts can be left to the CPU (=CPU)");
        try {
            found.emplace_back(each.substr(0, equals));
        } catch (const std::regex_error&) {
            bad_value("-ot", each, "a regular expression before the =");
        }
    }
    return found;
}

std::vector<std::string> names_of(const std::string& model) {
    pi_gguf* opened = nullptr;
    require(pi_gguf_open(model.c_str(), &opened));
    const std::unique_ptr<pi_gguf, Release<pi_gguf_free>> file(opened);
    std::vector<std::string> names;
    for (int64_t i = 0; i < pi_gguf_n_tensors(opened); i++) {
        auto tensor = sized<pi_tensor_info>();
        require(pi_gguf_tensor(opened, i, &tensor));
        names.emplace_back(tensor.name);
    }
    return names;
}

[[noreturn]] void refuse(const std::string& moved, const std::string& why) {
    throw UsageError("option -ot: '" + moved + "' " + why +
                     "; here all experts of the first N layers can be left to the CPU (-ncmoe N), "
                     "and without that they follow the text within --vram-budget");
}

}  // namespace

void settle_moved_experts(Options& options) {
    if (options.moved.empty() || !wants_gpu(options)) return;
    const std::string moved = options.moved;
    const std::vector<std::regex> patterns = patterns_of(moved);
    std::set<int32_t> with, all, stay;  // layers: with a matrix that is moved, and that is not
    for (const std::string& name : names_of(options.model)) {
        bool here = false;
        for (const std::regex& pattern : patterns) here = here || std::regex_search(name, pattern);
        std::smatch parts;
        if (std::regex_match(name, parts, kExperts)) {
            const int32_t layer = std::stoi(parts[1]);
            all.insert(layer);
            if (here) with.insert(layer);
            // A bias goes with its matrix.
            if (!here && parts[4] == "weight") stay.insert(layer);
        } else if (here) {
            refuse(moved, "moves " + name + ", which is no expert");
        }
    }
    if (with.empty()) {
        say("main: -ot %s: no experts of this model have such a name, so it changes nothing\n",
            moved.c_str());
        return;
    }
    for (int32_t layer : with)
        if (stay.count(layer))
            refuse(moved,
                   "moves only some matrices of the experts of layer " + std::to_string(layer));
    if (!stay.empty() && *stay.begin() < *with.rbegin())
        refuse(moved, "moves the experts of layer " + std::to_string(*with.rbegin()) +
                          ", but not those of layer " + std::to_string(*stay.begin()));
    const int32_t n = stay.empty() ? INT32_MAX : *with.rbegin() + 1;
    options.n_cpu_moe = std::max(options.n_cpu_moe, n);
    say("main: -ot %s: as %s\n", moved.c_str(),
        n == INT32_MAX ? "--cpu-moe: the experts of all layers stay with the CPU"
                       : ("--n-cpu-moe " + std::to_string(n) + ": the experts of the first " +
                          std::to_string(n) + " layers stay with the CPU")
                             .c_str());
}
