#include "texts.h"

#include <cctype>

#include "console/console.h"

std::string unescape(const std::string& text) {
    static const std::string letters = "nrt'\"\\", meanings = "\n\r\t'\"\\";
    const auto hex = [&](size_t i) { return i < text.size() && std::isxdigit(uint8_t(text[i])); };
    std::string out;
    for (size_t i = 0; i < text.size(); i++) {
        const size_t letter =
            text[i] == '\\' && i + 1 < text.size() ? letters.find(text[i + 1]) : letters.npos;
        if (letter != letters.npos) {
            out += meanings[letter];
            i += 1;
        } else if (text[i] == '\\' && text.compare(i + 1, 1, "x") == 0 && hex(i + 2) &&
                   hex(i + 3)) {
            out += char(std::stoi(text.substr(i + 2, 2), nullptr, 16));
            i += 3;
        } else {
            out += text[i];
        }
    }
    return out;
}

void read_texts(Options& o) {
    // Editors end the last line with a newline. Like llama.cpp, do not count it as part of a text.
    const auto text_of = [](const std::string& file) {
        std::string text = read_file(file);
        drop_newline(text);
        return text;
    };
    if (!o.prompt_file.empty()) {
        o.prompt = o.prompt_binary ? read_file(o.prompt_file) : text_of(o.prompt_file);
    } else if (!o.prompt_given && !o.conversation && !o.interactive) {
        o.prompt = read_stdin();
        drop_newline(o.prompt);
    }
    if (!o.system_file.empty()) o.system = text_of(o.system_file);
    if (!o.chat_template_file.empty()) o.chat_template = read_file(o.chat_template_file);
    if (!o.escape) return;
    for (std::string* text : {&o.prompt, &o.in_prefix, &o.in_suffix}) *text = unescape(*text);
    for (std::string& stop : o.stops) stop = unescape(stop);
    for (std::string& breaker : o.dry_breakers) breaker = unescape(breaker);
}
