#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/base/types.h"
#include "hetermoe/comm/store_job.h"

namespace hetermoe {

inline std::chrono::milliseconds to_milliseconds(Seconds seconds) {
  return std::chrono::milliseconds(static_cast<i64>(1000 * seconds));
}

/// A connection to a store of keys and values at which processes meet. All throw TransportError when the
/// store is gone, and wait without end for one that stands still. One thread at a time.
class KeyStore {
 public:
  virtual ~KeyStore() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Sets a key that is not set yet.
  virtual void set_first(const std::string& key, const std::string& value) = 0;
  /// Number of calls so far with this key, this one included.
  virtual i64 count(const std::string& key) = 0;
  /// Whether all are there.
  virtual bool has(const std::vector<std::string>& keys) = 0;
  /// The values of keys that are there.
  virtual std::vector<std::string> get(const std::vector<std::string>& keys) = 0;
  /// The value as soon as it is there; nothing when it is not within the limit.
  virtual std::optional<std::string> await(const std::string& key, Seconds limit) = 0;
  virtual void remove(const std::string& key) = 0;
};

/// Whether a connection brings the store with it.
enum class Serve { kNo, kYes };

/// A connection to the c10d::TCPStore at `address`, which must outlive it, with keys of this attempt. Throws
/// ConfigError when it cannot serve there, TransportError when there is no answer within the limit.
std::unique_ptr<KeyStore> connect_tcp_store(const StoreAddress& address, Serve serve, Seconds limit);

}  // namespace hetermoe
