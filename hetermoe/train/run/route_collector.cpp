#include "hetermoe/train/run/route_collector.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "hetermoe/base/index.h"

namespace hetermoe {

RouteCollector::RouteCollector(const Job& job, const ModelConfig& model)
    : seq_len_(job.train.seq_len), weights_(!job.routing.record.empty() && job.routing.weights) {
  if (model.num_experts > std::numeric_limits<std::int16_t>::max())
    fail<ConfigError>(job.routing.record.empty() ? "balancer.name" : "routing.record",
                      "got {} experts, expected at most 32767", model.num_experts);
}

void RouteCollector::take(i32 layer, i64 first, const at::Tensor& topk_TK, const at::Tensor& weights_TK) {
  // A narrow copy, at once: of what is kept until the step has ended there may be much.
  const at::Tensor ids = topk_TK.to(at::kShort);
  const at::Tensor weights =
      weights_ ? weights_TK.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true) : at::Tensor();
  const bool whole = first % seq_len_ == 0 && ids.size(0) % seq_len_ == 0;
  const std::lock_guard lock(mutex_);
  if (whole)
    keep({layer, first / seq_len_, ids.size(0) / seq_len_, ids, weights});
  else
    pieces_.push_back({layer, first, ids, weights});
}

/// Under its numbers in the order in which sequences came.
void RouteCollector::keep(TakenRoutes taken) {
  if (order_.empty()) {
    taken_.push_back(std::move(taken));
    return;
  }
  for (i64 s = 0; s < taken.count; ++s) {
    const auto of = [&](const at::Tensor& all) {
      return all.defined() ? all.narrow(0, s * seq_len_, seq_len_) : at::Tensor();
    };
    taken_.push_back({taken.layer, order_[idx(taken.first + s)], 1, of(taken.ids), of(taken.weights)});
  }
}

/// All devices of a team are in this process: their pieces make whole sequences.
void RouteCollector::join_pieces() {
  std::sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) {
    return std::pair(a.layer, a.first_token) < std::pair(b.layer, b.first_token);
  });
  std::vector<at::Tensor> ids, weights;
  i64 first = 0, tokens = 0;
  for (const Piece& piece : pieces_) {
    if (tokens == 0) first = piece.first_token;
    HM_CHECK(piece.first_token == first + tokens, "choices of token {} of layer {} came from no device",
             first + tokens, piece.layer);
    ids.push_back(piece.ids);
    if (weights_) weights.push_back(piece.weights);
    tokens += piece.ids.size(0);
    if (tokens % seq_len_ != 0) continue;
    keep({piece.layer, first / seq_len_, tokens / seq_len_, at::cat(ids),
          weights_ ? at::cat(weights) : at::Tensor()});
    ids.clear(), weights.clear();
    tokens = 0;
  }
  HM_CHECK(tokens == 0, "choices of a sequence from token {} on came in part", first);
  pieces_.clear();
}

std::vector<TakenRoutes> RouteCollector::finish() {
  join_pieces();
  std::vector<TakenRoutes> out = std::exchange(taken_, {});
  std::sort(out.begin(), out.end(), [](const TakenRoutes& a, const TakenRoutes& b) {
    return std::pair(a.layer, a.first) < std::pair(b.layer, b.first);
  });
  return out;
}

}  // namespace hetermoe
