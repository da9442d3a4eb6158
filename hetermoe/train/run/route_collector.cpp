#include "hetermoe/train/run/route_collector.h"

#include <algorithm>
#include <limits>

#include "hetermoe/base/index.h"

namespace hetermoe {

RouteCollector::RouteCollector(const Job& job, const ModelConfig& model)
    : seq_len_(job.train.seq_len), weights_(!job.routing.record.empty() && job.routing.weights) {
  if (model.num_experts > std::numeric_limits<std::int16_t>::max())
    fail<ConfigError>(job.routing.record.empty() ? "balancer.name" : "routing.record",
                      "got {} experts, expected at most 32767", model.num_experts);
}

void RouteCollector::take(i32 layer, i64 first, i64 sequences, const at::Tensor& topk_TK,
                          const at::Tensor& weights_TK) {
  // A narrow copy, at once: of what is kept until the step has ended there may be much.
  TakenRoutes taken{layer, first, sequences, topk_TK.to(at::kShort), {}};
  if (weights_) taken.weights = weights_TK.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  const std::lock_guard lock(mutex_);
  if (order_.empty()) {
    taken_.push_back(std::move(taken));
    return;
  }
  for (i64 s = 0; s < sequences; ++s) {
    const auto of = [&](const at::Tensor& all) {
      return all.defined() ? all.narrow(0, s * seq_len_, seq_len_) : at::Tensor();
    };
    taken_.push_back({layer, order_[idx(first + s)], 1, of(taken.ids), of(taken.weights)});
  }
}

std::vector<TakenRoutes> RouteCollector::finish() {
  std::vector<TakenRoutes> out = std::exchange(taken_, {});
  std::sort(out.begin(), out.end(), [](const TakenRoutes& a, const TakenRoutes& b) {
    return std::pair(a.layer, a.first) < std::pair(b.layer, b.first);
  });
  return out;
}

}  // namespace hetermoe
