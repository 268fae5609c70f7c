// What posix.cpp takes from linux.cpp or macos.cpp.
#pragma once

#include <sys/stat.h>

#include "os/os.h"

namespace ggml::os {

timespec modified(const struct stat& st);
void use_huge_pages(void* memory, uint64_t bytes);
uint64_t peak_bytes(long ru_maxrss);

}  // namespace ggml::os
