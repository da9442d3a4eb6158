#include "hetermoe/routing/crossing.h"

#include <algorithm>

#include "hetermoe/base/index.h"

namespace hetermoe {

Crossing::Crossing(i64 num_groups) : sent(idx(num_groups), 0) {}

double Crossing::most() const { return *std::max_element(sent.begin(), sent.end()); }

void add_crossing(Crossing& all, const TraceHeader& header, const TraceStep& step, std::size_t layer,
                  std::span<const i32> of_sequence, const std::vector<i32>& of_expert) {
  const std::size_t k = idx(header.top_k);
  std::vector<i64> last(all.sent.size(), -1);  // token that was sent there last
  for (std::size_t s = 0; s < step.sequences.size(); ++s) {
    for (i64 token = step.first_token[s]; token < step.first_token[s + 1]; ++token) {
      for (std::size_t i = 0; i < k; ++i) {
        const std::uint16_t expert = step.choices[layer][idx(token) * k + i];
        if (expert == kNoExpert || of_expert[expert] == of_sequence[s]) continue;
        i64& before = last[idx(of_expert[expert])];
        all.rows += before == token ? 0 : 1;
        before = token;
        all.copies += 1;
        all.sent[idx(of_sequence[s])] += 1;
      }
    }
  }
}

}  // namespace hetermoe
