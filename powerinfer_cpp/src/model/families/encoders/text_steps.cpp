// What becomes of the vector of a text, in files of any family: dense layers (dense_2, dense_3) and
// heads that give scores (cls).
#include "ggml/status.h"
#include "model/families/family.h"

namespace powerinfer {

namespace {

using Act = TextStep::Act;

// Of powerinfer.dense.activations, one name for each dense layer.
Act activation_of(const ggml::Gguf& gguf, size_t i) {
    const char* const key = "powerinfer.dense.activations";
    const ggml::Value* v = gguf.find(key);
    if (!v) return Act::none;
    const auto refuse = [&](const std::string& why) {
        throw ggml::Error(ggml::Code::unsupported, gguf.path() + ": " + key + ": " + why);
    };
    if (!v->is_array() || !v->is_string() || v->count() <= i) {
        refuse("is not an array with a name for each dense layer");
    }
    const std::string_view name = v->string(i);
    if (name != "identity" && name != "tanh") {
        refuse("\"" + std::string(name.substr(0, 40)) + "\" is not supported");
    }
    return name == "tanh" ? Act::tanh : Act::none;
}

}  // namespace

void encode(const ggml::Gguf& gguf, Config& c) {
    const std::string key = c.architecture + ".attention.causal";
    if (gguf.boolean(key, false)) {
        throw ggml::Error(ggml::Code::unsupported,
                          gguf.path() + ": " + key + ": rows of this family see both sides");
    }
    c.encoder = true;
}

void see_both_sides(Attention& a) {
    a.both = true;
    if (a.window) a.window = a.window / 2 + 1;
}

void Weights::text_steps() {
    const ggml::Gguf& gguf = m.file.gguf;
    const auto add = [&](std::deque<TextStep>& to, const std::string& name) -> TextStep& {
        const int64_t width = to.empty() ? m.config.n_embd : to.back().w.rows;
        TextStep& step = to.emplace_back();
        step.w.rows = gguf.find_tensor(name + ".weight")->ne[1];  // the next step's width
        const std::string sizes = m.config.architecture + "." + name + "_feat_";
        gguf.integer(sizes + "in", width, width, width);
        gguf.integer(sizes + "out", step.w.rows, step.w.rows, step.w.rows);
        matrix(Part::head, name + ".weight", step.w.rows, width, &step.w);
        optional(Part::head, name + ".bias", step.w.rows, &step.bias);
        return step;
    };
    size_t n_dense = 0;
    for (const char* const name : {"dense_2", "dense_3"}) {
        if (!has(name + std::string(".weight"))) continue;
        add(m.dense, name).act = activation_of(gguf, n_dense++);
    }
    if (!has("cls.output.weight")) return;
    const bool modern = has("cls.norm.weight");
    if (has("cls.weight")) {
        TextStep& step = add(m.ranker, "cls");
        step.act = modern ? Act::gelu : Act::tanh;
        if (modern) norm("cls.norm", &step.norm.emplace(), step.w.rows);
    } else if (m.config.architecture == "bert") {
        m.config.notes.push_back(
            {2, gguf.path() +
                    ": the head that ranks has no tensor \"cls.weight\": converters have left out "
                    "the pooler of BERT's rankers, and scores are wrong then"});
    }
    add(m.ranker, "cls.output");
}

}  // namespace powerinfer
