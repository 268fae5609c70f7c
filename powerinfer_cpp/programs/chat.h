// Chat formats that main supports. They are recognised by characteristic strings of their
// templates. main does not run templates; the Python package does.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

// A part of a prompt.
struct ChatPart {
    enum Kind { text, control, bos, eos } kind;
    std::string content;  // the text; for control: the text of the control token
};

// Patterns. {user} and {system} stand for messages, {bos} and {eos} for those tokens, and any other
// {name} for the control token with that text.
struct ChatFormat {
    const char* name;
    std::string system;          // a separate system message; "": none
    std::string system_in_user;  // or: the first user message with the system text
    std::string user;            // a user message, and the beginning of its answer
    std::string after;           // the end of an answer that another message follows
    std::string default_system;  // if the user gives none
    bool always_system = false;  // write a system message even if it is empty
    bool trim = false;           // remove white space at both ends of messages
    bool trim_joined = false;    // ... after the system and user texts are joined
    bool bos = false;            // BOS comes first, even if the vocabulary does not add it

    // The parts before the first answer, or before a later one (beginning with the end of the last
    // answer).
    std::vector<ChatPart> first(const std::string& system_text, std::string user_text) const;
    std::vector<ChatPart> next(const std::string& user_text) const;
};

// The format of a template (tokenizer.chat_template); nothing if it is unknown.
std::optional<ChatFormat> recognise_chat(std::string_view source);
// The format that has this name in llama.cpp; nothing if it is unknown.
std::optional<ChatFormat> named_chat(const std::string& name);
// Their names, for messages.
extern const char* const known_chats;
