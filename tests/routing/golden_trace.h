#pragma once
#include <string>

#include "hetermoe/routing/trace.h"

namespace hetermoe {

/// The trace that docs/routing.md shows byte by byte: one step, two sequences, one layer of four experts.
inline TraceHeader golden_header() {
  return {.layers = {1},
          .num_experts = 4,
          .top_k = 2,
          .weights = TraceWeights::kNone,
          .domains = {"code", "prose"},
          .model = {},
          .seq_len = {},
          .condition = {},
          .source = {},
          .job = {}};
}

inline TraceStep golden_step() {
  TraceStep step;
  step.step = 2;
  step.sequences = {{.index = 16, .tokens = 3, .prompt = 3, .domain = 0, .group = 0, .microbatch = 0},
                    {.index = 17, .tokens = 3, .prompt = 1, .domain = 1, .group = 0, .microbatch = 1}};
  step.choices = {{0, 1, 0, 2, 1, 0, 3, 0, 3, 2, kNoExpert, kNoExpert}};
  step.weights = {{}};
  index_tokens(step);
  count_choices(step, golden_header());
  return step;
}

/// The bytes, from hexadecimal digits.
inline std::string bytes_of(const std::string& hex) {
  std::string out, digits;
  for (const char c : hex) {
    if (c == ' ') continue;
    digits += c;
    if (digits.size() < 2) continue;
    out += static_cast<char>(std::stoi(digits, nullptr, 16));
    digits.clear();
  }
  return out;
}

inline std::string golden_bytes() {
  return bytes_of("484d524f55544553 01000000 58000000 b9ebb3322a9ddd5a") +
         R"({"layers":[1],"num_experts":4,"top_k":2,"weights":"none","domains":["code","prose"]})" + "    " +
         bytes_of(
             "01000000 00000000 0200000000000000 0000000000000000 02000000 00000000 3000000000000000"
             "6e520d912cee44cb"
             "1000000000000000 03000000 03000000 00000000 0000 0000"
             "1100000000000000 03000000 01000000 01000000 0000 0100"
             "02000000 01000000 0200000000000000 0000000000000000 02000000 00000000 0c00000000000000"
             "8c03b5e46987aac8 000100020100 03000302ffff 00000000"
             "04000000 00000000 0000000000000000 0000000000000000 00000000 00000000 0800000000000000"
             "3b6eed712e9aa665 0200000000000000");
}

}  // namespace hetermoe
