// main: continues a text or holds a conversation. It uses the engine through powerinfer.h only.
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "console.h"
#include "conversation.h"
#include "engine.h"
#include "generation.h"
#include "interactive.h"
#include "options.h"
#include "powerinfer.h"
#include "stats.h"
#include "texts.h"

namespace {

std::string default_model() {
    namespace fs = std::filesystem;
    const fs::path name = "models/stories-relu.Q8_0.gguf";
    std::vector<fs::path> places = {name};
    std::error_code error;
    // The repository is a few levels above a build folder.
    fs::path folder = own_path().parent_path();
    for (int level = 0; level < 4 && !folder.empty(); level++, folder = folder.parent_path())
        places.push_back(folder / name);
#ifdef PI_DEFAULT_MODEL
    places.push_back(PI_DEFAULT_MODEL);
#endif
    for (const fs::path& place : places)
        if (fs::exists(place, error)) return place.u8string();
    throw Failure("there is no " + name.u8string() + " here; name a model with -m FILE");
}

// How a model runs that does not fit RAM.
std::string from_storage(const pi_storage_plan& plan, bool may_write) {
    char text[256];
    const auto mib = [](uint64_t bytes) { return double(bytes) / (1 << 20); };
    std::snprintf(text, sizeof text,
                  "runs from storage: %.2f MiB of neurons in memory, %.2f on the disk",
                  mib(plan.cached), mib(plan.stored));
    std::string said = text;
    if (!plan.to_write) return said;
    std::snprintf(text, sizeof text, "; its bundled file of %.2f MiB %s", mib(plan.to_write),
                  may_write ? "would be written first" : "is needed, and --no-bundle forbids it");
    return said + text;
}

void print_plan(Options& options) {
    const pi_session_params session = session_params(options, trained_positions(options));
    const ModelParams model = model_params(options, session);
    pi_plan* made = nullptr;
    require(pi_plan_new(options.model.c_str(), &model.params, &session, &made));
    const Plan plan(made);

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
    put(text);
}

void print_devices() {
    char line[128];
    std::snprintf(line, sizeof line, "  cpu: %s, %d threads, %.0f MiB free\n", isa().c_str(),
                  int(pi_default_threads()), double(pi_available_memory()) / (1 << 20));
    std::string text = std::string("Available devices:\n") + line;
    for (int32_t i = 0; i < pi_n_devices(); i++)
        text += "  cuda" + std::to_string(i) + ": " + pi_device_name(i) + "\n";
    const char* note = pi_device_note();
    if (pi_n_devices() == 0 && note && *note) text += std::string("  no GPU: ") + note + "\n";
    put(text);
}

// What is written must not overwrite a file that is read, not even through a link.
void protect_files(const Options& options) {
    const std::pair<const char*, std::string> written[] = {
        {"--json-stats", options.json_stats},
        {"--log-file", options.log_file},
        {"--prompt-cache", options.prompt_cache_read_only ? "" : options.prompt_cache}};
    if (std::all_of(std::begin(written), std::end(written),
                    [](const auto& file) { return file.second.empty(); }))
        return;
    std::vector<std::string> read = {options.model, options.prompt_file, options.system_file,
                                     options.chat_template_file};
    for (const auto& [file, scale] : options.adapters) read.push_back(file);
    pi_gguf* opened = nullptr;
    require(pi_gguf_open(options.model.c_str(), &opened));
    const std::unique_ptr<pi_gguf, Release<pi_gguf_free>> parts(opened);
    for (int32_t i = 0; i < pi_gguf_n_files(opened); i++)
        read.emplace_back(pi_gguf_file(opened, i));
    const auto path = [](const std::string& name) { return std::filesystem::u8path(name); };
    for (const auto& [option, file] : written)
        for (const std::string& name : read) {
            std::error_code error;
            if (!file.empty() && std::filesystem::equivalent(path(file), path(name), error))
                throw Failure(file + ": " + option + " would overwrite what is read");
        }
}

// The format of a conversation, if there is to be one. Throws Failure if one was asked for and the
// model has no format that is known here.
std::optional<ChatFormat> chosen_chat(Options& options) {
    const bool by_itself = !options.conversation && may_chat(options);
    std::optional<ChatFormat> format;
    if (options.conversation || by_itself) {
        std::string why;
        format = find_chat_format(options, why);
        const bool needed = options.conversation || !options.for_chat.empty();
        if (!format && needed)
            throw Failure(why.empty() ? options.model +
                                            ": -cnv needs a chat template "
                                            "(tokenizer.chat_template)"
                                      : why);
        if (!format && !why.empty()) print_log(2, why.c_str(), &options.verbosity);
    }
    options.conversation = format.has_value();
    if (by_itself && format)
        say("main: chats, since the model has a chat template: Ctrl-C stops an answer, Ctrl-D "
            "ends; -no-cnv writes a text, and `powerinfer chat` edits lines\n");
    return format;
}

// Continues the prompt, or holds a conversation. 0 or an exit status.
int generate(Options& options) {
    const std::optional<ChatFormat> chat =
        chosen_chat(options);  // before loading, which takes long
    Generation generation(options);
    int status = 0;
    try {
        if (chat) {
            converse(generation, *chat, options);
        } else if (options.interactive) {
            interact(generation, options);
        } else {
            generation.read_prompt();
            generation.generate();
        }
    } catch (const Interrupted&) {
        status = exit_interrupted;
    }
    if (!chat && is_terminal(Stream::out) && write_out("\n", 1) < 0) return exit_failure;
    if (generation.full())
        say("main: the context is full (%d positions, -c)\n",
            int(pi_session_n_ctx(generation.session())));
    generation.end();
    if (options.perf) generation.timing().print(generation.model());
    if (!options.json_stats.empty()) write_stats(options, generation.model(), generation.timing());
    return status;
}

int run(Options& options) {
    switch (options.action) {
        case Options::Action::help:
            put(help_text());
            return 0;
        case Options::Action::version:
            put("powerinfer_cpp " + std::string(pi_version()) + " (" + isa() + ")\n");
            return 0;
        case Options::Action::list_devices:
            print_devices();
            return 0;
        case Options::Action::completion:
            put(completion_text());
            return 0;
        case Options::Action::plan:
        case Options::Action::generate:
            break;
    }
    if (options.model.empty()) options.model = default_model();
    if (options.action == Options::Action::plan) {
        print_plan(options);
        return 0;
    }
    protect_files(options);
    start_log(options.log_file, !options.log);
    using Switch = Options::Switch;
    const bool terminal = options.colour != Switch::off && shows_colours();
    use_colours(terminal || options.colour == Switch::on);
    if (!options.for_gpu.empty() && !wants_gpu(options)) {
        const std::string note = pi_device_note() ? pi_device_note() : "";
        const std::string why = note.empty() ? "" : ": " + note;
        print_log(2, (options.for_gpu + ": without effect here" + why).c_str(), &options.verbosity);
    }
    if (!options.in_vain.empty()) {
        const std::string& why = ": without effect here: a text ends where the context is full";
        print_log(2, (options.in_vain + why).c_str(), &options.verbosity);
    }
    read_texts(options);
    if (options.random_seed)
        options.sampler.seed = std::random_device{}();  // 32 bits: short to retype
    return generate(options);
}

}  // namespace

int main(int argc, char** argv) {
    const std::vector<std::string> arguments = start_console(argc, argv);
    try {
        Options options = parse_options(arguments);
        const int status = run(options);
        if (!end_log()) throw Failure(options.log_file + ": the messages could not be written");
        return status;
    } catch (const UsageError& error) {
        complain(error.what());
        return exit_usage;
    } catch (const Interrupted&) {
        return exit_interrupted;
    } catch (const ReaderGone&) {
        return 0;
    } catch (const std::bad_alloc&) {
        complain("out of memory");
    } catch (const std::exception& error) {
        complain(error.what());
    }
    return exit_failure;
}
