#pragma once
#include <map>
#include <mutex>

#include "hetermoe/cluster/cluster.h"
#include "hetermoe/comm/transport.h"

namespace hetermoe {

/// Bytes of the tensors that places of this process sent to other places, step by step. Any thread.
class SentBytes {
 public:
  explicit SentBytes(const Cluster& cluster) : cluster_(cluster) {}  ///< must live longer

  struct OfStep {
    Bytes all = 0;
    Bytes between_nodes = 0;  ///< of them
  };
  void add(i64 step, PlaceId from, PlaceId to, Bytes bytes);
  /// Bytes that were sent in exchanges of the step since the last call.
  OfStep take(i64 step);

 private:
  const Cluster& cluster_;
  std::mutex mutex_;
  std::map<i64, OfStep> of_step_;
};

/// Counts what is sent, whatever moves the messages.
std::unique_ptr<Transport> make_counted_transport(std::unique_ptr<Transport> inner, SentBytes& sent);

}  // namespace hetermoe
