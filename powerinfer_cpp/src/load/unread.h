// What nobody read of a file: keys and tensors that its family does not know.
//
// A file is understood only if everything in it that changes results was read. Families need no
// list of their own: a key is known if somebody asked for it (Gguf::asked), a tensor if a
// WeightSpec names it. The lists in unread.cpp tell what else may be there.
#pragma once

#include "base/notes.h"
#include "model/model.h"

namespace powerinfer {

// Keys of the model's architecture. Throws Error(unsupported) naming file and key if one changes
// results and has another value than what the engine computes with; with `allow` that is a warning.
// Keys about which nothing is known give one warning, with at most five of their names. Other keys
// (general.*, tokenizer.*, powerinfer.*, those of other tools) are none of its business.
void check_unread_keys(const Model& model, bool allow, Notes& notes);

// Throws Error(unsupported) for a file whose architecture no family has: it says which families are
// nearest by their tensors and what those lack, and which keys and tensors no family knows. Uses
// model.config and model.layers as room.
[[noreturn]] void refuse_unknown_family(Model& model);
// Is this a key of the architecture that changes nothing where nobody asks for it?
bool is_harmless_key(std::string_view name, std::string_view architecture);

// Tensors, after resolve_weights(). Throws Error(unsupported) naming file and tensor for one that
// no WeightSpec names, unless it is known to be harmless; with `allow` that is a warning. Throws
// Error(io).
void check_unread_tensors(const Model& model, bool allow, Notes& notes);

}  // namespace powerinfer
