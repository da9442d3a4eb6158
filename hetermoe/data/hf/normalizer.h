#pragma once
#include <memory>
#include <string>
#include <vector>

#include "hetermoe/data/hf/part.h"

namespace hetermoe::hf {

/// A change of a text before it is cut. Thread-safe.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// text: valid UTF-8, not empty.
  virtual std::string normalized(std::string text) const = 0;
};
using Normalizers = std::vector<std::unique_ptr<const Normalizer>>;

/// The "normalizer" of a file, those of a Sequence one after another. Throws ConfigError for what is not
/// known.
Normalizers read_normalizer(const Part& part);

}  // namespace hetermoe::hf
