#pragma once
#include <mutex>
#include <vector>

#include "hetermoe/exec/step.h"
#include "hetermoe/train/job/job.h"

namespace hetermoe {

/// Choices of the routers of a layer for sequences that follow each other.
struct TakenRoutes {
  i64 layer, first, count;
  at::Tensor ids;      ///< int16 [count * seq_len, K], on the device that computed them
  at::Tensor weights;  ///< fp32, the same shape; undefined if no reader needs them
};

/// A reader of the choices of steps that have ended.
class RouteReader {
 public:
  virtual ~RouteReader() = default;
  /// Whether step `step` (0 = the first) is read.
  virtual bool reads(i64 step) const = 0;
  /// Choices of a step of this process's devices; first: number of its first sequence in the run. Collective.
  virtual void read(i64 step, i64 first, const std::vector<TakenRoutes>& taken) = 0;
};

/// Keeps what the routers of this process's devices choose in a step until it has ended.
class RouteCollector : public RouteSink {
 public:
  /// Throws ConfigError for a model with more experts than 16 bits hold.
  RouteCollector(const Job& job, const ModelConfig& model);
  /// Sets the order of the next step: [places] which of its sequences is at each; empty = the original order.
  void set_order(std::vector<i64> order) { order_ = std::move(order); }
  void take(i32 layer, i64 first, const at::Tensor& topk_TK, const at::Tensor& weights_TK) override;
  /// Routes of the step that has ended, by layer and sequence, numbered in the original order. The next step
  /// begins anew.
  std::vector<TakenRoutes> finish();

 private:
  struct Piece {
    i64 layer, first_token;
    at::Tensor ids, weights;
  };
  void keep(TakenRoutes taken);
  void join_pieces();

  const i64 seq_len_;
  const bool weights_;
  std::vector<i64> order_;
  std::mutex mutex_;
  std::vector<TakenRoutes> taken_;  // of the step that runs
  std::vector<Piece> pieces_;       // of sequences that several devices have
};

}  // namespace hetermoe
