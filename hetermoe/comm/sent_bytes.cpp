#include "hetermoe/comm/sent_bytes.h"

namespace hetermoe {
namespace {

class Counted : public TransportDecorator {
 public:
  Counted(std::unique_ptr<Transport> inner, SentBytes& sent)
      : TransportDecorator(std::move(inner)), sent_(sent) {}

  std::vector<Message> exchange(const ExchangeCall& call, std::vector<Message> out) override {
    for (std::size_t i = 0; i < out.size(); ++i) {
      const PlaceId peer = call.participants[i];
      if (peer == call.self) continue;
      Bytes bytes = 0;
      for (const at::Tensor& tensor : out[i].tensors) bytes += static_cast<Bytes>(tensor.nbytes());
      if (bytes > 0) sent_.add(call.step, call.self, peer, bytes);
    }
    return inner().exchange(call, std::move(out));
  }

 private:
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
