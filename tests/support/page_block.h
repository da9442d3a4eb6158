#pragma once
#include <gtest/gtest.h>

#include <string>

#include "hetermoe/base/json.h"

namespace hetermoe::testing {

/// A page of docs/ has `text` between the lines "<!-- NAME -->" and "<!-- end of NAME -->". Where it differs,
/// the test fails, leaves the page as it should be in the build folder, and says how to take it.
inline void expect_block(const std::string& page, const std::string& name, const std::string& text) {
  const std::string file = HM_SOURCE_DIR "/docs/" + page, all = read_text(file);
  const std::string first = "<!-- " + name + " -->\n", last = "<!-- end of " + name + " -->\n";
  const std::size_t begin = all.find(first), end = all.find(last);
  ASSERT_TRUE(begin != all.npos && end != all.npos) << file << " lacks " << first << " or " << last;
  const std::size_t from = begin + first.size();
  if (all.substr(from, end - from) == text) return;
  const std::string mended = HM_BINARY_DIR "/" + page;
  write_text(mended, all.substr(0, from) + text + all.substr(end));
  ADD_FAILURE() << file << " has another " << name << ". Mend it by: cp " << mended << " " << file;
}

}  // namespace hetermoe::testing
