#pragma once
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "hetermoe/comm/key_store.h"

// A store in this process. It counts calls, and can stand still.
namespace hetermoe::testing {

/// What the connections share.
class StoreWorld {
 public:
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::string> values;
  std::map<std::string, i64> counts;
  bool frozen = false;

  void freeze(bool on) {
    const std::lock_guard lock(mutex);
    frozen = on;
    changed.notify_all();
  }
};

class FakeKeyStore : public KeyStore {
 public:
  explicit FakeKeyStore(StoreWorld& world) : world_(world) {}
  /// But for waits of half a second or more in which the key did not come: how many there are is a matter of
  /// the machine's speed. Who asks more often is counted.
  i64 num_calls = 0;
  /// Called after a key was set.
  std::function<void(const std::string& key, const std::string& value)> on_set;

  void set(const std::string& key, const std::string& value) override {
    {
      const std::unique_lock lock = call();
      world_.values[key] = value;
      world_.changed.notify_all();
    }
    if (on_set) on_set(key, value);
  }
  void set_first(const std::string& key, const std::string& value) override {
    const std::unique_lock lock = call();
    world_.values.emplace(key, value);
    world_.changed.notify_all();
  }
  i64 count(const std::string& key) override {
    const std::unique_lock lock = call();
    return ++world_.counts[key];
  }
  bool has(const std::vector<std::string>& keys) override {
    const std::unique_lock lock = call();
    for (const std::string& key : keys) {
      if (!world_.values.contains(key)) return false;
    }
    return true;
  }
  std::vector<std::string> get(const std::vector<std::string>& keys) override {
    const std::unique_lock lock = call();
    std::vector<std::string> out;
    for (const std::string& key : keys) out.push_back(world_.values.at(key));
    return out;
  }
  std::optional<std::string> await(const std::string& key, Seconds limit) override {
    std::unique_lock lock = call();
    const auto has_come = [&] { return world_.values.contains(key); };
    if (!world_.changed.wait_for(lock, std::chrono::duration<double>(limit), has_come)) {
      if (limit >= 0.5) --num_calls;
      return {};
    }
    return world_.values.at(key);
  }
  void remove(const std::string& key) override {
    const std::unique_lock lock = call();
    world_.values.erase(key);
  }

 private:
  std::unique_lock<std::mutex> call() {
    ++num_calls;
    std::unique_lock lock(world_.mutex);
    world_.changed.wait(lock, [&] { return !world_.frozen; });
    return lock;
  }
  StoreWorld& world_;
};

}  // namespace hetermoe::testing
