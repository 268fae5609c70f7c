// Canonical decomposition and composition of Unicode (UAX 15, NFD and NFC), with the tables of the
// package tokenizers (Unicode 9), which vocabularies were trained with.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace powerinfer {

// Code points of a text in NFD: each is divided, and marks are brought into order.
void decompose(std::vector<uint32_t>& points);

// A text in NFC. Bytes that are not UTF-8 stay as they are.
std::string composed(std::string_view text);

}  // namespace powerinfer
