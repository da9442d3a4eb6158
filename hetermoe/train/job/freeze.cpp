#include "hetermoe/train/job/freeze.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "hetermoe/base/error.h"

namespace hetermoe {
namespace {

constexpr const char* kWhere = "train.freeze";

struct Match {
  i64 matched = 0;
  std::vector<std::string> missing;
};

void check_whole(const Unit& unit, const Match& match) {
  constexpr std::size_t kShown = 5;
  if (match.missing.empty()) return;
  std::vector<std::string> shown = match.missing;
  shown.resize(std::min(shown.size(), kShown));
  fail<ConfigError>(
      kWhere,
      "matches {} of the {} parameters of {}, but only whole units can be frozen: add {}{}, or leave "
      "the others out",
      match.matched, match.matched + static_cast<i64>(match.missing.size()), to_string(unit),
      fmt::join(shown, ", "),
      match.missing.size() > kShown ? fmt::format(" and {} more", match.missing.size() - kShown) : "");
}

}  // namespace

/// The usual walk with one step back: the last * takes as much more text as is needed.
bool matches_pattern(std::string_view pattern, std::string_view text) {
  std::size_t p = 0, t = 0, star = std::string_view::npos, taken = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p, ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++taken;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::vector<Unit> frozen_units(const std::vector<std::string>& patterns, const ModelConfig& model) {
  if (patterns.empty()) return {};
  std::vector<bool> used(patterns.size(), false);
  std::map<Unit, Match> units;
  for (const ParamInfo& parameter : parameters(model)) {
    if (parameter.buffer) continue;
    Match& unit = units[unit_of(model, parameter)];
    bool matched = false;
    for (std::size_t i = 0; i < patterns.size(); ++i) {
      if (!matches_pattern(patterns[i], parameter.name)) continue;
      matched = used[i] = true;
    }
    if (matched) {
      ++unit.matched;
    } else {
      unit.missing.push_back(parameter.name);
    }
  }
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    if (!used[i]) {
      fail<ConfigError>(kWhere,
                        "\"{}\" matches no parameter of model {}: expected names such as "
                        "model.layers.0.self_attn.o_proj.weight, in which * stands for any text",
                        patterns[i], model.name);
    }
  }
  std::vector<Unit> frozen;
  for (const auto& [unit, match] : units) {
    if (match.matched == 0) continue;
    check_whole(unit, match);
    frozen.push_back(unit);
  }
  if (frozen.size() == units.size())
    fail<ConfigError>(kWhere, "freezes the whole model {}: nothing is left to train", model.name);
  return frozen;
}

}  // namespace hetermoe
