// Options of the tools: --name value.
#pragma once

#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>

namespace tools {

class Arguments {
 public:
    Arguments(int argc, char** argv) {
        for (int i = 1; i < argc; i += 2) {
            const std::string name = argv[i];
            if (name.compare(0, 2, "--") != 0 || i + 1 == argc) {
                throw std::invalid_argument(name + ": options are --NAME VALUE");
            }
            values_[name.substr(2)] = argv[i + 1];
        }
    }
    std::string text(const char* name, const char* otherwise) {
        const auto found = values_.find(name);
        if (found == values_.end()) return otherwise;
        const std::string value = found->second;
        values_.erase(found);
        return value;
    }
    double number(const char* name, double otherwise) {
        const std::string value = text(name, "");
        if (value.empty()) return otherwise;
        char* end = nullptr;
        const double parsed = std::strtod(value.c_str(), &end);
        if (*end) throw std::invalid_argument(std::string(name) + " must be a number");
        return parsed;
    }
    int64_t whole(const char* name, int64_t otherwise) {
        return int64_t(number(name, double(otherwise)));
    }
    // After all options have been asked for.
    void no_more() const {
        if (values_.empty()) return;
        throw std::invalid_argument("there is no option --" + values_.begin()->first);
    }

 private:
    std::map<std::string, std::string> values_;
};

}  // namespace tools
