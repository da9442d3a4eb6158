#include "hetermoe/train/session.h"

#include <algorithm>
#include <numeric>

#include "hetermoe/sim/simulator.h"

namespace hetermoe {

std::vector<DeviceId> devices_of(const Plan& plan) {
  std::vector<DeviceId> all;
  for (const Group& group : plan.groups) all.insert(all.end(), group.devices.begin(), group.devices.end());
  std::sort(all.begin(), all.end());
  return all;
}

namespace {

/// The ops in the order in which they would start; what a transfer depends on starts earlier, or at the same
/// time with a smaller number.
std::vector<OpId> launch_order(const RunContext& context, const CostModel& cost) {
  const OpTimes times = simulate(context.schedule, context.placement, context.model, context.cluster, cost,
                                 ExpectedRouting(context.model));
  std::vector<OpId> order(context.schedule.ops.size());
  std::iota(order.begin(), order.end(), OpId{0});
  std::stable_sort(order.begin(), order.end(), [&](OpId a, OpId b) {
    return times.start[static_cast<std::size_t>(a)] < times.start[static_cast<std::size_t>(b)];
  });
  return order;
}

}  // namespace

Session::Pass::Pass(const Session& session, const StepOptions& options)
    : placement(session.plan_, session.model_, options),
      schedule(build_schedule(session.plan_, session.model_, options)),
      context{session.model_, session.cluster_, placement, schedule} {}

Session::Session(ModelConfig model, Cluster cluster, Plan plan, Options options,
                 const MakeTransport& make_transport)
    : model_(std::move(model)),
      cluster_(std::move(cluster)),
      plan_(std::move(plan)),
      options_(std::move(options)),
      train_(*this, options_.step) {
  transport_ =
      make_transport ? make_transport(train_.schedule) : make_in_process_transport(cluster_.num_devices());
  check_trainable(model_);
  if (options_.local.empty()) {
    options_.local = devices_of(plan_);
  }
  for (const DeviceId device : options_.local) {
    const c10::Device where =
        options_.where.empty() ? c10::Device(at::kCPU) : options_.where[static_cast<std::size_t>(device)];
    states_.push_back(std::make_unique<DeviceState>(device, train_.schedule, model_,
                                                    storage_options(plan_, device, where)));
  }
  start(train_);
}

void Session::start(Pass& pass) {
  ExecutorOptions options = options_.executor;
  if (options_.launch_by != nullptr) options.launch_order = launch_order(pass.context, *options_.launch_by);
  pass.executor = std::make_unique<Executor>(pass.context, states(), *transport_, std::move(options));
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
  for (std::unique_ptr<DeviceState>& state : states_) state->store().initialize(seed);
}

StepResult Session::train_step(const StepInput& input) { return train_.executor->run(input); }

StepResult Session::evaluate(const StepInput& input) { return forward_pass().executor->run(input); }

TensorsByName Session::values() { return collect(false); }
TensorsByName Session::gradients() { return collect(true); }

TensorsByName Session::collect(bool gradients) {
  TensorsByName all;
  for (std::unique_ptr<DeviceState>& state : states_) {
    for (const LogicalTensor& view : state->store().tensors()) {
      const at::Tensor& tensor = gradients ? view.grad : view.value;
      if (!tensor.defined()) continue;
      const at::Tensor copy = host_copy(tensor);
      const auto [found, fresh] = all.try_emplace(view.name, copy);
      HM_CHECK(fresh || found->second.scalar_type() != tensor.scalar_type() || at::equal(found->second, copy),
               "replicas of {} differ: device {} has another {}", view.name, state->device(),
               gradients ? "gradient" : "value");
    }
  }
  return all;
}

}  // namespace hetermoe
