#include "conversation.h"

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "console/console.h"
#include "engine.h"
#include "generation.h"

namespace {

class Conversation {
 public:
    Conversation(Generation& generation, const ChatFormat& format, const Options& options);
    void run();

 private:
    bool take_turn(const std::string& message);
    std::vector<int32_t> chat_ids(const std::vector<ChatPart>& parts) const;
    int32_t control_token(const std::string& text) const;

    Generation& generation_;
    const ChatFormat& format_;
    const Options& options_;
    const pi_model* model_;
    bool begun_ = false;  // the cache holds a turn
};

Conversation::Conversation(Generation& generation, const ChatFormat& format, const Options& options)
    : generation_(generation), format_(format), options_(options), model_(generation.model()) {
    // If the vocabulary has no tokens for the template's marks, their texts end a turn.
    for (const ChatPart& part : format.next(""))
        if (part.kind == ChatPart::control && control_token(part.content) < 0)
            generation.stop_at(part.content);
}

void Conversation::run() {
    std::string message = options_.prompt;
    bool given = !message.empty();
    while (!generation_.full()) {
        if (!given) {
            if (is_terminal(Stream::in)) std::fputs("> ", stderr);
            if (!read_users_line(message)) return;
        }
        given = false;
        if (message.empty()) continue;
        const bool finished = take_turn(message);
        put("\n");
        if (options_.single_turn) {
            if (!finished) throw Interrupted{};
            return;
        }
    }
}

// Answers a message; false if Ctrl-C interrupted it.
bool Conversation::take_turn(const std::string& message) {
    std::vector<int32_t> ids =
        chat_ids(begun_ ? format_.next(message) : format_.first(options_.system, message));
    const int32_t bos = pi_token_bos(model_);
    const bool has_bos = !ids.empty() && ids[0] == bos;
    if (!begun_ && !has_bos && bos >= 0 && pi_token_add_bos(model_)) ids.insert(ids.begin(), bos);
    // The last token of the previous answer is not evaluated yet; it comes first.
    const size_t n_shown = generation_.pending() >= 0 ? 1 : 0;
    if (n_shown > 0) ids.insert(ids.begin(), generation_.pending());

    const int32_t before = pi_sequence_length(generation_.session(), 0);
    const int32_t left = pi_session_n_ctx(generation_.session()) - before;
    if (ids.size() > size_t(left)) {
        const std::string why = "the message takes " + std::to_string(ids.size()) +
                                " positions, the context has " + std::to_string(left) +
                                " left (-c)";
        if (options_.single_turn || !is_terminal(Stream::in)) throw Failure(why);
        complain(why);
        return true;
    }
    bool heard = false;
    try {
        generation_.read(ids, n_shown);
        heard = begun_ = true;
        generation_.generate();
    } catch (const Interrupted&) {
        catch_interrupts();
        // A message that was not read completely is removed.
        if (heard) return false;
        if (pi_sequence_length(generation_.session(), 0) < before) {
            throw Failure(
                "the conversation cannot go on: reading the message took the memory of "
                "what came before (--swa-full keeps all)");
        }
        require(pi_sequence_truncate(generation_.session(), 0, before));
        return false;
    }
    return true;
}

std::vector<int32_t> Conversation::chat_ids(const std::vector<ChatPart>& parts) const {
    std::vector<int32_t> ids;
    std::string text;
    // Only parts of the template become control tokens, never the text of a message.
    const auto flush = [&] {
        const std::vector<int32_t> found = tokenize(model_, text, false);
        ids.insert(ids.end(), found.begin(), found.end());
        text.clear();
    };
    for (const ChatPart& part : parts) {
        int32_t token = -1;
        if (part.kind == ChatPart::bos) token = pi_token_bos(model_);
        if (part.kind == ChatPart::eos) token = pi_token_eos(model_);
        if (part.kind == ChatPart::control) token = control_token(part.content);
        if (token < 0) {
            text += part.content;
            continue;
        }
        flush();
        ids.push_back(token);
    }
    flush();
    return ids;
}

// -1 if the vocabulary has no control token with this text.
int32_t Conversation::control_token(const std::string& text) const {
    const std::vector<int32_t> ids = tokenize(model_, text, true);
    const bool control = ids.size() == 1 && token_text(model_, ids[0], false).empty();
    return control ? ids[0] : -1;
}

}  // namespace

std::optional<ChatFormat> find_chat_format(const Options& options, std::string& why) {
    const std::string there_are =
        std::string(known_chats) + "); `powerinfer chat` runs any template";
    if (!options.chat_template.empty()) {
        const std::string& given = options.chat_template;
        std::optional<ChatFormat> format = named_chat(given);
        if (!format) format = recognise_chat(given);
        const bool is_name = given.size() <= 40 && given.find('{') == given.npos;
        if (!format)
            why = (is_name ? "the chat template '" + given + "'" : "this chat template") +
                  " is unknown to main (it knows " + there_are;
        return format;
    }
    pi_gguf* opened = nullptr;
    require(pi_gguf_open(options.model.c_str(), &opened));
    const std::unique_ptr<pi_gguf, Release<pi_gguf_free>> gguf(opened);
    for (int64_t i = 0; i < pi_gguf_n_values(opened); i++) {
        const char* key;
        size_t length;
        pi_value_type type, element_type;
        uint64_t count;
        require(pi_gguf_value(opened, i, &key, &length, &type, &element_type, &count));
        if (std::string_view(key, length) != "tokenizer.chat_template" || type != PI_STRING)
            continue;
        const char* source;
        require(pi_gguf_string(opened, i, 0, &source, &length));
        const std::optional<ChatFormat> format = recognise_chat({source, length});
        if (!format)
            why = options.model + ": main does not know its chat template (only " + there_are;
        return format;
    }
    return std::nullopt;
}

void converse(Generation& generation, const ChatFormat& format, const Options& options) {
    Conversation(generation, format, options).run();
}
