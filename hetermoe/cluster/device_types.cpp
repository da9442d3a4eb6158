#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "hetermoe/base/paths.h"
#include "hetermoe/cluster/cluster.h"
#include "hetermoe/cluster/device_types.h"

namespace hetermoe {

const std::vector<std::string>& EnumNames<Dtype>::names() {
  static const std::vector<std::string> all = {"fp64", "fp32", "bf16", "fp16"};
  return all;
}

const std::vector<std::string>& EnumNames<AttentionKernel>::names() {
  static const std::vector<std::string> all = {"flash", "mem_efficient", "plain"};
  return all;
}

Bytes bytes_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFp64:
      return 8;
    case Dtype::kFp32:
      return 4;
    case Dtype::kBf16:
    case Dtype::kFp16:
      return 2;
  }
  HM_CHECK(false, "dtype {}", static_cast<int>(dtype));
  return 0;
}

Dtype DeviceType::rated(Dtype dtype) const {
  if (bytes_of(dtype) != 2) return dtype;
  const bool bf16 = bf16_tflops > 0, fp16 = fp16_tflops > 0;
  if (dtype == Dtype::kBf16 ? bf16 : fp16) return dtype;
  return bf16 ? Dtype::kBf16 : fp16 ? Dtype::kFp16 : Dtype::kFp32;
}

std::string borrowed_rates(const Cluster& cluster, const std::vector<Dtype>& dtypes) {
  std::vector<std::string> parts;
  for (std::size_t d = 0; d < dtypes.size(); ++d) {
    const DeviceType& type = cluster.type_of(static_cast<DeviceId>(d));
    if (type.rated(dtypes[d]) == dtypes[d]) continue;
    std::string part = fmt::format("{} has no {} products: its times are those of {}", type.name,
                                   name_of(dtypes[d]), name_of(type.rated(dtypes[d])));
    if (std::find(parts.begin(), parts.end(), part) == parts.end()) parts.push_back(std::move(part));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

FlopsPerSecond DeviceType::peak(Dtype dtype) const {
  const Dtype taken = rated(dtype);
  double tflops = fp32_tflops;
  if (taken == Dtype::kBf16) tflops = bf16_tflops;
  if (taken == Dtype::kFp16) tflops = fp16_tflops;
  // 1/64 of fp32 is the fp64 rate of NVIDIA's consumer chips since Ampere: the least that any listed chip
  // does.
  if (taken == Dtype::kFp64) tflops = fp64_tflops > 0 ? fp64_tflops : fp32_tflops / 64;
  HM_CHECK(tflops > 0, "device type \"{}\" has no fp32 peak", name);
  return tflops * 1e12;
}

bool same_name(const std::string& a, const std::string& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) == std::tolower(static_cast<unsigned char>(y));
  });
}

const DeviceType* find_type(const std::vector<DeviceType>& types, const std::string& name) {
  const auto found = std::find_if(types.begin(), types.end(),
                                  [&](const DeviceType& type) { return same_name(type.name, name); });
  return found == types.end() ? nullptr : &*found;
}

void check_complete(const Json& figures, const DeviceType& type, const std::string& name,
                    const std::string& where) {
  const auto require = [&](double value, const char* key) {
    if (value > 0 || figures.contains(key)) return;
    fail<ConfigError>(
        where,
        "device type \"{}\" has no {}. Give memory_gib, memory_gb_s, fp32_tflops and num_sms, or name a "
        "similar type with \"like\"",
        name, key);
  };
  require(type.memory_gib, "memory_gib");
  require(type.memory_gb_s, "memory_gb_s");
  require(type.fp32_tflops, "fp32_tflops");
  require(type.num_sms, "num_sms");
}

namespace {

std::vector<DeviceType> read_catalogue() {
  std::vector<DeviceType> types;
  for (const std::string& stem : config_names("devices", "yaml")) {
    const std::filesystem::path path = configs_folder() / "devices" / (stem + ".yaml");
    const Json figures = read_yaml(path);
    DeviceType type;
    check_complete(figures, type, stem, path.string());
    read_fields(figures, type, path.string() + " ");
    if (!same_name(type.name, stem)) {
      fail<ConfigError>(path.string() + " name", "got \"{}\", expected the file's own name, \"{}\"",
                        type.name, stem);
    }
    types.push_back(std::move(type));
  }
  return types;
}

const std::vector<DeviceType>& catalogue() {
  static const std::vector<DeviceType> types = read_catalogue();
  return types;
}

}  // namespace

std::vector<std::string> known_device_types() {
  std::vector<std::string> names;
  for (const DeviceType& type : catalogue()) names.push_back(type.name);
  return names;
}

const DeviceType* find_catalogue_device(const std::string& name) { return find_type(catalogue(), name); }

void refuse_device_type(const std::string& name, const std::string& where,
                        const std::vector<std::string>& known, const std::string& who) {
  fail<ConfigError>(where,
                    "unknown device type \"{}\".{} {} may describe its own: device_types: "
                    "[{{name: {}, like: {}, memory_gib: 24}}] (docs/tour.md)",
                    name, known_names_hint(name, known), who, name, known.front());
}

const DeviceType& catalogue_device(const std::string& name, const std::string& where) {
  const DeviceType* type = find_catalogue_device(name);
  if (type == nullptr) {
    fail<ConfigError>(where, "unknown device type \"{}\".{}", name,
                      known_names_hint(name, known_device_types()));
  }
  return *type;
}

}  // namespace hetermoe
