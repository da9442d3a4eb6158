#include "hetermoe/routing/crossing.h"

#include <algorithm>

#include "hetermoe/base/index.h"

namespace hetermoe {

Crossing crossing(const TraceHeader& header, const TraceStep& step, std::size_t layer,
                  const std::vector<i32>& of_sequence, const std::vector<i32>& of_expert, i64 num_groups) {
  Crossing out;
  const std::size_t k = idx(header.top_k);
  std::vector<double> sent(idx(num_groups), 0);
  std::vector<i64> last(idx(num_groups), -1);  // token that was sent there last
  for (std::size_t s = 0; s < step.sequences.size(); ++s) {
    for (i64 token = step.first_token[s]; token < step.first_token[s + 1]; ++token) {
      for (std::size_t i = 0; i < k; ++i) {
        const std::uint16_t expert = step.choices[layer][idx(token) * k + i];
        if (expert == kNoExpert || of_expert[expert] == of_sequence[s]) continue;
        i64& before = last[idx(of_expert[expert])];
        out.rows += before == token ? 0 : 1;
        before = token;
        out.copies += 1;
        sent[idx(of_sequence[s])] += 1;
      }
    }
  }
  out.most = *std::max_element(sent.begin(), sent.end());
  return out;
}

}  // namespace hetermoe
