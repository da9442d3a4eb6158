#pragma once
#include <future>
#include <map>
#include <mutex>
#include <optional>

namespace hetermoe::kernels {

/// Values that are made when they are first asked for. Threads that want the same one wait until one of them
/// has made it; others are made at the same time. Any thread may call get().
template <class Key, class Value>
class MadeOnce {
 public:
  /// The value of the key, or that of make(). What make() throws reaches all who waited for it; the next call
  /// tries again.
  template <class Make>
  Value get(const Key& key, const Make& make) {
    std::optional<std::promise<Value>> own;
    std::shared_future<Value> value;
    {
      const std::lock_guard lock(mutex_);
      const auto [place, is_new] = values_.try_emplace(key);
      if (is_new) place->second = own.emplace().get_future().share();
      value = place->second;
    }
    if (own) make_for(key, *own, make);
    return value.get();
  }

 private:
  template <class Make>
  void make_for(const Key& key, std::promise<Value>& value, const Make& make) {
    try {
      value.set_value(make());
    } catch (...) {
      {
        const std::lock_guard lock(mutex_);
        values_.erase(key);
      }
      value.set_exception(std::current_exception());
    }
  }

  std::mutex mutex_;
  std::map<Key, std::shared_future<Value>> values_;
};

}  // namespace hetermoe::kernels
