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

}  // namespace hetermoe
