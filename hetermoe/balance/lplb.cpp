#include "hetermoe/balance/lplb.h"

#include <algorithm>
#include <numeric>

#include "hetermoe/balance/eplb.h"
#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

/// Columns of a group of `size` devices; source(d, column) copies to d.
template <class Source>
TopologyColumns columns_of(i32 size, i32 num_columns, const Source& source) {
  TopologyColumns columns(idx(num_columns));
  for (i32 j = 0; j < num_columns; ++j) {
    for (i32 d = 0; d < size; ++d) columns[idx(j)].push_back(source(d, j));
  }
  return columns;
}

TopologyColumns ring(i32 size) {
  return columns_of(size, 1, [&](i32 d, i32) { return (d + 1) % size; });
}

TopologyColumns torus(i32 m, i32 n) {
  return columns_of(m * n, 2, [&](i32 d, i32 j) {
    const i32 row = d / n, column = d % n;
    return j == 0 ? (row + 1) % m * n + column : row * n + (column + 1) % n;
  });
}

/// Two squares of four: round each square, and between them.
TopologyColumns cube() { return {{3, 0, 1, 2, 7, 4, 5, 6}, {6, 7, 4, 5, 0, 1, 2, 3}}; }

/// Four squares of four: round each square, and from the square before.
TopologyColumns hypercube() {
  return columns_of(16, 2, [](i32 d, i32 j) { return j == 0 ? d / 4 * 4 + (d + 3) % 4 : (d + 12) % 16; });
}

/// The most square division with both sides above 2; none where there is none.
std::optional<std::pair<i32, i32>> sides(i32 size) {
  for (i32 n = static_cast<i32>(std::sqrt(real(size))); n > 2; --n) {
    if (size % n == 0) return std::pair(size / n, n);
  }
  return {};
}

TopologyColumns named(const std::string& name, i32 num_devices) {
  const std::optional<std::pair<i32, i32>> square = sides(num_devices);
  if (name.empty()) return square ? torus(square->first, square->second) : ring(num_devices);
  if (name == "cube") return cube();
  if (name == "hypercube") return hypercube();
  if (name == "ring") return ring(num_devices);
  if (name == "torus") {
    if (!square)
      fail<ConfigError>("topology",
                        "got torus for {} devices, expected a number with two divisors above 2. Use ring",
                        num_devices);
    return torus(square->first, square->second);
  }
  i32 m = 0, n = 0, used = 0;
  if (std::sscanf(name.c_str(), "torus:%dx%d%n", &m, &n, &used) == 2 && idx(used) == name.size() && m > 1 &&
      n > 1) {
    if (num_devices % (i64{m} * n) != 0)
      fail<ConfigError>("topology", "got {} devices in {}, expected a divisor of the {} that own experts",
                        i64{m} * n, name, num_devices);
    return torus(m, n);
  }
  const std::vector<std::string> known = {"cube", "hypercube", "ring", "torus"};
  fail<ConfigError>("topology",
                    "got \"{}\", expected cube, hypercube, ring, torus, torus:MxN or columns as "
                    "[[1,2,3,0]].{}",
                    name, known_names_hint(name, known));
}

TopologyColumns own_table(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  TopologyColumns columns;
  bool good = json.is_array() && !json.empty();
  for (const Json& column : good ? json : Json::array()) {
    good = good && column.is_array() && !column.empty() && column.size() == json[0].size() &&
           std::all_of(column.begin(), column.end(),
                       [](const Json& d) { return d.is_number_unsigned() && d.get<u64>() < (u64{1} << 31); });
    if (good) columns.push_back(column.get<std::vector<i32>>());
  }
  if (!good)
    fail<ConfigError>("topology", "got {}, expected columns of equally many device numbers, as [[1,2,3,0]]",
                      text);
  return columns;
}

void check_column(const std::vector<i32>& column, std::size_t number) {
  std::vector<i32> sorted = column;
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t d = 0; d < column.size(); ++d) {
    if (sorted[d] != static_cast<i32>(d))
      fail<ConfigError>("topology", "column {}: got {}, expected each device from 0 to {} once", number,
                        Json(column).dump(), column.size() - 1);
  }
  for (std::size_t d = 0; d < column.size(); ++d) {
    if (column[d] == static_cast<i32>(d))
      fail<ConfigError>("topology", "column {}: device {} would copy an expert of its own", number, d);
  }
}

}  // namespace

TopologyColumns topology_columns(const std::string& name, i64 num_devices) {
  if (num_devices < 2)
    fail<ConfigError>("topology", "got one device that owns experts, expected at least 2 to copy between");
  const TopologyColumns columns =
      name.starts_with("[") ? own_table(name) : named(name, static_cast<i32>(num_devices));
  const auto size = static_cast<i64>(columns[0].size());
  if (num_devices % size != 0)
    fail<ConfigError>(
        "topology",
        "got groups of {} devices, expected a divisor of the {} that own experts: {} would be over", size,
        num_devices, num_devices % size);
  for (std::size_t j = 0; j < columns.size(); ++j) check_column(columns[j], j);
  return columns;
}

std::vector<std::vector<i32>> topology_hosts(const std::vector<std::vector<ExpertId>>& experts,
                                             const TopologyColumns& columns, i64 rows) {
  std::size_t num_experts = 0;
  for (const std::vector<ExpertId>& of_device : experts) num_experts += of_device.size();
  std::vector<std::vector<i32>> hosts(num_experts);
  for (std::size_t d = 0; d < experts.size(); ++d) {
    for (const ExpertId expert : experts[d]) hosts[idx(expert)] = {static_cast<i32>(d)};
  }
  const std::size_t size = columns[0].size();
  for (std::size_t d = 0; d < experts.size(); ++d) {
    const std::size_t first = d / size * size;
    for (std::size_t r = 0; r < idx(rows); ++r) {
      for (std::size_t j = 0; j < columns.size(); ++j) {
        const std::size_t from = first + idx(columns[j][d - first]);
        hosts[idx(experts[from][r * columns.size() + j])].push_back(static_cast<i32>(d));
      }
    }
  }
  return hosts;
}

namespace {

/// Rows of the topology: all the replicas asked for, or one row.
i64 rows_of(const BalanceInput& input, i64 num_devices, i64 num_columns) {
  const i64 of_row = num_devices * num_columns;
  if (input.replicas % of_row != 0)
    fail<ConfigError>("replicas",
                      "got {}, expected a multiple of {}: {} devices with {} columns of the topology each",
                      input.replicas, of_row, num_devices, num_columns);
  return std::max<i64>(1, input.replicas / of_row);
}

/// [devices] experts as EPLB deals them out without copies, busiest first.
std::vector<std::vector<ExpertId>> dealt_out(const std::vector<double>& load,
                                             const std::vector<EplbDevice>& devices) {
  std::vector<std::vector<ExpertId>> experts = weighted_eplb_slots(load, devices);
  for (std::vector<ExpertId>& of_device : experts) {
    std::sort(of_device.begin(), of_device.end());
    std::stable_sort(of_device.begin(), of_device.end(),
                     [&](ExpertId a, ExpertId b) { return load[idx(a)] > load[idx(b)]; });
  }
  return experts;
}

}  // namespace

std::vector<LayerOwners> place_lplb(const BalanceInput& input) {
  const std::vector<BalanceDevice> owning = owning_devices(input);
  const auto num_devices = static_cast<i64>(owning.size());
  const TopologyColumns columns = topology_columns(input.topology, num_devices);
  const auto num_columns = static_cast<i64>(columns.size());
  const i64 rows = rows_of(input, num_devices, num_columns), copied = rows * num_columns;
  std::vector<double> speeds;
  std::vector<DeviceId> ids;
  for (const BalanceDevice& device : owning) {
    speeds.push_back(device.speed());
    ids.push_back(device.id);
  }
  std::vector<LayerOwners> out;
  for (const std::vector<double>& load : input.load) {
    const auto num_experts = static_cast<i64>(load.size());
    const std::vector<i64> slots =
        slots_by_speed(speeds, std::vector<i64>(speeds.size(), num_experts), num_experts);
    std::vector<EplbDevice> devices;
    for (std::size_t d = 0; d < speeds.size(); ++d) {
      const i64 most = slots[d] / num_columns * num_columns * num_devices;
      if (slots[d] < copied)
        fail<ConfigError>("replicas",
                          "device {} has {} experts of a layer, and others copy {} of them: expected {}",
                          ids[d], slots[d], copied,
                          slots[d] < num_columns ? "a topology with fewer columns"
                                                 : fmt::format("replicas of at most {}", most));
      devices.push_back({speeds[d], slots[d]});
    }
    LayerOwners owners;
    for (const std::vector<i32>& hosts : topology_hosts(dealt_out(load, devices), columns, rows)) {
      owners.emplace_back();
      for (const i32 host : hosts)
        owners.back().push_back({.device = ids[idx(host)], .share = 1 / real(hosts.size())});
    }
    out.push_back(split_owners(owners, load, ids, speeds, IdleOwners::kKeep));
  }
  return out;
}

}  // namespace hetermoe
