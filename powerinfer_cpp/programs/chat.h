// Chat formats that main knows. They are recognised by what their templates must contain; running
// templates is left to Python.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

// A stretch of a prompt.
struct ChatPart {
    enum Kind { text, control, bos, eos } kind;
    std::string content;  // of text; of control: the control token's text
};

// Texts in which {user} and {system} stand for messages, {bos} and {eos} for those tokens, and any
// other {name} for the control token of this name.
struct ChatFormat {
    const char* name;
    std::string system;          // a message of its own; "": none
    std::string system_in_user;  // or how it is put before the first user's message
    std::string user;            // a user's message, and what begins the answer to it
    std::string after;           // what ends the answer where another message follows
    std::string default_system;  // where the user names none
    bool always_system = false;  // there is a system message even where both are empty
    bool trim = false;           // messages lose white space at both ends
    bool trim_joined = false;    // the system's and the user's only when they are put together
    bool bos = false;            // BOS goes first, whatever the vocabulary says

    // What goes before the first answer, or before a later one: then the end of the last comes
    // first.
    std::vector<ChatPart> first(const std::string& system_text, std::string user_text) const;
    std::vector<ChatPart> next(const std::string& user_text) const;
};

// The format of a template (tokenizer.chat_template), nothing where it is not known.
std::optional<ChatFormat> recognise_chat(std::string_view source);
// Their names, for messages.
extern const char* const known_chats;
