// Missing files and non-files, memory that cannot be allocated, and available_memory() on imitated
// systems.
#ifndef _WIN32
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "check.h"
#include "ggml/file_io.h"
#include "ggml/sizes.h"
#include "ggml/threads.h"
#include "temporary.h"

using namespace ggml;
namespace fs = std::filesystem;

namespace {

fs::path folder;

std::string make(const std::string& name, const std::string& content) {
    const fs::path path = folder / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << content;
    return path.string();
}

std::string message(const std::string& path) {
    try {
        File file(path);
    } catch (const Error& e) {
        return e.what();
    }
    return "";
}

void files() {
    const std::string missing = (folder / "missing").string(), empty = make("empty", "");
    CHECK_THROWS(io, File(missing));
    CHECK(message(missing) == missing + ": there is no such file");
    CHECK_THROWS(io, File(folder.string()));
    CHECK(message(folder.string()) == folder.string() + ": is a directory, not a file");
    CHECK_THROWS(io, File(empty));
    CHECK(message(empty) == empty + ": is empty");
#ifdef _WIN32
    CHECK(message("NUL") == "NUL: is not a regular file");
#else
    CHECK_THROWS(io, File("/dev/null"));
    const std::string pipe = (folder / "pipe").string();
    CHECK(mkfifo(pipe.c_str(), 0600) == 0);
    CHECK(message(pipe) == pipe + ": is not a regular file");  // without waiting for a writer
#endif
    CHECK_THROWS(io, File(missing + "/below"));
    CHECK_THROWS(io, File(""));

    const std::string path = make("digits", "0123456789");
    const File file(path);
    CHECK(file.size() == 10 && file.path() == path);
    char text[11] = {};
    file.read(0, text, 10);
    CHECK(std::strcmp(text, "0123456789") == 0);
    file.read(7, text, 3);
    CHECK(std::memcmp(text, "789", 3) == 0);
    file.read(10, text, 0);
    CHECK_THROWS(io, file.read(8, text, 3));
    CHECK_THROWS(io, file.read(11, text, 0));
    CHECK_THROWS(io, file.read(UINT64_MAX, text, 2));
    CHECK_THROWS(io, file.read(2, text, SIZE_MAX));
    fs::resize_file(path, 4);  // truncated while open: a short read must throw
    file.read(0, text, 4);
    CHECK_THROWS(io, file.read(2, text, 4));
}

std::string content(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
}

// Names in UTF-8, whatever the system's own encoding is.
void written() {
    const fs::path place = folder / fs::u8path(
                                        "gr\xc3\xb6\xc3\x9f"
                                        "e \xe6\x97\xa5\xe6\x9c\xac");
    const std::string path = place.u8string();
    CHECK(!file_exists(path));
    CHECK(message(path) == path + ": there is no such file");
    {
        OutputFile file(path);
        file.write("first\n", 6);
        CHECK_THROWS(io, OutputFile(path));  // somebody is writing it
        CHECK(!file_exists(path) && file_exists(path + ".part"));
        file.finish();
    }
    CHECK(content(place) == "first\n" && File(path).size() == 6 && !file_exists(path + ".part"));
    { OutputFile(path).write("abandoned", 9); }
    CHECK(content(place) == "first\n" && !file_exists(path + ".part"));
    const std::string large(size_t(70) << 20, 'x');
    OutputFile second(path);
    second.write(large.data(), large.size());
    second.write("end", 3);
    second.finish();
    CHECK(content(place) == large + "end");
    CHECK(same_file(path, path) && !same_file(path, make("another", "x")));
    const File file(path);
    file.require_unchanged();
    fs::resize_file(place, 5);
    CHECK_THROWS(format, file.require_unchanged());
    fs::remove(place);  // while it is open
    char text[5];
    file.read(0, text, 5);
    CHECK(!std::memcmp(text, "xxxxx", 5));
    CHECK_THROWS(io, OutputFile((folder / "no" / "folder").string()));
}

void folders() {
    CHECK(folder_of("a/b/c") == "a/b" && folder_of("/a") == "/" && folder_of("a") == ".");
#ifdef _WIN32
    CHECK(folder_of("a\\b") == "a" && folder_of("C:\\a\\b") == "C:\\a");
    CHECK(folder_of("C:\\a") == "C:\\" && folder_of("C:a") == "C:" && folder_of("\\a") == "\\");
#endif
    const fs::path inner = folder / fs::u8path("\xc3\xa4") / "b" / "c";
    make_folders(inner.u8string());
    make_folders(inner.u8string());
    CHECK(fs::is_directory(inner) && may_write_in(inner.u8string()));
    CHECK(!may_write_in((folder / "missing").string()));
    const uint64_t left = free_disk(inner.u8string());
    CHECK(left > 0 && left != kUnknownBytes);
    CHECK_THROWS(io, make_folders((make("a_file", "x") + "/below")));
}

void mappings() {
    std::string content(20000, 'a');
    content.back() = 'z';
    const File file(make("mapped", content));
    const Mapping mapping(file);
    CHECK(mapping.size() == 20000 && std::memcmp(mapping.data(), content.data(), 20000) == 0);
    file.will_read(5000, 100);
    file.will_read(0, UINT64_MAX);
    file.will_read(UINT64_MAX, 1);
}

void memory() {
    for (uint64_t bytes : {uint64_t(1), uint64_t(4097), (uint64_t(2) << 20) - 1,
                           (uint64_t(2) << 20) + 1, uint64_t(9) << 20}) {
        Memory m(bytes, "a test");
        CHECK(m.size() == bytes && m.data() != nullptr);
        CHECK(reinterpret_cast<uintptr_t>(m.data()) % (bytes < 2 << 20 ? 4096 : 2 << 20) == 0);
        bool zero = true;
        for (uint64_t i = 0; i < bytes; i++) zero = zero && m.data()[i] == 0;
        CHECK(zero);
        m.data()[bytes - 1] = 1;
        uint8_t* data = m.data();
        Memory n = std::move(m);
        CHECK(m.data() == nullptr && m.size() == 0 && n.data() == data && n.size() == bytes);
        m = std::move(n);
        CHECK(m.as<uint8_t>()[bytes - 1] == 1);
    }
    CHECK(Memory(0, "nothing").data() == nullptr);
    Memory().lock();
    CHECK_THROWS(memory, Memory(UINT64_MAX, "a test"));
    CHECK_THROWS(memory, Memory(uint64_t(1) << 60, "a test"));
    try {
        Memory(uint64_t(1) << 60, "the KV cache");
    } catch (const Error& e) {
        CHECK(std::strstr(e.what(), "1073741824.00 GiB for the KV cache"));
    }
}

void process() {
    CHECK(available_memory() > 0 && peak_memory() > 1 << 20);
    const double before = cpu_seconds();
    volatile double x = 1;
    for (int i = 0; i < 100000000 && cpu_seconds() - before < 0.02; i++) x = x * 0.5 + 1;
    CHECK(before >= 0 && cpu_seconds() > before);
}

#ifndef _WIN32
// Locking beyond the limit. Root may lock anyway; then nothing is tested.
void locking() {
    rlimit old{}, none{};
    getrlimit(RLIMIT_MEMLOCK, &old);
    none.rlim_max = old.rlim_max;
    setrlimit(RLIMIT_MEMLOCK, &none);
    const File file(make("locked", "x"));
    const Mapping mapping(file);
    const Memory m(100000, "a test");
    if (geteuid() != 0) {
        CHECK_THROWS(memory, mapping.lock(0, 1));
        CHECK_THROWS(memory, m.lock());
    }
    setrlimit(RLIMIT_MEMLOCK, &old);
}
#endif

#ifdef __linux__
// Locking a range locks its own pages only.
void locking_a_range() {
    if (check::kSanitized) return;  // sanitizers make mlock() do nothing
    const uint64_t page = uint64_t(sysconf(_SC_PAGESIZE));
    const File file(make("range", std::string(size_t(20 * page), 'a')));
    const Mapping mapping(file);
    const uint64_t before = check::locked_bytes();
    const auto locks = [&](uint64_t offset, uint64_t n, uint64_t pages) {
        mapping.lock(offset, n);
        CHECK(check::locked_bytes() == before + pages * page);
    };
    try {
        locks(3 * page, page, 1);
    } catch (const Error&) {
        return;  // not allowed to this user
    }
    locks(3 * page + 100, 10, 1);
    locks(7 * page - 1, 2, 3);
    locks(19 * page, UINT64_MAX, 4);
    locks(20 * page, 1, 4);
    locks(0, 0, 4);
}
#endif

void sizes() {
    constexpr uint64_t half = uint64_t(1) << 63;
    static_assert(size_product(3, 5, 7) == 105 && size_sum(1, 2, 3, 4) == 10);
    static_assert(size_product(half, 1) == half && size_product(half, 2) == kMostBytes);
    static_assert(size_product(half, 2, 1) == kMostBytes && size_product(half, 4, 0) == 0);
    static_assert(size_product(uint64_t(1) << 32, uint64_t(1) << 32) == kMostBytes);
    static_assert(size_sum(half, half) == kMostBytes && size_sum(kMostBytes, 0) == kMostBytes);
    static_assert(size_rounded_up(0, 64) == 0 && size_rounded_up(65, 64) == 128);
    static_assert(size_rounded_up(kMostBytes - 5, 64) == kMostBytes);
}

#ifdef __linux__
// An imitated system: /proc files, mounts of both cgroup versions, and files of the cgroups.
void available() {
    const uint64_t MiB = 1 << 20;
    const auto at = [](const std::string& name) { return (folder / name).string(); };
    const auto group = [](const std::string& dir, bool v2, const std::string& limit, uint64_t use,
                          uint64_t cache) {
        make(dir + (v2 ? "/memory.max" : "/memory.limit_in_bytes"), limit + "\n");
        make(dir + (v2 ? "/memory.current" : "/memory.usage_in_bytes"), std::to_string(use) + "\n");
        make(dir + "/memory.stat", "anon 1\ninactive_file " + std::to_string(v2 ? cache : 0) +
                                       "\ntotal_inactive_file " + std::to_string(v2 ? 0 : cache) +
                                       "\n");
    };
    const std::string v2_mount =
        "30 24 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    make("plain/proc/meminfo",
         "MemTotal: 4096000 kB\nMemFree: 1 kB\nMemAvailable:    2048000 kB\n");
    CHECK(available_memory(at("plain")) == uint64_t(2048000) << 10);

    make("v2/proc/meminfo", "MemAvailable: 2048000 kB\n");
    make("v2/proc/self/cgroup", "0::/user/job\n");
    make("v2/proc/self/mountinfo", "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n" + v2_mount);
    group("v2/sys/fs/cgroup/user/job", true, "max", 5 * MiB, 0);
    group("v2/sys/fs/cgroup/user", true, std::to_string(100 * MiB), 60 * MiB, 20 * MiB);
    CHECK(available_memory(at("v2")) == 60 * MiB);  // the parent's limit, without its cache
    group("v2/sys/fs/cgroup/user/job", true, std::to_string(50 * MiB), 30 * MiB, 0);
    CHECK(available_memory(at("v2")) == 20 * MiB);
    group("v2/sys/fs/cgroup/user/job", true, std::to_string(50 * MiB), 70 * MiB, 1 * MiB);
    CHECK(available_memory(at("v2")) == 0);

    // In a container: the mount begins at the cgroup itself, or the path is outside of it.
    make("inner/proc/meminfo", "MemAvailable: 2048000 kB\n");
    make("inner/proc/self/cgroup", "0::/docker/abc/sub\n");
    make("inner/proc/self/mountinfo",
         "30 24 0:26 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    group("inner/sys/fs/cgroup/sub", true, std::to_string(7 * MiB), 0, 0);
    group("inner/sys/fs/cgroup", true, std::to_string(9 * MiB), 0, 0);
    CHECK(available_memory(at("inner")) == 7 * MiB);
    make("inner/proc/self/cgroup", "0::/docker/abcd/sub\n");
    CHECK(available_memory(at("inner")) == 9 * MiB);
    make("inner/proc/self/cgroup", "0::/../other\n");
    make("inner/proc/self/mountinfo", v2_mount);
    CHECK(available_memory(at("inner")) == 9 * MiB);

    make("v1/proc/meminfo", "MemAvailable: 2048000 kB\n");
    make("v1/proc/self/cgroup", "5:cpu,cpuacct:/elsewhere\n4:hugetlb,memory:/a/b\n0::/\n");
    make("v1/proc/self/mountinfo",
         v2_mount + "32 31 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
             "33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n");
    group("v1/sys/fs/cgroup/memory", false, "9223372036854771712", 90 * MiB, 0);
    group("v1/sys/fs/cgroup/memory/a/b", false, "9223372036854771712", 40 * MiB, 0);
    group("v1/sys/fs/cgroup/memory/a", false, std::to_string(64 * MiB), 40 * MiB, 8 * MiB);
    group("v1/sys/fs/cgroup/cpu/elsewhere", false, std::to_string(1 * MiB), 0, 0);
    CHECK(available_memory(at("v1")) == 32 * MiB);

    // What the kernel can take back is free, however often it was read; not what has to be written
    // first, nor memory that is shared without a file.
    const auto files = [](const std::string& dir, const std::vector<std::string>& names_and_texts) {
        for (size_t i = 0; i < names_and_texts.size(); i += 2) {
            make(dir + "/" + names_and_texts[i], names_and_texts[i + 1] + "\n");
        }
    };
    const auto mib = [](uint64_t n) { return std::to_string(n << 20); };
    const std::string second = "v2/sys/fs/cgroup/user/job";
    files(second,
          {"memory.max", mib(700), "memory.current", mib(690), "memory.stat",
           "anon 1\nfile 9\nshmem " + mib(50) + "\nfile_dirty " + mib(7) + "\nfile_writeback " +
               mib(3) + "\ninactive_anon " + mib(50) + "\ninactive_file " + mib(100) +
               "\nactive_file " + mib(400) + "\nunevictable " + mib(60) + "\nslab_reclaimable " +
               mib(20) + "\nslab_unreclaimable " + mib(40) + "\nslab " + mib(60)});
    files("v2/sys/fs/cgroup/user", {"memory.max", "max"});
    CHECK(available_memory(at("v2")) == 520 * MiB);  // 10 + 100 + 400 + 20 - 7 - 3
    files(second, {"memory.high", mib(600), "memory.swap.max", mib(4000)});
    CHECK(available_memory(at("v2")) == 420 * MiB);
    files(second, {"memory.high", "max", "memory.max", "max"});
    CHECK(available_memory(at("v2")) == uint64_t(2048000) << 10);
    files("v2/sys/fs/cgroup/user", {"memory.high", mib(150)});  // of the parent, which uses 60
    CHECK(available_memory(at("v2")) == 110 * MiB);

    const std::string first = "v1/sys/fs/cgroup/memory/a";
    files(first, {"memory.limit_in_bytes", mib(64), "memory.usage_in_bytes", mib(60), "memory.stat",
                  "cache 5\nactive_file 7\nhierarchical_memory_limit 1\ntotal_cache 9\n"
                  "total_dirty " +
                      mib(4) + "\ntotal_writeback 0\ntotal_inactive_file " + mib(10) +
                      "\ntotal_active_file " + mib(30) + "\ntotal_unevictable " + mib(3)});
    CHECK(available_memory(at("v1")) == 40 * MiB);
    files(first, {"memory.memsw.limit_in_bytes", mib(96), "memory.memsw.usage_in_bytes", mib(75)});
    CHECK(available_memory(at("v1")) == 40 * MiB);  // swap is no memory
    files(first, {"memory.memsw.usage_in_bytes", mib(100)});
    CHECK(available_memory(at("v1")) == 32 * MiB);

    make("broken/proc/meminfo", "MemAvailable: lots\n");
    make("broken/proc/self/cgroup", "\n:\n4:memory\n0::\n4:memory:\n");
    make("broken/proc/self/mountinfo", "\n- cgroup2\n1 2 3 / /x rw\n");
    CHECK(available_memory(at("broken")) == UINT64_MAX);

#if !defined(__SANITIZE_ADDRESS__)  // it reserves terabytes of address space
    make("plain/proc/self/status", "Name: x\nVmSize:   1024 kB\n");
    rlimit old{}, limit{};
    getrlimit(RLIMIT_AS, &old);
    limit.rlim_cur = 1000 * MiB, limit.rlim_max = old.rlim_max;
    if (setrlimit(RLIMIT_AS, &limit) == 0) {
        CHECK(available_memory(at("plain")) == 999 * MiB);
        CHECK_THROWS(memory, Memory(1000 * MiB, "a test"));
        setrlimit(RLIMIT_AS, &old);
    }
#endif
}
#endif

}  // namespace

int main() {
    const TemporaryFolder temporary("test_file_io");
    folder = temporary.path();
    files();
    written();
    folders();
    mappings();
    memory();
    process();
    sizes();
#ifndef _WIN32
    locking();
#endif
#ifdef __linux__
    locking_a_range();
    available();
#endif
    return check::summary("test_file_io");
}
