#pragma once
#include <functional>
#include <string>
#include <vector>

#include "hetermoe/comm/key_store.h"

namespace hetermoe {

/// Gathers texts at a store in four calls for each rank, so that a store with one thread serves hundreds of
/// ranks at every step. Each rank sets its text and counts itself. The last rank to come joins all texts into
/// one value, for which the others wait. Texts beyond 4 MiB take a call more for each further 4 MiB.
class StoreGather {
 public:
  /// The store must outlive this.
  StoreGather(KeyStore& store, i32 rank, i32 num_ranks) : store_(store), rank_(rank), num_ranks_(num_ranks) {}

  /// Whether each rank has left in peace.
  using Left = std::function<std::vector<bool>()>;
  /// Every rank's text, in rank order; collective. Throws TransportError that names ranks which do not come
  /// within the limit or have left.
  std::vector<std::string> gather(const std::string& text, Seconds limit, const Left& left);

 private:
  using Keys = std::vector<std::string>;
  Keys put(const std::string& key, const std::string& text);
  std::string rest_of(const std::string& key, const std::string& head, Keys& keys);
  std::string join_texts();
  std::string await_joined(const std::string& key, Seconds limit, const Left& left);
  [[noreturn]] void fail_missing(const std::vector<bool>& left, Seconds limit);

  KeyStore& store_;
  const i32 rank_, num_ranks_;
  i64 number_ = 0;     ///< of the gather
  Keys own_, joined_;  ///< keys that the last gather left in the store
};

}  // namespace hetermoe
