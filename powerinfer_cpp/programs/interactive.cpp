#include "interactive.h"

#include <vector>

#include "console/console.h"
#include "engine.h"
#include "generation.h"
#include "texts.h"

namespace {

// A line of stdin; the next ones, too, after a backslash at its end. False at the end of the input.
bool read_lines(std::string& text) {
    text.clear();
    std::string line;
    bool more = true;
    while (more) {
        if (!read_users_line(line)) return !text.empty();
        more = !line.empty() && line.back() == '\\';
        if (more) line.back() = '\n';
        text += line;
    }
    return true;
}

// The tokens of the user's text. ended: the model had ended its own; a reverse prompt follows then.
std::vector<int32_t> users_tokens(const pi_model* model, const Options& o, const std::string& text,
                                  bool ended) {
    std::vector<int32_t> ids;
    const auto add = [&](const std::string& part, bool special) {
        if (part.empty()) return;
        const std::vector<int32_t> found = tokenize(model, part, special);
        ids.insert(ids.end(), found.begin(), found.end());
    };
    if (ended && !o.stops.empty()) add(o.stops[0], true);
    if (text.empty()) return ids;  // the model goes on
    add(o.in_prefix, true);
    add(o.escape ? unescape(text) : text, false);
    add(o.in_suffix, true);
    return ids;
}

// Lets the user say something; false at the end of the input.
bool take_turn(Generation& generation, const Options& options, bool ended) {
    if (ended) put("\n" + (options.stops.empty() ? "" : options.stops[0]));
    std::vector<int32_t> ids;
    for (;;) {
        put(options.in_prefix);
        std::string text;
        if (!read_lines(text)) return false;
        if (!text.empty()) put(options.in_suffix);
        ids = users_tokens(generation.model(), options, text, ended);
        // The last token of the model's text is not evaluated yet; it comes first.
        const size_t n_shown = generation.pending() >= 0 ? 1 : 0;
        if (n_shown > 0) ids.insert(ids.begin(), generation.pending());
        const int32_t left =
            pi_session_n_ctx(generation.session()) - pi_sequence_length(generation.session(), 0);
        if (ids.size() <= size_t(left)) {
            if (!ids.empty()) generation.read(ids, n_shown);
            return true;
        }
        const std::string why = "the line takes " + std::to_string(ids.size()) +
                                " positions, the context has " + std::to_string(left) +
                                " left (-c)";
        if (!is_terminal(Stream::in)) throw Failure(why);
        complain(why);
    }
}

}  // namespace

void interact(Generation& generation, const Options& options) {
    generation.read_prompt();
    if (options.interactive_first && !take_turn(generation, options, false)) return;
    while (!generation.full()) {
        bool ended = false;
        try {
            ended = generation.generate();
        } catch (const Interrupted&) {
            catch_interrupts();  // the user's turn
        }
        if (generation.full() || !take_turn(generation, options, ended)) return;
    }
}
