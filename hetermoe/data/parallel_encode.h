#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "hetermoe/data/tokenizer.h"

namespace hetermoe {

/// Calls run(0) to run(count - 1), on all cores. The first error is thrown when all have ended.
void on_all_cores(std::size_t count, const std::function<void(std::size_t)>& run);

/// Tokens of each text, made on all cores.
std::vector<std::vector<i64>> encode_each(const Tokenizer& tokenizer, std::span<const std::string> texts);

}  // namespace hetermoe
