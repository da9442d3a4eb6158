#include <atomic>
#include <iostream>

#include "hetermoe/comm/transport.h"

// A transport that tests/planted_kinds.py adds to a copy of the program: it says how many exchanges it has
// made.
namespace hetermoe {
namespace {

class PlantedTransport : public TransportDecorator {
 public:
  using TransportDecorator::TransportDecorator;
  ~PlantedTransport() override { std::cerr << "planted transport: " << count_ << " exchanges\n"; }
  std::string name() const override { return "planted"; }
  std::vector<Message> exchange(const ExchangeCall& call, std::vector<Message> out) override {
    ++count_;
    return TransportDecorator::exchange(call, std::move(out));
  }

 private:
  std::atomic<i64> count_ = 0;
};

}  // namespace

std::unique_ptr<Transport> make_planted_transport(i32 num_devices) {
  return std::make_unique<PlantedTransport>(make_in_process_transport(num_devices));
}

}  // namespace hetermoe
