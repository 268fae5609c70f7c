// Any bytes as an adapter file: they must end in a session that computes with it, or in an Error
// after which the session computes as before. Through a file, as the loader reads it.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "engine/tiny_model.h"
#include "ggml/status.h"
#include "model/adapter.h"
#include "session/session.h"

namespace {

using namespace powerinfer;

// The last row's logits of a prompt.
std::vector<float> logits(Session& session) {
    const int32_t tokens[] = {1, 7, 30};
    pi_batch batch{};
    batch.struct_size = sizeof(batch);
    batch.n = 3;
    batch.token = tokens;
    session.truncate(0, 0);
    session.eval(batch);
    const float* last = session.result(2);
    return {last, last + session.model->config.n_vocab};
}

// A model with neuron rows, whose sizes the files of the corpus have.
Session& subject() {
    static const tiny::Folder folder;
    static Session session = [] {
        tiny::Shape shape;
        shape.n_embd = 16, shape.n_ff = 32, shape.n_layer = 1;
        shape.n_head = 2, shape.n_head_kv = 1, shape.head_dim = 8;
        shape.activation = "relu", shape.down_t = true;
        tiny::write(tiny::describe(shape), folder / "model.gguf");
        pi_model_params how = pi_model_default_params();
        how.n_threads = 1;
        pi_session_params params = pi_session_default_params();
        params.n_ctx = params.n_batch = params.n_ubatch = 4;
        params.n_threads = params.n_threads_batch = 1;
        return Session(Model::load(folder / "model.gguf", how), params);
    }();
    return session;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const tiny::Folder folder;
    static const std::vector<float> plain = logits(subject());
    Session& session = subject();
    const std::string path = folder / "adapter.gguf";
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(data), std::streamsize(size));
    try {
        session.set_adapters({{std::make_shared<const Adapter>(session.model, path), 0.5f}});
        logits(session);
        session.set_adapters({});
    } catch (const ggml::Error&) {
    }
    if (logits(session) != plain) {
        std::fprintf(stderr, "the adapter has left something behind\n");
        std::abort();
    }
    return 0;
}
