// Any bytes as a chat template: recognising it must end in a format or in words.
#include <cstdint>
#include <string_view>

#include "chat.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    recognise_chat(std::string_view(reinterpret_cast<const char*>(data), size));
    return 0;
}
