#pragma once
#include <string>

#include "hetermoe/data/hf/part.h"
#include "hetermoe/data/hf/pattern.h"

namespace hetermoe::hf {

/// The "pattern" of an object: {"String": text} or {"Regex": text}.
Pattern read_pattern(const Part& part);

/// "pattern" and "content" of an object: every match becomes the content.
class Replacement {
 public:
  explicit Replacement(const Part& part) : pattern_(read_pattern(part)), content_(part.text("content")) {}
  std::string apply(std::string text) const;

 private:
  Pattern pattern_;
  std::string content_;
};

}  // namespace hetermoe::hf
