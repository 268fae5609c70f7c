#include "plan.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "console/console.h"
#include "engine.h"

namespace {

// tells: print what the engine has to say.
Plan plan_of(Options& options, bool tells) {
    const pi_session_params session = session_params(options, trained_positions(options));
    ModelParams model = model_params(options, session);
    if (!tells) model.params.log = nullptr;
    pi_plan* made = nullptr;
    require(pi_plan_new(options.model.c_str(), &model.params, &session, &made));
    return Plan(made);
}

// MODEL-TYPE.gguf, beside the model.
std::string beside(const std::string& model, const std::string& type) {
    const std::filesystem::path path = std::filesystem::u8path(model);
    return path.parent_path().u8string() + (path.has_parent_path() ? "/" : "") +
           path.stem().u8string() + "-" + type + ".gguf";
}

// The command of another program, quoted for a shell where that is needed.
std::string command(const std::vector<std::string>& words) {
    std::error_code error;
    std::string text = std::filesystem::exists("powerinfer", error) ? "./powerinfer" : "powerinfer";
    for (const std::string& word : words) {
        const bool plain = word.find_first_of(" \t'\"\\$&;()*?<>|`!#~[]{}") == std::string::npos;
        std::string quoted;
        for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
        text += " " + (plain ? word : "'" + quoted + "'");
    }
    return text;
}

const char* type_name(int64_t id) {
    constexpr std::pair<int64_t, const char*> kNames[] = {{8, "Q8_0"},  {14, "Q6_K"}, {13, "Q5_K"},
                                                          {12, "Q4_K"}, {11, "Q3_K"}, {10, "Q2_K"}};
    for (const auto& [type, name] : kNames) {
        if (type == id) return name;
    }
    return "?";
}

// What a user does for a way; "" for one that main has no option for.
std::string told(const pi_way& way, const std::string& model) {
    const std::string_view what = way.what;
    constexpr std::pair<std::string_view, const char*> kOptions[] = {
        {"n_ubatch", "-ub"}, {"n_batch", "-b"}, {"n_ctx", "-c"}};
    for (const auto& [name, option] : kOptions) {
        if (name == what) return std::string(option) + " " + std::to_string(way.value);
    }
    if (what == "type_k") return "-ctk q8_0 -ctv q8_0";
    if (what == "n_kv_old") return "no --swa-full";
    if (what == "convert") {
        return command({"convert", model, "--outfile", beside(model, "neurons")}) +
               ", then -m that file: its neurons stay on the disk";
    }
    if (what == "quantize" || what == "requantize") {
        const std::string type = type_name(way.value);
        std::vector<std::string> words{"quantize", model, beside(model, type), type};
        if (what == "requantize") words.push_back("--allow-requantize");
        return command(words) + ", then -m that file";
    }
    if (what == "mmap_anyway") return "--mmap-anyway";
    if (what != "ram_budget") return "";
    char text[64];
    const double gib = std::ceil(double(way.value) / (1 << 30) * 1000) / 1000;
    std::snprintf(text, sizeof text, "--ram-budget %.3f: so much is free", gib);
    return text;
}

// A line for each thing that makes a plan fit that does not; "" for one that fits.
std::string ways_text(const pi_plan* plan, const std::string& model) {
    std::string text, slow;
    bool all = true, slow_suffices = false;
    for (int32_t i = 0; i < pi_plan_n_ways(plan); i++) {
        auto way = sized<pi_way>();
        require(pi_plan_way(plan, i, &way));
        const std::string what = told(way, model);
        if (what.empty()) continue;
        char needs[128] = "";
        const bool suffices = way.n_bytes <= pi_plan_budget(plan);
        const double mib = double(way.n_bytes) / (1 << 20);
        if (std::string_view(way.what) == "mmap_anyway") {
            std::snprintf(needs, sizeof needs,
                          ": %.1f MiB, but each token reads %.1f MiB from the disk", mib,
                          double(way.value) / (1 << 20));
            slow = "  " + what + needs + "\n";
            slow_suffices = suffices;
            continue;
        }
        if (std::string_view(way.what) != "ram_budget") {
            all = all && suffices;
            std::snprintf(needs, sizeof needs, ": %.1f MiB", mib);
        }
        text += "  " + what + needs + "\n";
    }
    if (text.empty() && slow.empty()) return "";
    constexpr const char *kEach = "Each of these suffices:\n",
                         *kHelp = "These help, but not alone:\n";
    all = all && (slow.empty() || slow_suffices);
    if (all || !slow_suffices) return (all ? kEach : kHelp) + text + slow;
    return kHelp + text + "This suffices, but it is slow:\n" + slow;
}

// How a model runs that does not fit RAM.
std::string from_storage(const pi_storage_plan& plan, bool may_write) {
    char text[256];
    const auto mib = [](uint64_t bytes) { return double(bytes) / (1 << 20); };
    const bool experts = plan.token_seconds > 0;
    std::snprintf(text, sizeof text,
                  "runs from storage: %.2f MiB of %s in memory, %.2f on the disk, which takes "
                  "some %.2f ms to read for a token",
                  mib(plan.cached), experts ? "experts" : "neurons", mib(plan.stored),
                  plan.read_seconds * 1e3);
    std::string said = text;
    if (experts) {
        std::snprintf(
            text, sizeof text,
            "\n%.0f%% of the chosen experts are expected in memory, and some %.2g tokens/s",
            plan.hits * 100, 1 / plan.token_seconds);
        said += text;
        std::snprintf(text, sizeof text, "; --ram-budget %.1f would double that",
                      double(plan.twice) / (1 << 30));
        if (plan.twice) said += text;
    }
    if (!plan.to_write) return said;
    std::snprintf(text, sizeof text, "; its bundled file of %.2f MiB %s", mib(plan.to_write),
                  may_write ? "would be written first" : "is needed, and --no-bundle forbids it");
    return said + text;
}

// What a GPU has of the model, and why not more; "" if none was asked for.
std::string layers_text(const pi_plan* plan, const std::string& device) {
    auto there = sized<pi_device_plan>();
    require(pi_plan_device(plan, &there));
    const std::string why_layer = there.why_layer, why_head = there.why_head;
    if (!there.layers && why_layer.empty()) return "";
    std::string text = std::to_string(there.layers) + " of " + std::to_string(there.n_layer) +
                       " layers" + (there.head ? " and the head" : "") + " are on " + device;
    if (!why_layer.empty()) text += ": " + why_layer;
    if (!why_head.empty()) text += "\nthe head is not on " + device + ": " + why_head;
    return text + "\n";
}

// How many experts a GPU has room for; "" without any.
std::string experts_text(const pi_plan* plan, const std::string& device) {
    auto experts = sized<pi_expert_report>();
    require(pi_plan_experts(plan, &experts));
    if (!experts.experts || !pi_plan_vram_budget(plan)) return "";
    const bool all = experts.device_room == experts.experts;
    char text[160];
    std::snprintf(text, sizeof text, "%" PRId64 " of %" PRId64 " experts have room on %s%s\n",
                  experts.device_room, experts.experts, device.c_str(),
                  all ? "" : "; the others are computed by the CPU");
    return text;
}

}  // namespace

bool print_plan(Options& options) {
    const Plan plan = plan_of(options, true);
    const auto line = [](const char* tier, const char* part, uint64_t bytes) {
        char text[128];
        std::snprintf(text, sizeof text, "%-8.16s%-12.32s%14.2f\n", tier, part,
                      double(bytes) / (1 << 20));
        return std::string(text);
    };
    const auto add = [](uint64_t& sum, uint64_t n) {  // sizes in a file may exceed 64 bits
        sum = n > UINT64_MAX - sum ? UINT64_MAX : sum + n;
    };
    using Name = std::pair<std::string, std::string>;  // tier, part
    std::vector<std::pair<Name, uint64_t>> sums;       // over layers
    uint64_t ram = 0, vram = 0;
    for (int32_t i = 0; i < pi_plan_n_parts(plan.get()); i++) {
        auto part = sized<pi_plan_part>();
        require(pi_plan_part_at(plan.get(), i, &part));
        const Name name(part.tier, part.name);
        const auto same = [&](const auto& sum) { return sum.first == name; };
        const auto found = std::find_if(sums.begin(), sums.end(), same);
        if (found != sums.end()) {
            add(found->second, part.n_bytes);
        } else {
            sums.emplace_back(name, part.n_bytes);
        }
        add(name.first == "gpu" ? vram : ram, part.n_bytes);
    }
    std::string text = "tier    part                   MiB\n";
    for (const auto& [name, bytes] : sums) {
        text += line(name.first.c_str(), name.second.c_str(), bytes);
    }
    const uint64_t budget = pi_plan_budget(plan.get()), on_gpu = pi_plan_vram_budget(plan.get());
    text += line(on_gpu ? "ram" : "", "total", ram) + line(on_gpu ? "ram" : "", "budget", budget);
    if (on_gpu) text += line("gpu", "total", vram) + line("gpu", "budget", on_gpu);
    auto storage = sized<pi_storage_plan>();
    require(pi_plan_storage(plan.get(), &storage));
    text += std::to_string(pi_plan_n_ctx(plan.get())) + " positions; the model " +
            (ram > budget                      ? "does not fit"
             : storage.cached + storage.stored ? from_storage(storage, options.bundle)
                                               : "fits") +
            "\n";
    const std::string device = options.device.empty() ? "cuda0" : options.device;
    text += layers_text(plan.get(), device) + experts_text(plan.get(), device);
    put(text + ways_text(plan.get(), options.model));
    return ram <= budget;
}

std::string ways_out(Options& options) {
    // Whoever failed to open the model has told it.
    return ways_text(plan_of(options, false).get(), options.model);
}
