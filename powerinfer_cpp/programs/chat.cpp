#include "chat.h"

#include <algorithm>
#include <cctype>
#include <ctime>

const char* const known_chats = "chatml, llama-2, llama-3, mistral, gemma and zephyr";

namespace {

// Templates differ in the spaces and quotes of their code. This removes white space outside
// literals and turns all quotes into single ones.
std::string squeeze(std::string_view source) {
    std::string out;
    char quote = 0;
    for (size_t i = 0; i < source.size(); i++) {
        const char c = source[i];
        if (!quote && std::isspace(uint8_t(c))) continue;
        if (c == '\\' && quote && i + 1 < source.size()) {
            out += c;
            out += source[++i];
        } else if ((c == '\'' || c == '"') && (!quote || quote == c)) {
            quote = quote ? 0 : c;
            out += '\'';
        } else {
            out += c;
        }
    }
    return out;
}

bool contains(std::string_view text, std::string_view part) {
    return text.find(part) != text.npos;
}

std::string trimmed(const std::string& text) {
    static const char* const white = " \t\n\v\f\r";
    const size_t begin = text.find_first_not_of(white);
    if (begin == text.npos) return "";
    return text.substr(begin, text.find_last_not_of(white) + 1 - begin);
}

// Some templates, such as Qwen's, have a default system message.
std::string chatml_default_system(std::string_view source) {
    for (const std::string_view start : {"<|im_start|>system\\n", "<|im_start|>system\n"}) {
        for (size_t at = 0; (at = source.find(start, at)) != source.npos;) {
            at += start.size();
            const size_t end = source.find_first_of("'\"<{\\", at);
            if (end != source.npos && end > at && source.compare(end, 10, "<|im_end|>") == 0)
                return std::string(source.substr(at, end - at));
        }
    }
    return "";
}

std::string today() {
    static const char* const months[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                         "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    const std::time_t now = std::time(nullptr);
    const std::tm date = *std::localtime(&now);  // main has one thread
    const std::string day = std::to_string(date.tm_mday);
    return (day.size() < 2 ? "0" : "") + day + " " + months[date.tm_mon] + " " +
           std::to_string(date.tm_year + 1900);
}

ChatFormat chatml(std::string_view source) {
    ChatFormat f = {};
    f.name = "chatml";
    f.system = "{<|im_start|>}system\n{system}{<|im_end|>}\n";
    f.user = "{<|im_start|>}user\n{user}{<|im_end|>}\n{<|im_start|>}assistant\n";
    f.after = "{<|im_end|>}\n";
    f.default_system = chatml_default_system(source);
    return f;
}

ChatFormat llama3(std::string_view source) {
    ChatFormat f = {};
    f.name = "llama-3";
    std::string dates;
    if (contains(source, "Cutting Knowledge Date: December 2023")) {  // Llama 3.1 and later
        f.always_system = true;
        dates = "Cutting Knowledge Date: December 2023\nToday Date: " +
                (contains(source, "strftime_now") ? today() : "26 Jul 2024") + "\n\n";
    }
    const std::string head = "{<|start_header_id|>}", neck = "{<|end_header_id|>}\n\n";
    f.system = head + "system" + neck + dates + "{system}{<|eot_id|>}";
    f.user = head + "user" + neck + "{user}{<|eot_id|>}" + head + "assistant" + neck;
    f.after = "{<|eot_id|>}";
    return f;
}

ChatFormat llama2(const std::string& squeezed) {
    ChatFormat f = {};
    f.name = "llama-2";
    f.system_in_user = "<<SYS>>\n{system}\n<</SYS>>\n\n{user}";
    f.user = "[INST] {user} [/INST]";
    f.trim_joined = true;
    f.after = contains(squeezed, "bos_token+'[INST]") ? " {eos}{bos}" : " {eos}";
    return f;
}

// The versions differ only in their spaces.
ChatFormat mistral(const std::string& squeezed) {
    ChatFormat f = {};
    f.name = "mistral";
    f.system_in_user = "{system}\n\n{user}";
    f.user = contains(squeezed, "' [INST] '")  ? " {[INST]} {user}"
             : contains(squeezed, "'[INST] '") ? "{[INST]} {user}"
                                               : "{[INST]}{user}";
    f.user += contains(squeezed, "' [/INST]'") ? " {[/INST]}" : "{[/INST]}";
    f.after = contains(squeezed, "eos_token+' '") ? "{eos} " : "{eos}";
    return f;
}

ChatFormat gemma() {
    ChatFormat f = {};
    f.name = "gemma";
    f.system_in_user = "{system}\n\n{user}";
    f.user = "{<start_of_turn>}user\n{user}{<end_of_turn>}\n{<start_of_turn>}model\n";
    f.after = "{<end_of_turn>}\n";
    return f;
}

ChatFormat zephyr() {
    ChatFormat f = {};
    f.name = "zephyr";
    f.system = "{<|system|>}\n{system}{eos}\n";
    f.user = "{<|user|>}\n{user}{eos}\n{<|assistant|>}\n";
    f.after = "{eos}\n";
    return f;
}

// Appends the parts of a pattern. Adjacent texts are joined, so that the tokenizer sees them as
// one.
void append(const std::string& pattern, const std::string& system, const std::string& user,
            std::vector<ChatPart>& parts) {
    const auto text = [&](const std::string& piece) {
        if (piece.empty()) return;
        if (parts.empty() || parts.back().kind != ChatPart::text)
            parts.push_back({ChatPart::text, ""});
        parts.back().content += piece;
    };
    for (size_t i = 0; i < pattern.size();) {
        const size_t open = std::min(pattern.find('{', i), pattern.size());
        text(pattern.substr(i, open - i));
        if (open == pattern.size()) break;
        const size_t close = pattern.find('}', open);
        const std::string name = pattern.substr(open + 1, close - open - 1);
        if (name == "user") {
            text(user);
        } else if (name == "system") {
            text(system);
        } else if (name == "bos" || name == "eos") {
            parts.push_back({name == "bos" ? ChatPart::bos : ChatPart::eos, ""});
        } else {
            parts.push_back({ChatPart::control, name});
        }
        i = close + 1;
    }
}

std::string replaced(std::string pattern, const std::string& system, const std::string& user) {
    // Replaces from the end, so that braces in a message are not taken for a field.
    const size_t at_user = pattern.rfind("{user}");
    pattern.replace(at_user, 6, user);
    return pattern.replace(pattern.find("{system}"), 8, system);
}

}  // namespace

std::vector<ChatPart> ChatFormat::first(const std::string& system_text,
                                        std::string user_text) const {
    std::string words = system_text.empty() ? default_system : system_text;
    if (trim && !trim_joined) {
        user_text = trimmed(user_text);
        if (system_in_user.empty()) words = trimmed(words);
    }
    std::vector<ChatPart> parts;
    if (bos) parts.push_back({ChatPart::bos, ""});
    if (!words.empty() || always_system) {
        if (system_in_user.empty()) {
            append(system, words, "", parts);
        } else {
            user_text = replaced(system_in_user, words, user_text);
        }
    }
    append(user, "", trim && trim_joined ? trimmed(user_text) : user_text, parts);
    return parts;
}

std::vector<ChatPart> ChatFormat::next(const std::string& user_text) const {
    std::vector<ChatPart> parts;
    append(after + user, "", trim ? trimmed(user_text) : user_text, parts);
    return parts;
}

std::optional<ChatFormat> named_chat(const std::string& name) {
    ChatFormat format;
    if (name == "chatml") {
        format = chatml("");
    } else if (name == "llama3") {
        format = llama3("");
        format.trim = true;
    } else if (name == "llama2" || name == "llama2-sys" || name == "llama2-sys-bos" ||
               name == "llama2-sys-strip") {
        format = llama2("");
        format.after = name == "llama2-sys-bos" ? "{eos}{bos}" : "{eos}";
        if (name == "llama2") format.system_in_user = "{system}\n{user}";
        format.trim = name == "llama2-sys-strip";
        format.trim_joined = false;
    } else if (name == "mistral-v1") {
        format = mistral("' [INST] '' [/INST]'");
    } else if (name == "mistral-v3") {
        format = mistral("'[INST] '");
    } else if (name == "mistral-v3-tekken") {
        format = mistral("");
    } else if (name == "gemma") {
        format = gemma();
        format.trim = true;
    } else if (name == "zephyr") {
        format = zephyr();
    } else {
        return std::nullopt;
    }
    return format;
}

std::optional<ChatFormat> recognise_chat(std::string_view source) {
    const std::string squeezed = squeeze(source);
    std::optional<ChatFormat> format;
    // <|im_sep|> (Phi 4) and [SYSTEM_PROMPT] (Mistral from version 7) mark other formats.
    if (contains(source, "<|im_start|>") && contains(source, "<|im_end|>") &&
        !contains(source, "<|im_sep|>")) {
        format = chatml(source);
    } else if (contains(source, "<|start_header_id|>") && contains(source, "<|eot_id|>")) {
        format = llama3(source);
    } else if (contains(source, "[INST]") && contains(source, "<<SYS>>")) {
        format = llama2(squeezed);
    } else if (contains(source, "[INST]") && !contains(source, "[SYSTEM_PROMPT]")) {
        format = mistral(squeezed);
    } else if (contains(source, "<start_of_turn>") && contains(source, "<end_of_turn>")) {
        format = gemma();
    } else if (contains(squeezed, "'<|user|>\\n'+message['content']+eos_token") &&
               contains(source, "<|assistant|>")) {
        format = zephyr();
    }
    if (!format) return format;
    format->bos = contains(source, "bos_token");
    // Mistral's templates trim only answers.
    for (const char* words : {"content']|trim", "content|trim", "content.strip()"})
        if (contains(squeezed, words) && !contains(source, "[/INST]")) format->trim = true;
    if (contains(squeezed, "content.strip()+' [/INST]'")) format->trim = true;
    return format;
}
