#pragma once
#include <string>
#include <vector>

#include "hetermoe/base/json.h"

// One reader of outside text or bytes under test. Each file fuzz/<name>.cpp defines one Target; entry.cpp
// lists them and offers the one that --target= names to libFuzzer or to driver.cpp.
namespace hetermoe::fuzz {

struct Target {
  const char* name;
  /// May end with an Error other than InternalError. Whatever else it throws is a finding.
  void (*run)(const std::string& input);
  /// Valid inputs from which mutation starts.
  std::vector<std::string> (*seeds)();
};

/// The targets of this program; each program has its own list.
const std::vector<Target>& targets();

/// Texts of the files configs/<kind>/*.<extension>.
std::vector<std::string> config_texts(const std::string& kind, const std::string& extension);

/// What a reader made of an input must be readable again from what it writes, and be the same.
/// Throws std::logic_error, which is a finding, when it is not.
void expect_same(const std::string& first, const std::string& second, const char* what);

}  // namespace hetermoe::fuzz
