#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <future>
#include <thread>

#include "hetermoe/base/error.h"
#include "hetermoe/comm/key_store.h"

namespace hetermoe {
namespace {

std::string text_of(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }
std::vector<std::uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

/// Errors of libtorch become TransportError.
class TcpStore : public KeyStore {
 public:
  TcpStore(const StoreAddress& address, Serve serve, Seconds limit) : address_(address) {
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(address.port);
    options.isServer = serve == Serve::kYes;
    options.waitWorkers = false;  // who is missing is ours to say
    options.timeout = to_milliseconds(limit);
    const std::string where = fmt::format("MASTER_ADDR {} MASTER_PORT {}", address.host, address.port);
    try {
      store_ = open(address.host, options);
    } catch (const std::exception& error) {
      const auto* const c10_error = dynamic_cast<const c10::Error*>(&error);
      const std::string why = c10_error != nullptr ? c10_error->what_without_backtrace() : error.what();
      if (serve == Serve::kYes) {
        fail<ConfigError>(
            where,
            "rank 0 cannot open its store there. Is the port in use, by an earlier run perhaps, "
            "or is this another host? ({})",
            why);
      }
      fail<TransportError>(where,
                           "rank {} found no store there within {:.3g} s; {} holds it. Does that run, and is "
                           "the port open between the hosts? ({})",
                           address.rank, limit, address.hosted ? "the launcher" : "rank 0", why);
    }
  }

  void set(const std::string& key, const std::string& value) override {
    checked([&] { store_->set(full(key), bytes_of(value)); });
  }
  void set_first(const std::string& key, const std::string& value) override {
    checked([&] { store_->compareSet(full(key), {}, bytes_of(value)); });
  }
  i64 count(const std::string& key) override {
    return checked([&] { return store_->add(full(key), 1); });
  }
  bool has(const std::vector<std::string>& keys) override {
    return checked([&] { return store_->check(full(keys)); });
  }
  std::vector<std::string> get(const std::vector<std::string>& keys) override {
    std::vector<std::string> values;
    for (const auto& bytes : checked([&] { return store_->multiGet(full(keys)); }))
      values.push_back(text_of(bytes));
    return values;
  }
  std::optional<std::string> await(const std::string& key, Seconds limit) override {
    const std::chrono::milliseconds usual = store_->getTimeout();
    store_->setTimeout(to_milliseconds(limit));
    std::optional<std::string> value;
    try {
      value = text_of(store_->get(full(key)));
    } catch (const c10::Error&) {
      // Too late, or the store is gone: then the next question says so.
    }
    store_->setTimeout(usual);
    if (!value && has({key})) return get({key})[0];
    return value;
  }
  void remove(const std::string& key) override {
    checked([&] { store_->deleteKey(full(key)); });
  }

 private:
  using StorePointer = c10::intrusive_ptr<c10d::TCPStore>;

  /// Opening has a limit for connecting, but none for a server that takes the connection and says nothing.
  static StorePointer open(const std::string& host, const c10d::TCPStoreOptions& options) {
    const auto promise = std::make_shared<std::promise<StorePointer>>();
    std::future<StorePointer> opened = promise->get_future();
    std::thread([host, options, promise] {
      try {
        promise->set_value(c10::make_intrusive<c10d::TCPStore>(host, options));
      } catch (...) {
        promise->set_exception(std::current_exception());
      }
    }).detach();
    // Where connecting fails, libtorch knows why.
    const auto limit = 2 * options.timeout + std::chrono::seconds(1);
    if (opened.wait_for(limit) != std::future_status::ready)
      throw std::runtime_error("something else listens there");
    return opened.get();
  }

  std::string full(const std::string& key) const {
    return fmt::format("hetermoe/{}/{}", address_.attempt, key);
  }
  std::vector<std::string> full(const std::vector<std::string>& keys) const {
    std::vector<std::string> out;
    for (const std::string& key : keys) out.push_back(full(key));
    return out;
  }
  template <class F>
  std::invoke_result_t<F> checked(F&& call) const {
    try {
      return call();
    } catch (const c10::Error& error) {
      fail<TransportError>(fmt::format("rank {}", address_.rank), "lost {} at {}:{}: {}",
                           address_.hosted ? "the launcher's store" : "rank 0, which holds the store",
                           address_.host, address_.port, error.what_without_backtrace());
    }
  }

  const StoreAddress& address_;
  StorePointer store_;
};

}  // namespace

std::unique_ptr<KeyStore> connect_tcp_store(const StoreAddress& address, Serve serve, Seconds limit) {
  // Every error comes to us as an exception; libtorch would print it, too, with the addresses of its stack.
  FLAGS_caffe2_log_level = c10::GLOG_ERROR;
  return std::make_unique<TcpStore>(address, serve, limit);
}

}  // namespace hetermoe
