// What macOS alone has.
#include <fcntl.h>
#include <mach/mach.h>
#include <sys/sysctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "os/posix.h"

namespace ggml::os {

timespec modified(const struct stat& st) {
    return st.st_mtimespec;
}

void use_huge_pages(void*, uint64_t) {}  // the system decides

uint64_t peak_bytes(long ru_maxrss) {
    return uint64_t(ru_maxrss);
}

// ---- files -----------------------------------------------------------------------------------

int set_direct(Handle& file, bool direct) {
    return fcntl(int(file), F_NOCACHE, direct ? 1 : 0) == 0 ? 0 : errno;
}

void read_anywhere(Handle file) {
    fcntl(int(file), F_RDAHEAD, 0);
}

void will_read(Handle file, uint64_t offset, uint64_t bytes) {
    radvisory range{off_t(offset), int(std::min<uint64_t>(bytes, 1 << 30))};
    fcntl(int(file), F_RDADVISE, &range);
}

// A file's pages cannot be stored or dropped in part.
void begin_to_store(Handle, uint64_t, uint64_t) {}
void end_to_store(Handle, uint64_t, uint64_t) {}

int store(Handle file) {
    // fsync leaves data in the disk's own cache. Not every file system has F_FULLFSYNC.
    if (fcntl(int(file), F_FULLFSYNC) == 0 || fsync(int(file)) == 0) return 0;
    return errno;
}

// ---- processors and memory -------------------------------------------------------------------

namespace {

// A number that the system tells by name; `otherwise` if it does not.
int told(const char* name, int otherwise) {
    int n = 0;
    size_t size = sizeof(n);
    return sysctlbyname(name, &n, &size, nullptr, 0) == 0 && n > 0 ? n : otherwise;
}

}  // namespace

int usable_processors(const std::string&) {
    return int(std::max(1u, std::thread::hardware_concurrency()));
}

Fast fast_processors(const std::string& root) {
    const int all = usable_processors(root);
    // Level 0 are the performance cores of Apple's processors; Intel's have no levels.
    return {told("hw.perflevel0.logicalcpu", all),
            told("hw.perflevel0.physicalcpu", told("hw.physicalcpu", all))};
}

double cpu_quota(const std::string&) {
    return 1e9;
}

uint64_t free_memory(const std::string&) {
    vm_statistics64_data_t pages{};
    mach_msg_type_number_t n = HOST_VM_INFO64_COUNT;
    if (host_statistics64(mach_host_self(), HOST_VM_INFO64, reinterpret_cast<host_info64_t>(&pages),
                          &n) != KERN_SUCCESS)
        return kUnknown;
    // Speculative pages are counted as free. Inactive ones and caches of files are given up first.
    return (uint64_t(pages.free_count) + pages.inactive_count + pages.purgeable_count) *
           page_size();
}

}  // namespace ggml::os
