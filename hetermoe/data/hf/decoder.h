#pragma once
#include <memory>
#include <string>
#include <vector>

#include "hetermoe/data/hf/part.h"

namespace hetermoe::hf {

/// A step from tokens to text. Thread-safe.
class Decoder {
 public:
  virtual ~Decoder() = default;
  /// tokens: their texts. The text is that of all results, one after another.
  virtual std::vector<std::string> decoded(std::vector<std::string> tokens) const = 0;
};
using Decoders = std::vector<std::unique_ptr<const Decoder>>;

/// The "decoder" of a file, those of a Sequence one after another. Throws ConfigError for what is not known.
Decoders read_decoder(const Part& part);

}  // namespace hetermoe::hf
