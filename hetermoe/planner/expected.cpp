#include "hetermoe/planner/expected.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace hetermoe {
namespace {
constexpr const char* kLinks = "links";
}

const std::vector<std::string>& EnumNames<Evidence>::names() {
  static const std::vector<std::string> all = {"measured", "calibrated", "assumed"};
  return all;
}

Evidence evidence_of(const DeviceType& type) {
  if (!type.profile.empty()) return Evidence::kMeasured;
  return type.efficiency_source.empty() ? Evidence::kAssumed : Evidence::kCalibrated;
}

const std::vector<Deviation>& deviations() {
  static const std::vector<Deviation> all = {
      {"measured", 0.98, 1.00, "olmoe4 on one H100 in three shapes, by its own profile"},
      {"calibrated", 0.77, 1.14, "three models on one H100; modules of HeterMoE's Figure 2"},
      {"assumed", 0.46, 1.41, "public products of T4 and RTX 5090 over the default of 0.8 of the peak"},
      {"several devices", 0.72, 1.19, "Mixtral, Qwen3 and DeepSeek-V3 on 8 to 1,024 H100; HeterMoE on O1"},
  };
  return all;
}

namespace {

/// Profiles know transfers inside a node alone.
Evidence evidence_of_links(const Cluster& cluster, const std::vector<DeviceId>& used, bool assumed) {
  const bool measured = std::all_of(used.begin(), used.end(), [&](DeviceId device) {
    return evidence_of(cluster.type_of(device)) == Evidence::kMeasured &&
           cluster.node_of(device) == cluster.node_of(used[0]);
  });
  if (measured) return Evidence::kMeasured;
  return assumed ? Evidence::kAssumed : Evidence::kCalibrated;
}

}  // namespace

Expected expected_of(const Cluster& cluster, const std::vector<DeviceId>& used, bool links_assumed) {
  Expected out;
  std::set<std::string> kinds;
  for (const DeviceId device : used)
    out.constants[cluster.type_of(device).name] = evidence_of(cluster.type_of(device));
  if (used.size() > 1) {
    out.constants[kLinks] = evidence_of_links(cluster, used, links_assumed);
    kinds.insert("several devices");
  }
  for (const auto& [name, evidence] : out.constants) kinds.insert(name_of(evidence));
  bool first = true;
  for (const Deviation& row : deviations()) {
    if (!kinds.contains(row.of)) continue;
    out.low = first ? row.low : std::min(out.low, row.low);
    out.high = first ? row.high : std::max(out.high, row.high);
    first = false;
  }
  return out;
}

std::string constants_text(const Expected& expected) {
  std::string text;
  const auto add = [&](const std::string& name, Evidence evidence) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, name_of(evidence));
    if (evidence == Evidence::kAssumed && name != kLinks) text += " (data sheet)";
  };
  for (const auto& [name, evidence] : expected.constants)
    if (name != kLinks) add(name, evidence);
  if (const auto links = expected.constants.find(kLinks); links != expected.constants.end())
    add("links", links->second);
  return text;
}

namespace {

/// 52,341 -> "52,000"; 9.87 -> "9.9".
std::string in_two_digits(double value) {
  if (value < 10) return fmt::format("{:.2g}", value);
  const double unit = std::pow(10, std::floor(std::log10(value)) - 1);
  const std::string digits = fmt::format("{:.0f}", std::round(value / unit) * unit);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

}  // namespace

std::string range_text(double rate, const Expected& expected) {
  return in_two_digits(rate * expected.low) + " to " + in_two_digits(rate * expected.high);
}

Json constants_json(const Expected& expected) {
  Json json = Json::object();
  for (const auto& [name, evidence] : expected.constants) json[name] = name_of(evidence);
  return json;
}

}  // namespace hetermoe
