// Values that a caller gives in place of those in a file.
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "ggml/gguf.h"
#include "ggml/status.h"

namespace ggml {

struct Gguf::Given {
    std::string key;
    std::vector<uint8_t> bytes;  // of the value, as in a file
};

namespace {

const char* kind(const Override::Of& value) {
    static const char* const kinds[] = {"a truth value", "an integer", "a number", "a string"};
    return kinds[value.index()];
}

template <typename T>
std::vector<uint8_t> bytes_of(T value) {
    std::vector<uint8_t> bytes(sizeof(value));
    std::memcpy(bytes.data(), &value, sizeof(value));
    return bytes;
}

}  // namespace

void Gguf::override_value(const Override& given) {
    const std::string_view key = given.key;
    const auto refuse = [&](const std::string& why) {
        throw Error(Code::argument, path_ + ": override of " + std::string(key) + ": " + why);
    };
    if (key.empty()) throw Error(Code::argument, "an override has an empty key");
    if (key == "general.alignment" || key.substr(0, 6) == "split.")
        refuse("this key says how the file is laid out");
    const auto known = value_index_.find(key);
    const Value* old = known == value_index_.end() ? nullptr : &values_[known->second].second;
    if (old && old->is_array()) refuse("the file's value is an array");
    const auto require = [&](bool same) {
        if (!old || same) return;
        refuse(std::string("the file's value has type ") + name(old->type()) + ", not " +
               kind(given.value));
    };

    const auto kept = std::make_shared<Given>();
    kept->key = given.key;
    Value value;
    if (const auto* truth = std::get_if<bool>(&given.value)) {
        require(old && old->is_bool());
        value.type_ = ValueType::boolean;
        kept->bytes = {uint8_t(*truth)};
    } else if (const auto* integer = std::get_if<int64_t>(&given.value)) {
        require(old && old->is_integer());
        value.type_ = ValueType::i64;
        kept->bytes = bytes_of(*integer);
    } else if (const auto* number = std::get_if<double>(&given.value)) {
        const bool is_double = old && old->type() == ValueType::f64;
        require(is_double || (old && old->type() == ValueType::f32));
        // Files have floats, whose value is meant: 0.1 is the float nearest to that.
        const double most = is_double ? std::numeric_limits<double>::max()
                                      : double(std::numeric_limits<float>::max());
        if (!(std::abs(*number) <= most)) refuse("the number is not finite");
        value.type_ = is_double ? ValueType::f64 : ValueType::f32;
        kept->bytes = is_double ? bytes_of(*number) : bytes_of(float(*number));
    } else {
        const auto& text = std::get<std::string>(given.value);
        require(old && old->is_string());
        value.type_ = ValueType::string;
        kept->bytes = bytes_of(uint64_t(text.size()));
        kept->bytes.insert(kept->bytes.end(), text.begin(), text.end());
        value.starts_ = {0};
    }
    value.element_ = value.type_;
    value.data_ = kept->bytes.data();
    if (old) {
        values_[known->second].second = std::move(value);
    } else {
        value_index_.emplace(kept->key, values_.size());
        values_.emplace_back(kept->key, std::move(value));
        asked_.emplace_back(false);
        added_.push_back(kept);
    }
    given_.push_back(kept);
}

std::string Gguf::unasked() const {
    const size_t n_own = values_.size() - added_.size();
    for (size_t i = 0; i < added_.size(); i++)
        if (!asked(n_own + i)) return added_[i]->key;
    return "";
}

std::string Gguf::overridden() const {
    std::string all;
    for (const auto& given : given_) {
        all += given->key + '\0';
        all.append(given->bytes.begin(), given->bytes.end());
    }
    return all;
}

}  // namespace ggml
