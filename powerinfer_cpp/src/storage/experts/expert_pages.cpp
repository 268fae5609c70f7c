#include "storage/experts/expert_pages.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "ggml/carver.h"
#include "ggml/crc32c.h"
#include "ggml/sizes.h"
#include "ggml/status.h"

namespace powerinfer {

namespace {

constexpr uint64_t kAlign = 4096;  // the most that a disk wants
constexpr uint64_t kLine = 64;

uint64_t page_of(const StoredPage& page) {
    uint64_t bytes = 0;
    for (const StoredMatrix& m : page) bytes = ggml::size_sum(bytes, m.room());
    return bytes;
}

}  // namespace

uint64_t StoredMatrix::window() const {
    // What is read may begin and end within a unit of the disk.
    return ggml::size_rounded_up(ggml::size_sum(bytes(), kAlign), kAlign) + kAlign;
}

uint64_t StoredMatrix::room() const {
    return ggml::size_rounded_up(uint64_t(matrix.bytes()), kLine);
}

void set_classes(PageShape& shape, const std::vector<StoredPage>& pages, int most) {
    std::vector<uint64_t> sizes;  // of each part's largest page
    for (size_t part = 0; part + 1 < shape.before.size(); part++) {
        uint64_t page = 0;
        for (int64_t block = shape.before[part]; block < shape.before[part + 1]; block++) {
            const StoredPage& of = pages[size_t(block)];
            page = std::max(page, page_of(of));
            uint64_t landing = 0;
            for (const StoredMatrix& m : of) landing = ggml::size_sum(landing, m.window());
            shape.landing = std::max(shape.landing, landing);
        }
        sizes.push_back(page);
    }
    std::vector<uint64_t> classes = sizes;
    std::sort(classes.begin(), classes.end());
    classes.erase(std::unique(classes.begin(), classes.end()), classes.end());
    if (!classes.empty() && classes[0] == 0) classes.erase(classes.begin());
    // Sizes beyond the number of classes share that of the next larger one.
    while (int(classes.size()) > most) classes.erase(classes.end() - 2);
    for (uint64_t page : classes) shape.classes.push_back({page, 0});
    for (uint64_t size : sizes) {
        const auto fits = std::lower_bound(classes.begin(), classes.end(), size);
        shape.class_of.push_back(size ? int32_t(fits - classes.begin()) : -1);
    }
}

static_assert(sizeof(StoredPage) + 3 * sizeof(StoredMatrix) + 2 * sizeof(int32_t) +
                  sizeof(int64_t) <=
              PageShape::kTables);

ExpertPages::ExpertPages(const PageShape& shape, std::vector<StoredPage> blocks, uint32_t align,
                         const char* what)
    : shape_(shape),
      blocks_(std::move(blocks)),
      align_(align),
      what_(what),
      landings_memory_(ggml::size_product(uint64_t(shape.landings), shape.landing), "experts"),
      landings_(size_t(shape.landings)),
      frame_(size_t(shape.n_blocks()), -1),
      landing_(size_t(shape.n_blocks()), -1),
      crc_(size_t(shape.n_blocks()), -1) {
    uint64_t frames = 0, tables = 0;
    for (int32_t i = 0; i < int32_t(shape.classes.size()); i++) {
        const PageShape::Class& of = shape.classes[size_t(i)];
        Class c;
        c.begin = frames;
        c.first = int32_t(frames_.size());
        c.at_slot.resize(size_t(of.slots));
        for (int64_t k = 0; k < of.slots + shape.in_use; k++) {
            const auto frame = int32_t(frames_.size());
            const bool cached = k < of.slots;
            frames_.push_back({-1, cached ? int32_t(k) : -1, 0});
            if (cached) c.at_slot[size_t(k)] = frame;
            if (!cached) c.free.push_back(frame);
        }
        frames += ggml::size_product(uint64_t(of.slots + shape.in_use), of.page);
        tables += ggml::carved_bytes<Residency>(shape.residency(i));
        classes_.push_back(std::move(c));
    }
    frames_memory_ = ggml::Memory(frames, "experts");
    tables_ = ggml::Memory(tables, "tables of experts");
    ggml::Carver carver(tables_);
    ResidencyOptions options;
    options.half_life = kExpertHalfLife;
    for (size_t i = 0; i < classes_.size(); i++) {
        classes_[i].residency = Residency(carver, shape.residency(int32_t(i)), options);
    }
}

void ExpertPages::begin(int32_t n) {
    for (Class& c : classes_) c.residency.begin(n);
}

uint64_t ExpertPages::read_bytes(const StoredMatrix& m) const {
    return ggml::size_rounded_up(lead(m) + m.bytes(), align_);
}

uint64_t ExpertPages::reads_of(const StoredMatrix& m) const {
    return (read_bytes(m) + shape_.read - 1) / shape_.read;
}

bool ExpertPages::request(int32_t block) {
    // Its neighbours in the layer may be used next.
    classes_[size_t(class_of(block))].residency.pin(Half::gate, part_of(block));
    if (landing_[size_t(block)] >= 0) landings_[size_t(landing_[size_t(block)])].guess = false;
    if (requested(block) || land(block, false)) return true;
    drop_guesses();
    return land(block, false);
}

bool ExpertPages::guess(int32_t block, int64_t free) {
    if (requested(block)) return true;
    const int64_t n = std::count_if(landings_.begin(), landings_.end(),
                                    [](const Landing& l) { return l.block < 0; });
    return n > free && land(block, true);
}

// Finds a landing for a page.
bool ExpertPages::land(int32_t block, bool guess) {
    const auto free = std::find_if(landings_.begin(), landings_.end(),
                                   [](const Landing& l) { return l.block < 0; });
    if (free == landings_.end()) return false;
    landing_[size_t(block)] = int32_t(free - landings_.begin());
    *free = {};
    free->block = block;
    free->turn = turn_++;
    free->guess = guess;
    for (const StoredMatrix& m : blocks_[size_t(block)]) {
        free->matrix[free->n++].n = int32_t(reads_of(m));
    }
    return true;
}

void ExpertPages::drop_guesses() {
    for (Landing& l : landings_) {
        if (l.block >= 0 && l.guess && !l.dropped) drop(l);
    }
}

void ExpertPages::drop(Landing& l) {
    landing_[size_t(l.block)] = -1;
    l.dropped = true;
    free_dropped(l);
}

// A landing is free again when nothing is on its way there.
void ExpertPages::free_dropped(Landing& l) {
    int32_t n_done = 0;
    for (int32_t k = 0; k < l.n; k++) n_done += l.matrix[k].n_done;
    if (l.dropped && n_done == l.n_sent) l = {};
}

int32_t ExpertPages::n_reads(const Landing& l) const {
    int32_t n = 0;
    for (int32_t k = 0; k < l.n; k++) n += l.matrix[k].n;
    return n;
}

// The matrix whose reads are sent next, and the number of the first of them.
int32_t ExpertPages::unsent(const Landing& l, int32_t& number) const {
    int32_t k = 0;
    number = l.n_sent;
    while (number >= l.matrix[k].n) number -= l.matrix[k++].n;
    return k;
}

bool ExpertPages::next(ggml::Read& read, int32_t& file, bool guesses,
                       const std::vector<bool>& full) const {
    const Landing* first = nullptr;
    int32_t number = 0;
    for (const Landing& l : landings_) {
        if (l.block < 0 || l.dropped || l.guess != guesses || l.n_sent == n_reads(l)) continue;
        if (first && first->turn < l.turn) continue;
        const StoredMatrix& m = blocks_[size_t(l.block)][size_t(unsent(l, number))];
        if (full.empty() || !full[size_t(m.file)]) first = &l;
    }
    if (!first) return false;
    const auto i = size_t(first - landings_.data()), k = size_t(unsent(*first, number));
    const StoredPage& page = blocks_[size_t(first->block)];
    const uint64_t from = uint64_t(number) * shape_.read, left = read_bytes(page[k]) - from;
    uint8_t* to = landing_at(i) + from;
    for (size_t before = 0; before < k; before++) to += page[before].window();
    file = page[k].file;
    read.offset = page[k].offset - lead(page[k]) + from;
    read.n_pieces = 1;
    read.pieces[0] = {to, uint32_t(std::min(shape_.read, left))};
    read.tag = i * kMatrices + k;
    return true;
}

void ExpertPages::sent(const ggml::Read& read) {
    landings_[read.tag / kMatrices].n_sent++;
}

int32_t ExpertPages::done(uint64_t tag, bool failed) {
    Landing& l = landings_[tag / kMatrices];
    const int32_t block = l.guess || l.dropped ? -1 : l.block;
    l.matrix[tag % kMatrices].n_done++;
    const bool give_up = failed && l.guess && !l.dropped;
    give_up ? drop(l) : free_dropped(l);
    return block;
}

bool ExpertPages::complete(int32_t block) const {
    if (frame_[size_t(block)] >= 0) return true;
    if (landing_[size_t(block)] < 0) return false;
    const Landing& l = landings_[size_t(landing_[size_t(block)])];
    return std::all_of(l.matrix, l.matrix + l.n, [](const auto& m) { return m.n_done == m.n; });
}

// Packs stored rows. Returns a checksum of them, which does not depend on the number of threads.
uint32_t ExpertPages::pack(ggml::Context& context, const ggml::Matrix& m, const uint8_t* from,
                           uint8_t* to) const {
    constexpr int64_t kPiece = 8;  // strips
    const int64_t row = m.row_bytes(), strip = ggml::kStrip * row;
    const int64_t strips = (m.rows + ggml::kStrip - 1) / ggml::kStrip;
    std::atomic<uint32_t> sum{0};
    context.threads.run((strips + kPiece - 1) / kPiece, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t piece = begin; piece < end; piece++) {
            const int64_t first = piece * kPiece;
            const int64_t rows = std::min(kPiece * ggml::kStrip, m.rows - first * ggml::kStrip);
            const uint8_t* const source = from + first * strip;
            sum ^= ggml::crc32c(source, size_t(rows * row), uint32_t(piece));
            if (m.layout != ggml::Layout::strips) {
                std::memcpy(to + first * strip, source, size_t(rows * row));
                continue;
            }
            for (int64_t r = 0; r < rows; r += ggml::kStrip) {
                ggml::pack_strip(m.type, source + r * row, std::min(ggml::kStrip, rows - r), m.cols,
                                 to + first * strip + r * row);
            }
        }
    });
    return sum;
}

// Packs what has arrived of a page that has a frame.
void ExpertPages::pack(ggml::Context& context, Landing& l) {
    const auto i = size_t(&l - landings_.data());
    uint64_t begin = 0, room = 0;
    for (int32_t k = 0; k < l.n; k++) {
        const StoredMatrix& m = blocks_[size_t(l.block)][size_t(k)];
        auto& state = l.matrix[k];
        if (!state.packed && state.n_done == state.n) {
            const uint32_t crc = pack(context, m.matrix, landing_at(i) + begin + lead(m),
                                      at(l.block, l.frame) + room);
            l.crc ^= ggml::crc32c(&crc, sizeof(crc), uint32_t(k));
            l.n_packed++;
            state.packed = true;
        }
        begin += m.window();
        room += m.room();
    }
    if (l.n_packed == l.n) finish(l);
}

void ExpertPages::take_frame(Landing& l) {
    if (l.frame >= 0) return;
    std::vector<int32_t>& free = classes_[size_t(class_of(l.block))].free;
    if (free.empty()) throw ggml::Error(ggml::Code::internal, "all frames for experts are in use");
    l.frame = free.back();
    frames_[size_t(l.frame)].block = l.block;
    free.pop_back();
}

// All of a page is in its frame.
void ExpertPages::finish(Landing& l) {
    const int32_t block = l.block;
    int64_t& known = crc_[size_t(block)];
    const bool same = known < 0 || known == l.crc;
    known = known < 0 ? l.crc : known;
    if (same) {
        frame_[size_t(block)] = l.frame;
    } else {
        release(block, l.frame);
    }
    landing_[size_t(block)] = -1;
    l = {};
    if (same) return;
    throw ggml::Error(ggml::Code::format,
                      ggml::format("%s %d differs from what was read before: the file was damaged "
                                   "or changed while it was open",
                                   what_, block));
}

bool ExpertPages::pack(ggml::Context& context) {
    for (Landing& l : landings_) {
        const bool arrived = std::any_of(
            l.matrix, l.matrix + l.n, [](const auto& m) { return !m.packed && m.n_done == m.n; });
        if (!arrived || l.guess) continue;
        if (l.frame < 0 && classes_[size_t(class_of(l.block))].free.size() < 2) continue;
        take_frame(l);
        pack(context, l);
        return true;
    }
    return false;
}

const std::vector<ggml::Matrix>& ExpertPages::matrices(ggml::Context& context, int32_t block) {
    if (frame_[size_t(block)] < 0) {
        Landing& l = landings_[size_t(landing_[size_t(block)])];
        take_frame(l);
        pack(context, l);
    }
    uint8_t* data = at(block, frame_[size_t(block)]);
    frames_[size_t(frame_[size_t(block)])].uses++;
    matrices_.clear();
    for (const StoredMatrix& m : blocks_[size_t(block)]) {
        matrices_.push_back(m.matrix);
        matrices_.back().data = data;
        data += m.room();
    }
    return matrices_;
}

// A frame that is not in the cache, or no longer, is free again.
void ExpertPages::release(int32_t block, int32_t frame) {
    frame_[size_t(block)] = -1;
    frames_[size_t(frame)] = {};
    classes_[size_t(class_of(block))].free.push_back(frame);
}

void ExpertPages::keep(int32_t block, int64_t rows) noexcept {
    const int32_t part = part_of(block), frame = frame_[size_t(block)];
    if (frame < 0 || frames_[size_t(frame)].uses == 0) return;
    const bool last = --frames_[size_t(frame)].uses == 0;
    const auto expert = int32_t(block - shape_.before[size_t(part)]);
    Class& c = classes_[size_t(class_of(block))];
    if (rows) c.residency.count(Half::gate, part, &expert, 1, float(rows));
    if (frames_[size_t(frame)].slot >= 0 || !last) return;
    const int32_t slot = c.residency.admit(Half::gate, part, expert);
    if (slot < 0) return release(block, frame);
    int32_t& place = c.at_slot[size_t(slot)];
    Frame& victim = frames_[size_t(place)];
    if (victim.uses > 0) {
        victim.slot = -1;  // its own keep() frees the frame
    } else {
        if (victim.block >= 0) frame_[size_t(victim.block)] = -1;
        victim = {};
        c.free.push_back(place);
    }
    place = frame;
    frames_[size_t(frame)].slot = slot;
}

void ExpertPages::stop() {
    for (Landing& l : landings_) {
        int32_t sent = l.n_sent;
        for (int32_t k = 0; k < l.n; k++) {
            l.matrix[k].n = std::min(l.matrix[k].n, sent);
            sent -= l.matrix[k].n;
        }
    }
}

void ExpertPages::forget() {
    for (Landing& l : landings_) {
        if (l.block < 0) continue;
        if (l.frame >= 0) release(l.block, l.frame);
        if (!l.dropped) landing_[size_t(l.block)] = -1;
        l = {};
    }
    for (size_t i = 0; i < frames_.size(); i++) {
        frames_[i].uses = 0;
        const Frame frame = frames_[i];
        if (frame.block >= 0 && frame.slot < 0) release(frame.block, int32_t(i));
    }
}

int64_t ExpertPages::used() const {
    return std::count_if(frames_.begin(), frames_.end(),
                         [](const Frame& f) { return f.block >= 0 && f.slot >= 0; });
}

void ExpertPages::profile(const std::vector<RankedPart>& pages) {
    for (Class& c : classes_) c.residency.profile(pages);
}

std::vector<RankedPart> ExpertPages::ranked() const {
    std::vector<RankedPart> all;
    for (const Class& c : classes_) {
        const std::vector<RankedPart> some = c.residency.resident();
        all.insert(all.end(), some.begin(), some.end());
    }
    return all;
}

std::vector<int32_t> ExpertPages::wanted() const {
    std::vector<RankedPart> all;
    for (const Class& c : classes_) {
        const std::vector<RankedPart> some = c.residency.wanted();
        all.insert(all.end(), some.begin(), some.end());
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const RankedPart& a, const RankedPart& b) { return a.worth > b.worth; });
    std::vector<int32_t> blocks;
    for (const RankedPart& p : all) {
        blocks.push_back(int32_t(shape_.before[size_t(p.block)]) + p.id);
    }
    return blocks;
}

}  // namespace powerinfer
