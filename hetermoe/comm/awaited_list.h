#pragma once
#include <list>
#include <mutex>
#include <vector>

#include "hetermoe/comm/transport.h"

namespace hetermoe {

/// The messages a transport waits for, each there for as long as its Entry lives.
class AwaitedList {
 public:
  class Entry {
   public:
    Entry(AwaitedList& list, const AwaitedMessage& wait) : list_(list) {
      const std::lock_guard lock(list_.mutex_);
      list_.messages_.push_front(wait);
      place_ = list_.messages_.begin();
    }
    ~Entry() {
      const std::lock_guard lock(list_.mutex_);
      list_.messages_.erase(place_);
    }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    AwaitedList& list_;
    std::list<AwaitedMessage>::iterator place_;
  };

  std::vector<AwaitedMessage> all() const {
    const std::lock_guard lock(mutex_);
    return {messages_.begin(), messages_.end()};
  }

 private:
  mutable std::mutex mutex_;
  std::list<AwaitedMessage> messages_;
};

}  // namespace hetermoe
