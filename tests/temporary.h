// A new folder in the system's temporary folder, which is removed with its owner.
#pragma once

#include <filesystem>
#include <random>
#include <string>

class TemporaryFolder {
 public:
    explicit TemporaryFolder(const std::string& name) {
        std::random_device random;
        do {
            path_ =
                std::filesystem::temp_directory_path() / (name + "." + std::to_string(random()));
        } while (!std::filesystem::create_directory(path_));
    }
    ~TemporaryFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;

    const std::filesystem::path& path() const { return path_; }

 private:
    std::filesystem::path path_;
};
