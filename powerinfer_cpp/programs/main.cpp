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

#include "console/console.h"
#include "conversation.h"
#include "engine.h"
#include "generation.h"
#include "interactive.h"
#include "moved_experts.h"
#include "options/options.h"
#include "plan.h"
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

// `powerinfer` of the installation that this program is part of; "" if it is part of none. It is
// looked for there alone: whoever can write there can change this program, too.
std::filesystem::path powerinfer_program() {
    namespace fs = std::filesystem;
    // lib/python3.11/site-packages/powerinfer_cpp/bin/main and bin/powerinfer
    fs::path folder = own_path().parent_path();
    for (const char* name : {"bin", "powerinfer_cpp"}) {
        if (folder.filename() != name) return "";
        folder = folder.parent_path();
    }
    const fs::path name = folder.filename();
    if (name != "site-packages" && name != "dist-packages") return "";
    folder = folder.parent_path().parent_path().parent_path();
    std::error_code error;
    const fs::path program = folder / "bin" / "powerinfer";
    return fs::is_regular_file(program, error) ? program : "";
}

// Leaves a chat on a terminal to `powerinfer chat`, which edits lines, keeps a history and has
// commands. Returns if this program is to chat itself.
void leave_to_powerinfer(const Options& options) {
    const bool terminal =
        is_terminal(Stream::in) && is_terminal(Stream::out) && is_terminal(Stream::error);
    // It takes seeds of 31 bits.
    if (options.stays || !terminal || (!options.random_seed && options.sampler.seed >> 31)) return;
    const std::filesystem::path program = powerinfer_program();
    std::string why;
    const bool chats = !options.chat_template_file.empty() || find_chat_format(options, why) ||
                       !why.empty();  // a template that main does not know
    if (program.empty() || !chats) return;
    std::vector<std::string> words = {"chat", "--model=" + options.model};
    words.insert(words.end(), options.given.begin(), options.given.end());
    become(program, words);
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
    interrupted = 0;  // it ended the text, and not its line
    end_line();
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
        settle_moved_experts(options);
        return print_plan(options) ? 0 : exit_no_room;
    }
    if (options.conversation || may_chat(options)) leave_to_powerinfer(options);
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
    settle_moved_experts(options);
    read_texts(options);
    if (options.random_seed)
        options.sampler.seed = std::random_device{}();  // 32 bits: short to retype
    try {
        return generate(options);
    } catch (const NoMemory& error) {
        complain(error.what());
        advise(ways_out(options));
        return exit_failure;
    }
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
