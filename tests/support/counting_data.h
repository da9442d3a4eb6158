#pragma once
#include "hetermoe/data/dataset.h"

namespace hetermoe {

/// A text of 4000 bytes below `limit` that looks like no other part of itself, and 100 bytes for validation.
inline Dataset counting_data(i64 limit = 251) {
  std::vector<std::uint8_t> train, validation;
  for (i64 i = 0; i < 4000; ++i) train.push_back(static_cast<std::uint8_t>(i * 37 % limit));
  for (i64 i = 0; i < 100; ++i) validation.push_back(static_cast<std::uint8_t>(i % limit));
  return byte_dataset(train, validation);
}

/// Two sources, drawn alike, of eight bytes each, that share none and are of the domains low and high.
inline Dataset two_domains() {
  Dataset out;
  for (const int first : {0, 120}) {
    std::vector<std::uint8_t> text;
    for (i64 i = 0; i < 2000; ++i) text.push_back(static_cast<std::uint8_t>(first + i * 5 % 8));
    Dataset one = byte_dataset(text, std::vector<std::uint8_t>(100, 1));
    one.sources[0].name = one.sources[0].domain = first == 0 ? "low" : "high";
    one.sources[0].share = 0.5;
    out.tokenizer = std::move(one.tokenizer);
    out.sources.push_back(std::move(one.sources[0]));
  }
  return out;
}

}  // namespace hetermoe
