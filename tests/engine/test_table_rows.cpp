// Rows of a table that stays on the disk: the same as in memory, in any order, with faults, and
// whatever was asked for before.
#include <cmath>
#include <fstream>
#include <numeric>

#include "faulty_reader.h"
#include "ggml/check.h"
#include "storage/table_rows.h"
#include "temporary.h"

using namespace powerinfer;
using faulty::Fault;
using ggml::DType;
using ggml::Matrix;

namespace {

using Floats = std::vector<float>;

// A file with a table in its midst, and the floats of its rows.
struct Table {
    Table(const std::string& name, DType type, int64_t n_rows, int64_t n_cols)
        : path(name), rows(n_rows), cols(n_cols) {
        Floats values(size_t(rows * cols));
        for (size_t i = 0; i < values.size(); i++) values[i] = std::sin(float(i));
        const ggml::DTypeInfo& info = ggml::info(type);
        std::vector<uint8_t> bytes(size_t(info.size(rows * cols)));
        info.encode(values.data(), bytes.data(), rows * cols);
        all.resize(values.size());
        info.decode(bytes.data(), all.data(), rows * cols);
        std::ofstream file(path, std::ios::binary);
        file << std::string(offset, 'x');
        file.write(reinterpret_cast<const char*>(bytes.data()), std::streamsize(bytes.size()));
        file.close();
        matrix = {type, ggml::Layout::rows, rows, cols, nullptr};
    }
    Floats expected(const std::vector<int64_t>& ids) const {
        Floats found;
        for (int64_t id : ids) {
            found.insert(found.end(), all.begin() + id * cols, all.begin() + (id + 1) * cols);
        }
        return found;
    }

    static constexpr uint64_t offset = 1000;
    const std::string path;
    const int64_t rows, cols;
    Floats all;
    Matrix matrix;
};

Floats taken(TableRows& reader, const Table& table, const std::vector<int64_t>& ids) {
    Floats y(ids.size() * size_t(table.cols), NAN);
    reader.ask(ids.data(), int64_t(ids.size()), y.data());
    reader.wait();
    return y;
}

// More rows than reads are in flight, some of them twice, and all of them in the opposite order.
std::vector<int64_t> many(const Table& table) {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < 300; i++) ids.push_back((i * i * 37 + 11) % table.rows);
    ids.insert(ids.end(), {0, 0, table.rows - 1, 0});
    return ids;
}

void test_kinds(const std::string& folder) {
    for (const DType type : {DType::F32, DType::F16, DType::Q8_0, DType::Q4_0}) {
        for (const int64_t cols : {32, 160, 3072}) {
            const Table table(folder + "/table", type, 200, cols);
            const ggml::File file(table.path);
            for (const int how : {0, 1, 2}) {  // buffered, direct, one after the other
                std::unique_ptr<ggml::Reader> opened;
                if (how < 2) opened = ggml::open_reader(table.path, TableRows::options(how == 1));
                TableRows reader(file, std::move(opened), Table::offset, table.matrix);
                const std::vector<int64_t> ids = many(table);
                CHECK(taken(reader, table, ids) == table.expected(ids));
                CHECK(taken(reader, table, {7}) == table.expected({7}));
            }
        }
    }
}

void test_order_and_faults(const std::string& folder) {
    const Table table(folder + "/table", DType::Q8_0, 500, 160);
    const ggml::File file(table.path);
    const std::vector<int64_t> ids = many(table), one = {499};
    for (uint64_t seed = 1; seed <= 20; seed++) {
        faulty::Order order;
        order.seed = seed;
        const auto with = [&](faulty::Choose choose) {
            return TableRows(file,
                             std::make_unique<faulty::Reader>(table.path, order, std::move(choose)),
                             Table::offset, table.matrix);
        };
        TableRows late = with(faulty::at_random(seed, 0.1, {Fault::late}));
        CHECK(taken(late, table, ids) == table.expected(ids));
        // Rows that nobody waited for are forgotten, and write nowhere.
        Floats nowhere(ids.size() * size_t(table.cols));
        late.ask(ids.data(), int64_t(ids.size()), nowhere.data());
        nowhere = Floats();
        CHECK(taken(late, table, one) == table.expected(one));
        for (const Fault fault : {Fault::eio, Fault::cut}) {
            TableRows reader = with(faulty::once(seed % 3, fault));
            std::string said;
            try {
                taken(reader, table, ids);
            } catch (const ggml::Error& e) {
                CHECK(e.code() == ggml::Code::io);
                said = e.what();
            }
            CHECK(said.find(table.path) == 0);
            CHECK(taken(reader, table, ids) == table.expected(ids));  // the next call reads again
        }
    }
}

// Another file gets the name: the open one is read.
void test_names(const std::string& folder) {
    const Table table(folder + "/named", DType::F16, 50, 64);
    const ggml::File file(table.path);
    CHECK(file.is_named());
    std::filesystem::rename(table.path, folder + "/renamed");
    CHECK(!file.is_named());
    TableRows reader(file, nullptr, Table::offset, table.matrix);
    CHECK(taken(reader, table, {49, 3, 49}) == table.expected({49, 3, 49}));
    const Table other(table.path, DType::F16, 50, 64);
    CHECK(!file.is_named());
}

void test_changed(const std::string& folder) {
    const Table table(folder + "/changed", DType::F16, 50, 64);
    const ggml::File file(table.path);
    TableRows reader(file, ggml::open_reader(table.path, TableRows::options(false)), Table::offset,
                     table.matrix);
    std::filesystem::last_write_time(
        table.path, std::filesystem::last_write_time(table.path) + std::chrono::hours(1));
    bool refused = false;
    try {
        taken(reader, table, {1, 2});
    } catch (const ggml::Error& e) {
        refused = e.code() == ggml::Code::format;
    }
    CHECK(refused);
}

}  // namespace

int main() {
    const TemporaryFolder folder("powerinfer_rows");
    test_kinds(folder.path().string());
    test_order_and_faults(folder.path().string());
    test_names(folder.path().string());
    test_changed(folder.path().string());
    return check::summary("test_table_rows");
}
