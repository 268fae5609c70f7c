#include "timed/config.h"

#include <algorithm>
#include <cstdlib>

#include "ggml/file_io.h"
#include "ggml/status.h"

namespace ggml::timed {

Config Config::parse(const std::string& id) {
    Config c;
    struct Number {
        const char* name;
        double* value;
    };
    const Number numbers[] = {{"memory", &c.memory}, {"bandwidth", &c.bandwidth},
                              {"link", &c.link},     {"node", &c.node},
                              {"launch", &c.launch}, {"flag", &c.flag},
                              {"fired", &c.fired},   {"proposed", &c.proposed},
                              {"level", &c.level},   {"skew", &c.skew}};
    const auto wrong = [&](const std::string& what) {
        return Error(Code::device, "device \"" + id + "\": " + what);
    };
    for (size_t begin = id.find(':') + 1; begin < id.size();) {
        const size_t end = std::min(id.find(',', begin), id.size());
        const std::string item = id.substr(begin, end - begin);
        begin = end + 1;
        const size_t equals = item.find('=');
        if (equals == std::string::npos) throw wrong("\"" + item + "\" is not key=value");
        const std::string key = item.substr(0, equals), value = item.substr(equals + 1);
        if (key == "rates") {
            c.rates = value;
            continue;
        }
        double* number = nullptr;
        for (const Number& n : numbers) {
            if (key == n.name) number = n.value;
        }
        if (!number) throw wrong("there is no key \"" + key + "\"");
        char* rest = nullptr;
        *number = std::strtod(value.c_str(), &rest);
        const bool whole = !value.empty() && *rest == '\0';
        if (!whole || !(*number == *number) || (*number < 0 && key != "level")) {
            throw wrong(key + " must be a number of 0 or more, not \"" + value + "\"");
        }
    }
    if (c.fired > 1) throw wrong("fired must be at most 1");
    if (!c.rates.empty()) {
        const File file(c.rates);
        c.rate.resize(size_t(file.size() / sizeof(float)));
        file.read(0, c.rate.data(), c.rate.size() * sizeof(float));
    }
    return c;
}

}  // namespace ggml::timed
