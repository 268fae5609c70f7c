#include "base/budget.h"

#include <utility>

#include "ggml/file_io.h"
#include "ggml/status.h"

namespace powerinfer {

using ggml::Code;
using ggml::Error;
using ggml::format;

namespace {

uint64_t free_ram() {
    constexpr uint64_t kMargin = 128 << 20;
    const uint64_t bytes = ggml::available_memory();
    return bytes > kMargin ? bytes - kMargin : 0;
}

}  // namespace

Reservation::Reservation(std::shared_ptr<Budget> budget, uint64_t bytes)
    : budget_(std::move(budget)), bytes_(bytes) {}

Reservation::~Reservation() {
    if (budget_) budget_->give_back(bytes_);
}

Reservation::Reservation(Reservation&& other) noexcept
    : budget_(std::move(other.budget_)), bytes_(std::exchange(other.bytes_, 0)) {}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(bytes_, other.bytes_);
    return *this;
}

std::shared_ptr<Budget> Budget::make(uint64_t asked) {
    return std::make_shared<Budget>("RAM", asked ? asked : free_ram(), asked != 0);
}

Reservation Budget::reserve(const std::string& what, uint64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const uint64_t left = limit_ - reserved_;
    if (bytes > left) {
        constexpr double kMiB = 1 << 20;
        const std::string needs =
            format("%s would take %.0f MiB of %s, and ", what.c_str(), double(bytes) / kMiB, kind_);
        if (given_ && reserved_) {
            throw Error(Code::memory,
                        needs + format("%.0f MiB are left of the %.0f MiB that may be used",
                                       double(left) / kMiB, double(limit_) / kMiB));
        }
        throw Error(Code::memory, needs + format("%.0f MiB may be used", double(left) / kMiB));
    }
    Reservation taken(shared_from_this(), bytes);
    reserved_ += bytes;
    return taken;
}

uint64_t Budget::reserved() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return reserved_;
}

void Budget::give_back(uint64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    reserved_ -= bytes;
}

}  // namespace powerinfer
