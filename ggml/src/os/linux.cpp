// What Linux alone has.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

#include "ggml/sizes.h"
#include "os/posix.h"

namespace ggml::os {

timespec modified(const struct stat& st) {
    return st.st_mtim;
}

void use_huge_pages(void* memory, uint64_t bytes) {
    madvise(memory, bytes, MADV_HUGEPAGE);
}

uint64_t peak_bytes(long ru_maxrss) {
    return uint64_t(ru_maxrss) * 1024;
}

// ---- files -----------------------------------------------------------------------------------

int set_direct(Handle& file, bool direct) {
    const int flags = fcntl(int(file), F_GETFL);
    const int wanted = direct ? flags | O_DIRECT : flags & ~O_DIRECT;
    return fcntl(int(file), F_SETFL, wanted) == 0 ? 0 : errno;
}

void read_anywhere(Handle file) {
    posix_fadvise(int(file), 0, 0, POSIX_FADV_RANDOM);
}

void will_read(Handle file, uint64_t offset, uint64_t bytes) {
    posix_fadvise(int(file), off_t(offset), off_t(bytes), POSIX_FADV_WILLNEED);
}

void begin_to_store(Handle file, uint64_t begin, uint64_t end) {
    sync_file_range(int(file), off_t(begin), off_t(end - begin), SYNC_FILE_RANGE_WRITE);
}

void end_to_store(Handle file, uint64_t begin, uint64_t end) {
    constexpr unsigned all =
        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    sync_file_range(int(file), off_t(begin), off_t(end - begin), all);
    posix_fadvise(int(file), off_t(begin), off_t(end - begin), POSIX_FADV_DONTNEED);
}

int store(Handle file) {
    if (fsync(int(file)) != 0) return errno;
    posix_fadvise(int(file), 0, 0, POSIX_FADV_DONTNEED);
    return 0;
}

// ---- processors ------------------------------------------------------------------------------

namespace {

// Finds the value after `key` in lines like "MemAvailable:  123 kB" or "inactive_file 123".
template <typename T>
bool find_value(const std::string& path, const std::string& key, T& value) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        std::string word;
        if (words >> word && word == key && words >> value) return true;
    }
    return false;
}

// The numbers of the processors that this thread may run on, at least one.
std::vector<int> allowed_processors(const std::string& root) {
    std::vector<int> numbers;
    std::string list;
    if (find_value(root + "/proc/thread-self/status", "Cpus_allowed_list:", list)) {  // "0-3,8"
        std::istringstream parts(list);
        for (std::string part; std::getline(parts, part, ',');) {
            int first = 0, last = 0;
            const int n = std::sscanf(part.c_str(), "%d-%d", &first, &last);
            if (n == 1) last = first;
            for (int cpu = first; n > 0 && cpu <= last; cpu++) numbers.push_back(cpu);
        }
    }
    cpu_set_t set;
    CPU_ZERO(&set);
    if (numbers.empty() && sched_getaffinity(0, sizeof(set), &set) == 0) {
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
            if (CPU_ISSET(cpu, &set)) numbers.push_back(cpu);
    }
    if (numbers.empty()) {
        const int all = int(std::max(1u, std::thread::hardware_concurrency()));
        for (int cpu = 0; cpu < all; cpu++) numbers.push_back(cpu);
    }
    return numbers;
}

}  // namespace

int usable_processors(const std::string& root) {
    return int(allowed_processors(root).size());
}

Fast fast_processors(const std::string& root) {
    const std::vector<int> allowed = allowed_processors(root);
    const auto file_of = [&](int cpu, const char* name) {
        return std::ifstream(root + "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + name);
    };
    std::vector<long> speeds(allowed.size());  // as the kernel rates them: 1024 for the fastest
    for (size_t i = 0; i < allowed.size(); i++) {
        if (file_of(allowed[i], "/cpu_capacity") >> speeds[i]) continue;
        speeds.assign(allowed.size(), 1);  // all are the same
        break;
    }
    const long most = *std::max_element(speeds.begin(), speeds.end());
    int n = 0;
    std::set<std::string> cores;  // by the list of their processors
    for (size_t i = 0; i < allowed.size(); i++) {
        if (2 * speeds[i] < most) continue;
        n++;
        std::string core;
        if (!(file_of(allowed[i], "/topology/thread_siblings_list") >> core))
            core = std::to_string(allowed[i]);  // alone
        cores.insert(core);
    }
    return {n, int(cores.size())};
}

#ifdef GGML_AMX
bool may_use_tiles() {
    constexpr int request = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM of asm/prctl.h
    return syscall(SYS_arch_prctl, request, tile_data) == 0;
}
#endif

// The quota of this process's cgroups (v1 and v2).
double cpu_quota(const std::string& root) {
    double cores = 1e9;
    std::ifstream self(root + "/proc/self/cgroup");
    for (std::string line; std::getline(self, line);) {
        const size_t a = line.find(':'), b = line.find(':', a + 1);
        if (a == std::string::npos || b == std::string::npos) continue;
        const std::string controllers = line.substr(a + 1, b - a - 1);
        const bool v2 = controllers.empty();
        if (!v2 && controllers.find("cpu") == std::string::npos) continue;
        for (std::string path = line.substr(b + 1);; path.resize(path.rfind('/'))) {
            double quota = -1, period = 100000;
            if (v2) {
                std::ifstream max(root + "/sys/fs/cgroup" + path + "/cpu.max");
                if (!(max >> quota >> period)) quota = -1;  // "max" is not a number
            } else {
                const std::string folder = root + "/sys/fs/cgroup/cpu" + path;
                std::ifstream q(folder + "/cpu.cfs_quota_us");
                std::ifstream p(folder + "/cpu.cfs_period_us");
                if (!(q >> quota) || !(p >> period)) quota = -1;
            }
            if (quota > 0 && period > 0) cores = std::min(cores, quota / period);
            if (path.find('/') == std::string::npos) break;
        }
    }
    return cores;
}

// ---- free memory -----------------------------------------------------------------------------

namespace {

// False if the file is missing or contains "max".
bool read_number(const std::string& path, uint64_t& value) {
    std::ifstream file(path);
    return bool(file >> value);
}

bool has_item(const std::string& list, const std::string& item) {
    return ("," + list + ",").find("," + item + ",") != std::string::npos;
}

// Bytes that the kernel takes back from a cgroup before it lets an allocation fail, as it does
// outside of cgroups for MemAvailable: pages of files, how often they were ever read ("active"),
// and caches of names. Not pages that have to be written first; memory shared without a file and
// locked pages are on other lists. Version 1 does not say how much of its kernel memory are such
// caches.
uint64_t reclaimable(const std::string& dir, bool v2) {
    const auto is = [v2](const std::string& word, const char* in_v2, const char* in_v1) {
        return word == (v2 ? in_v2 : in_v1);
    };
    uint64_t kept = 0, unwritten = 0, value = 0;
    std::ifstream file(dir + "/memory.stat");
    for (std::string word; file >> word >> value;) {
        if (is(word, "inactive_file", "total_inactive_file") ||
            is(word, "active_file", "total_active_file")) {
            kept = size_sum(kept, value);
        } else if (is(word, "file_dirty", "total_dirty") ||
                   is(word, "file_writeback", "total_writeback")) {
            unwritten = size_sum(unwritten, value);
        } else if (is(word, "slab_reclaimable", "")) {
            kept = size_sum(kept, value);
        }
    }
    return kept - std::min(kept, unwritten);
}

// Bytes that one cgroup has left: of memory.max, and of memory.high, beyond which it is slowed down
// until it gives up pages. Version 1 may also limit memory and swap together. Swap is no memory: a
// model in it would be read from the disk for every token.
uint64_t left_in_cgroup(const std::string& dir, bool v2) {
    struct Limit {
        const char *most, *use;
    };
    static constexpr Limit of_v2[] = {{"/memory.max", "/memory.current"},
                                      {"/memory.high", "/memory.current"}};
    static constexpr Limit of_v1[] = {
        {"/memory.limit_in_bytes", "/memory.usage_in_bytes"},
        {"/memory.memsw.limit_in_bytes", "/memory.memsw.usage_in_bytes"}};
    uint64_t left = kUnknown;
    const uint64_t free = reclaimable(dir, v2);
    for (const Limit& limit : v2 ? of_v2 : of_v1) {
        uint64_t most = 0, use = 0;
        if (!read_number(dir + limit.most, most)) continue;
        if (read_number(dir + limit.use, use)) use -= std::min(use, free);
        left = std::min(left, most - std::min(most, use));
    }
    return left;
}

// The smallest value for the cgroup `path` and its parents up to the mount point. In a container
// the mount may begin at an inner cgroup (`mount_root`), or the path may not be visible at all.
uint64_t left_in_hierarchy(std::string path, const std::string& mount_root,
                           const std::string& mount_point, bool v2) {
    if (mount_root != "/") {
        const bool inside = path.compare(0, mount_root.size(), mount_root) == 0 &&
                            (path.size() == mount_root.size() || path[mount_root.size()] == '/');
        path = inside ? path.substr(mount_root.size()) : "";
    }
    if (path == "/" || path.find("/..") != std::string::npos) path.clear();
    uint64_t left = kUnknown;
    for (;; path.resize(path.rfind('/'))) {
        left = std::min(left, left_in_cgroup(mount_point + path, v2));
        if (path.empty() || path[0] != '/') return left;
    }
}

uint64_t left_in_cgroups(const std::string& root) {
    std::string v1_path, v2_path;
    std::ifstream self(root + "/proc/self/cgroup");
    for (std::string line; std::getline(self, line);) {  // "4:memory:/a/b", v2: "0::/a/b"
        const size_t a = line.find(':');
        const size_t b = a == std::string::npos ? a : line.find(':', a + 1);
        if (b == std::string::npos) continue;
        const std::string controllers = line.substr(a + 1, b - a - 1);
        if (controllers.empty()) v2_path = line.substr(b + 1);
        if (has_item(controllers, "memory")) v1_path = line.substr(b + 1);
    }
    uint64_t left = kUnknown;
    std::ifstream mounts(root + "/proc/self/mountinfo");
    for (std::string line; std::getline(mounts, line);) {
        // id parent device root point options [tags] - type source super_options
        std::istringstream words(line);
        std::string word, mount_root, point, type, options;
        words >> word >> word >> word >> mount_root >> point;
        while (words >> word && word != "-") {
        }
        words >> type >> word >> options;
        if (type == "cgroup2" && !v2_path.empty())
            left = std::min(left, left_in_hierarchy(v2_path, mount_root, root + point, true));
        if (type == "cgroup" && has_item(options, "memory") && !v1_path.empty())
            left = std::min(left, left_in_hierarchy(v1_path, mount_root, root + point, false));
    }
    return left;
}

}  // namespace

uint64_t free_memory(const std::string& root) {
    uint64_t left = kUnknown, kib = 0;
    if (find_value(root + "/proc/meminfo", "MemAvailable:", kib)) left = kib << 10;
    left = std::min(left, left_in_cgroups(root));
    rlimit limit{};
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        find_value(root + "/proc/self/status", "VmSize:", kib)) {
        const uint64_t space = limit.rlim_cur;
        left = std::min(left, space - std::min(space, kib << 10));
    }
    return left;
}

}  // namespace ggml::os
