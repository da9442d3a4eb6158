#include <limits>
#include <queue>

#include "hetermoe/base/index.h"
#include "hetermoe/data/hf/bpe.h"

// Merges of long pieces.
namespace hetermoe::hf {
namespace {

constexpr i32 kNone = std::numeric_limits<i32>::max();
constexpr std::size_t kEnd = std::numeric_limits<std::size_t>::max();

/// A merge of a symbol with the next. Done when it is the first of all and the symbol still has that rank.
struct Candidate {
  i32 rank;
  std::size_t at;
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : at > other.at;  // the least is on top
  }
};

struct Linked {
  i32 token, rank;  ///< rank: of the merge with the next; kNone = there is none
  std::size_t before, next;
};

std::vector<Linked> linked(const std::vector<i32>& tokens) {
  std::vector<Linked> out(tokens.size());
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = {tokens[i], kNone, i == 0 ? kEnd : i - 1, i + 1 == out.size() ? kEnd : i + 1};
  return out;
}

}  // namespace

void Bpe::merge_many(std::vector<i32>& tokens) const {
  std::vector<Linked> symbols = linked(tokens);
  std::priority_queue<Candidate> queue;
  const auto price = [&](std::size_t at) {
    Linked& symbol = symbols[at];
    symbol.rank = symbol.next == kEnd ? kNone : rank_of(symbol.token, symbols[symbol.next].token);
    if (symbol.rank != kNone) queue.push({symbol.rank, at});
  };
  for (std::size_t i = 0; i < symbols.size(); ++i) price(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Linked& symbol = symbols[best.at];
    if (symbol.rank != best.rank) continue;
    symbol.token = merged_[idx(best.rank)];
    symbols[symbol.next].rank = kNone;
    symbol.next = symbols[symbol.next].next;
    if (symbol.next != kEnd) symbols[symbol.next].before = best.at;
    price(best.at);
    if (symbol.before != kEnd) price(symbol.before);
  }
  tokens.clear();
  for (std::size_t at = 0; at != kEnd; at = symbols[at].next) tokens.push_back(symbols[at].token);
}

}  // namespace hetermoe::hf
