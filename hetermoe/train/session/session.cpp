#include "hetermoe/train/session/session.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "hetermoe/base/index.h"
#include "hetermoe/report/table.h"
#include "hetermoe/sim/simulator.h"

namespace hetermoe {

std::vector<DeviceId> devices_of(const Plan& plan) {
  std::vector<DeviceId> all;
  for (const Group& group : plan.groups) all.insert(all.end(), group.devices.begin(), group.devices.end());
  std::sort(all.begin(), all.end());
  return all;
}

std::vector<PlaceId> places_of(const Plan& plan, const Schedule& schedule) {
  std::vector<PlaceId> places = devices_of(plan);
  const std::vector<PlaceId> hosts = hosts_of(schedule);
  places.insert(places.end(), hosts.begin(), hosts.end());
  return places;
}

namespace {

/// The ops in the order in which they would start; what a transfer depends on starts earlier, or at the same
/// time with a smaller number.
std::vector<OpId> launch_order(const RunContext& context, const CostModel& cost) {
  const OpTimes times = simulate(context.schedule, context.placement, context.model, context.cluster, cost,
                                 ExpectedRouting(context.model));
  std::vector<OpId> order(context.schedule.ops.size());
  std::iota(order.begin(), order.end(), OpId{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](OpId a, OpId b) { return times.start[idx(a)] < times.start[idx(b)]; });
  return order;
}

/// An order that is written out lists the ops of a training step; a forward-only step orders its own.
Plan forward_plan(Plan plan) {
  if (plan.order != OrderPolicy::kExplicit) return plan;
  plan.order = OrderPolicy::kLayerMajor;
  plan.explicit_order.clear();
  return plan;
}

}  // namespace

Session::Pass::Pass(const Session& session, Plan its_plan, const StepOptions& options)
    : plan(std::move(its_plan)),
      placement(plan, session.model_, options),
      schedule(build_schedule(plan, session.model_, options)),
      context{session.model_, session.cluster_, placement, schedule} {}

Session::Session(ModelConfig model, Cluster cluster, Plan plan, Options options,
                 const MakeTransport& make_transport)
    : model_(std::move(model)), cluster_(std::move(cluster)), options_(std::move(options)) {
  // All before the first step, so that what is wrong with any of it is told then.
  passes_ = make_passes(std::move(plan));
  transport_ = make_transport ? make_transport(passes_.train->schedule)
                              : make_in_process_transport(passes_.train->schedule.num_places());
  check_trainable(model_);
  order_launches(*passes_.train, options_.launch_by);
  order_launches(*passes_.forward, options_.launch_by);
  add_states(*passes_.train, passes_.train->schedule);
  keep_lost();
  start(*passes_.train);
}

Session::Passes Session::make_passes(Plan plan) const {
  StepOptions forward = options_.step;
  forward.backward = forward.balance = false;
  forward.staleness = 0;  // it comes when all updates have ended
  Passes passes;
  passes.train = std::make_unique<Pass>(*this, std::move(plan), options_.step);
  passes.forward = std::make_unique<Pass>(*this, forward_plan(passes.train->plan), forward);
  return passes;
}

void Session::order_launches(Pass& pass, const CostModel* by) const {
  if (by == nullptr) return;
  pass.launch_order = launch_order(pass.context, *by);
  if (options_.agree_on_order)
    pass.launch_order = options_.agree_on_order(pass.schedule, std::move(pass.launch_order));
}

/// Of the places of a plan that live here and have none. placed: a schedule with the states that they hold.
void Session::add_states(const Pass& pass, const Schedule& placed) {
  for (const PlaceId place : places_of(pass.plan, pass.schedule)) {
    const std::vector<PlaceId>& local = options_.local;
    if (!local.empty() && std::find(local.begin(), local.end(), place) == local.end()) continue;
    const auto has = [&](const auto& state) { return state->device() == place; };
    if (std::any_of(states_.begin(), states_.end(), has)) continue;
    const bool on_cpu = options_.where.empty() || place >= cluster_.num_devices();
    const c10::Device where = on_cpu ? c10::Device(at::kCPU) : options_.where[idx(place)];
    StorageOptions storage = storage_options(pass.plan, place, where);
    if (!on_cpu && !options_.expert_products.empty())
      storage.expert_products = options_.expert_products[idx(place)];
    storage.lora = options_.step.lora;
    states_.push_back(std::make_unique<DeviceState>(place, placed, model_, storage));
    if (options_.step.staleness > 0) states_.back()->store().let_updates_lag();
    if (place >= cluster_.num_devices() && !options_.where.empty())
      locked_.emplace_back(states_.back()->store().copied_with_devices());
  }
}

std::vector<std::string> Session::notes() const {
  Bytes missing = 0;
  int error = 0;
  for (const LockedMemory& locked : locked_) {
    missing += locked.missing();
    if (locked.error() != 0) error = locked.error();
  }
  if (missing == 0) return {};
  return {
      fmt::format("{} of main memory cannot be locked for copies to GPUs (error {} of CUDA): they are slower "
                  "and wait. Raise the limit of locked memory (ulimit -l unlimited)",
                  format_bytes(missing), error)};
}

void Session::keep_lost() {
  for (const std::unique_ptr<DeviceState>& state : states_)
    state->store().keep_lost(passes_.train->plan, passes_.train->schedule.states);
}

void Session::start(Pass& pass) {
  ExecutorOptions options = options_.executor;
  options.launch_order = pass.launch_order;
  pass.executor = std::make_unique<Executor>(pass.context, states(), *transport_, std::move(options));
}

std::vector<DeviceState*> Session::states() {
  std::vector<DeviceState*> all;
  for (std::unique_ptr<DeviceState>& state : states_) all.push_back(state.get());
  return all;
}

void Session::initialize(u64 seed) {
  for (std::unique_ptr<DeviceState>& state : states_) state->store().initialize(seed);
}

StepResult Session::train_step(const StepInput& input) { return passes_.train->executor->run(input); }

StepResult Session::evaluate(const StepInput& input) {
  HM_CHECK(executor().steps_under_way() == 0, "a step is under way");
  if (!passes_.forward->executor) start(*passes_.forward);
  return passes_.forward->executor->run(input);
}

TensorsByName Session::values() { return collect(false); }
TensorsByName Session::gradients() { return collect(true); }

TensorsByName Session::collect(bool gradients) {
  HM_CHECK(executor().steps_under_way() == 0, "a step is under way");
  TensorsByName all;
  std::map<std::string, i64> missing;  // elements of tensors that are divided
  const std::string what = gradients ? "gradient" : "value";
  for (std::unique_ptr<DeviceState>& state : states_) {
    for (const LogicalTensor& view : state->store().tensors()) {
      const at::Tensor& tensor = gradients ? view.grad : view.value;
      if (!tensor.defined()) continue;
      if (gradients ? view.sharded : view.gathered) {
        const at::Tensor whole = at::empty(view.shape, tensor.options().device(at::kCPU));
        place_part(view, tensor, all.try_emplace(view.name, whole).first->second);
        missing.try_emplace(view.name, whole.numel()).first->second -= tensor.numel();
        continue;
      }
      const at::Tensor copy = host_copy(tensor);
      const auto [found, fresh] = all.try_emplace(view.name, copy);
      HM_CHECK(fresh || found->second.scalar_type() != tensor.scalar_type() || at::equal(found->second, copy),
               "replicas of {} differ: device {} has another {}", view.name, state->device(), what);
    }
  }
  for (const auto& [name, count] : missing)
    HM_CHECK(count == 0, "{} elements of the {} of {} are in other processes", count, what, name);
  return all;
}

}  // namespace hetermoe
