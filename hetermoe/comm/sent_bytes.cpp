#include "hetermoe/comm/sent_bytes.h"

namespace hetermoe {
namespace {

class Counted : public Transport {
 public:
  Counted(std::unique_ptr<Transport> inner, SentBytes& sent) : inner_(std::move(inner)), sent_(sent) {}

  std::string name() const override { return inner_->name(); }
  void begin_step() override { inner_->begin_step(); }
  bool takes_turns() const override { return inner_->takes_turns(); }

  std::vector<Message> exchange(const ExchangeCall& call, std::vector<Message> out) override {
    for (std::size_t i = 0; i < out.size(); ++i) {
      const PlaceId peer = call.participants[i];
      if (peer == call.self) continue;
      Bytes bytes = 0;
      for (const at::Tensor& tensor : out[i].tensors) bytes += static_cast<Bytes>(tensor.nbytes());
      if (bytes > 0) sent_.add(call.step, call.self, peer, bytes);
    }
    return inner_->exchange(call, std::move(out));
  }

  void check_health() override { inner_->check_health(); }
  void abort(const std::string& reason) override { inner_->abort(reason); }
  std::vector<AwaitedMessage> awaited() const override { return inner_->awaited(); }

 private:
  std::unique_ptr<Transport> inner_;
  SentBytes& sent_;
};

}  // namespace

void SentBytes::add(i64 step, PlaceId from, PlaceId to, Bytes bytes) {
  const std::lock_guard lock(mutex_);
  OfStep& sum = of_step_[step];
  sum.all += bytes;
  if (cluster_.node_of(from) != cluster_.node_of(to)) sum.between_nodes += bytes;
}

SentBytes::OfStep SentBytes::take(i64 step) {
  const std::lock_guard lock(mutex_);
  const auto node = of_step_.extract(step);
  return node.empty() ? OfStep() : node.mapped();
}

std::unique_ptr<Transport> make_counted_transport(std::unique_ptr<Transport> inner, SentBytes& sent) {
  return std::make_unique<Counted>(std::move(inner), sent);
}

}  // namespace hetermoe
