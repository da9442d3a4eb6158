#include "hetermoe/train/session.h"

#include <algorithm>
#include <numeric>

namespace hetermoe {

std::vector<DeviceId> devices_of(const Plan& plan) {
  std::vector<DeviceId> all;
  for (const Group& group : plan.groups) all.insert(all.end(), group.devices.begin(), group.devices.end());
  std::sort(all.begin(), all.end());
  return all;
}

Session::Pass::Pass(const Session& session, const StepOptions& options)
    : placement(session.plan_, session.model_, options),
      schedule(build_schedule(session.plan_, session.model_, options)),
      context{session.model_, session.cluster_, placement, schedule} {}

Session::Session(ModelConfig model, Cluster cluster, Plan plan, Options options,
                 std::unique_ptr<Transport> transport)
    : model_(std::move(model)),
      cluster_(std::move(cluster)),
      plan_(std::move(plan)),
      options_(std::move(options)),
      transport_(transport ? std::move(transport) : make_in_process_transport(cluster_.num_devices())),
      train_(*this, options_.step) {
  check_trainable(model_);
  if (options_.local.empty()) {
    options_.local = devices_of(plan_);
  }
  for (const DeviceId device : options_.local) {
    const at::TensorOptions tensor =
        at::TensorOptions().dtype(scalar_type(plan_.dtype[static_cast<std::size_t>(device)]));
    states_.push_back(std::make_unique<DeviceState>(device, train_.schedule, model_, tensor));
  }
  start(train_);
}

void Session::start(Pass& pass) {
  pass.executor = std::make_unique<Executor>(pass.context, states(), *transport_, options_.executor);
}

std::vector<DeviceState*> Session::states() {
  std::vector<DeviceState*> all;
  for (std::unique_ptr<DeviceState>& state : states_) all.push_back(state.get());
  return all;
}

Session::Pass& Session::forward_pass() {
  if (!forward_) {
    StepOptions options = options_.step;
    options.backward = false;
    options.balance = false;
    forward_ = std::make_unique<Pass>(*this, options);
    start(*forward_);
  }
  return *forward_;
}

void Session::initialize(u64 seed) {
  for (std::unique_ptr<DeviceState>& state : states_) state->initialize(model_, seed);
}

StepResult Session::train_step(const StepInput& input) { return train_.executor->run(input); }

StepResult Session::evaluate(const StepInput& input) { return forward_pass().executor->run(input); }

TensorsByName Session::values() { return collect(false); }
TensorsByName Session::gradients() { return collect(true); }

TensorsByName Session::collect(bool gradients) {
  TensorsByName all;
  for (std::unique_ptr<DeviceState>& state : states_) {
    for (const NamedView& view : state->views(model_)) {
      const at::Tensor& tensor = gradients ? view.grad : view.value;
      if (!tensor.defined()) continue;
      const auto [found, fresh] = all.try_emplace(view.name, tensor.clone());
      HM_CHECK(
          fresh || found->second.scalar_type() != tensor.scalar_type() || at::equal(found->second, tensor),
          "replicas of {} differ: device {} has another {}", view.name, state->device(),
          gradients ? "gradient" : "value");
    }
  }
  return all;
}

}  // namespace hetermoe
