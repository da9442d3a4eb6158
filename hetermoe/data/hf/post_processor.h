#pragma once
#include <vector>

#include "hetermoe/data/hf/part.h"

namespace hetermoe::hf {

/// Tokens around a text.
struct Frame {
  std::vector<i64> before, after;
};

/// The tokens that the "post_processor" of a file puts around a single text. Throws ConfigError for unknown
/// types and keys.
Frame read_post_processor(const Part& part);

}  // namespace hetermoe::hf
