#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "hetermoe/exec/executor.h"
#include "hetermoe/nn/reference.h"
#include "hetermoe/ops/buffers.h"

// Runs plans for tests: with hooks for what a test wants to change or count, and the comparison with the
// reference.
namespace hetermoe::testing {

/// Over what the reference computes the load-balancing loss of such a step.
inline AuxLoss aux_of(const StepOptions& step) { return {step.aux_group, step.aux_per_layer}; }

/// Of tests in fp64 against the reference, relative to the largest entry of each gradient.
constexpr double kTolerance = 1e-10;

/// Passes messages on and lets a test see or alter them. Hooks are called on lane threads, at the same time.
class HookedTransport : public TransportDecorator {
 public:
  using Hook = std::function<void(const ExchangeCall&, std::vector<Message>&)>;
  HookedTransport(std::unique_ptr<Transport> inner, Hook on_send, Hook on_receive,
                  std::function<void()> on_abort)
      : TransportDecorator(std::move(inner)),
        on_send_(std::move(on_send)),
        on_receive_(std::move(on_receive)),
        on_abort_(std::move(on_abort)) {}

  std::string name() const override { return "hooked " + TransportDecorator::name(); }
  std::vector<Message> exchange(const ExchangeCall& call, std::vector<Message> out) override {
    if (on_send_) on_send_(call, out);
    std::vector<Message> in = inner().exchange(call, std::move(out));
    if (on_receive_) on_receive_(call, in);
    return in;
  }
  void abort(const std::string& reason) override {
    inner().abort(reason);
    if (on_abort_) on_abort_();
  }

 private:
  Hook on_send_, on_receive_;
  std::function<void()> on_abort_;
};

struct RigOptions {
  StepOptions step;
  ExecutorOptions executor;
  std::function<void(Schedule&)> alter;  ///< plants a fault in the schedule
  HookedTransport::Hook on_send, on_receive;
  std::function<void()> on_abort;
  bool checksum_messages = false;
  std::function<c10::Device(PlaceId)> where = {};  ///< where the tensors of a place are; null: on the CPU
};

/// Everything that runs one plan in this process.
class Rig {
 public:
  Rig(ModelConfig model, Cluster cluster, Plan plan, RigOptions options = {})
      : model_(std::move(model)),
        cluster_(std::move(cluster)),
        plan_(std::move(plan)),
        placement_(plan_, model_, options.step),
        schedule_(altered(build_schedule(plan_, model_, options.step), options.alter)),
        context_{model_, cluster_, placement_, schedule_},
        transport_(std::make_unique<HookedTransport>(make_in_process_transport(schedule_.num_places()),
                                                     options.on_send, options.on_receive, options.on_abort)) {
    if (options.checksum_messages) transport_ = make_checksummed_transport(std::move(transport_));
    std::set<PlaceId> devices;
    for (const Group& group : plan_.groups) devices.insert(group.devices.begin(), group.devices.end());
    for (const PlaceId host : hosts_of(schedule_)) devices.insert(host);
    std::vector<DeviceState*> pointers;
    for (const DeviceId device : devices) {
      const c10::Device where = options.where ? options.where(device) : c10::Device(at::kCPU);
      states_.push_back(
          std::make_unique<DeviceState>(device, schedule_, model_, storage_options(plan_, device, where)));
      states_.back()->store().keep_lost(plan_, schedule_.states);
      pointers.push_back(states_.back().get());
    }
    executor_ = std::make_unique<Executor>(context_, pointers, *transport_, options.executor);
  }

  const Schedule& schedule() const { return schedule_; }
  const Placement& placement() const { return placement_; }
  Plan& plan() { return plan_; }
  const ModelConfig& model() const { return model_; }
  const Cluster& cluster() const { return cluster_; }
  Executor& executor() { return *executor_; }
  const std::vector<std::unique_ptr<DeviceState>>& states() const { return states_; }
  Transport& transport() { return *transport_; }

  void load(const TensorsByName& values) {
    for (const std::unique_ptr<DeviceState>& state : states_) {
      for (const LogicalTensor& view : state->store().tensors())
        view.value.copy_(kept_value_of(view, values.at(view.name)));
    }
  }
  TensorsByName values() { return collect(false); }
  TensorsByName gradients() { return collect(true); }
  /// Names of tensors of which two devices hold different values or gradients.
  std::set<std::string> differing_replicas() {
    std::set<std::string> names;
    TensorsByName first_value = values(), first_grad = gradients();
    for (const std::unique_ptr<DeviceState>& state : states_) {
      for (const LogicalTensor& view : state->store().tensors()) {
        const auto equals = [](const at::Tensor& own, const at::Tensor& first) {
          return at::equal(own.to(at::kCPU), first);
        };
        const bool same =
            equals(view.value, kept_value_of(view, first_value.at(view.name))) &&
            (!view.grad.defined() || view.sharded || equals(view.grad, first_grad.at(view.name)));
        if (!same) names.insert(view.name);
      }
    }
    return names;
  }

 private:
  static Schedule altered(Schedule schedule, const std::function<void(Schedule&)>& alter) {
    if (alter) alter(schedule);
    return schedule;
  }
  TensorsByName collect(bool gradients) {
    TensorsByName all;
    for (const std::unique_ptr<DeviceState>& state : states_) {
      for (const LogicalTensor& view : state->store().tensors()) {
        const at::Tensor& tensor = gradients ? view.grad : view.value;
        if (!tensor.defined()) continue;
        if (gradients ? view.sharded : view.gathered) {
          const at::Tensor whole = at::empty(view.shape, tensor.options().device(at::kCPU));
          place_part(view, tensor.to(at::kCPU), all.try_emplace(view.name, whole).first->second);
        } else {
          all.try_emplace(view.name, tensor.to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false,
                                               /*copy=*/true));
        }
      }
    }
    return all;
  }

  ModelConfig model_;
  Cluster cluster_;
  Plan plan_;
  Placement placement_;
  Schedule schedule_;
  RunContext context_;
  std::unique_ptr<Transport> transport_;
  std::vector<std::unique_ptr<DeviceState>> states_;
  std::unique_ptr<Executor> executor_;
};

/// Seeded values with a wide spread, so that attention, routers and experts all matter; fp64.
inline TensorsByName lively_values(const ModelConfig& model, u64 seed = 7) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  TensorsByName values;
  for (const ParamInfo& info : parameters(model)) {
    at::Tensor value = at::randn(info.shape, generator, at::TensorOptions().dtype(at::kDouble));
    if (info.buffer) {
      value.mul_(0.1);
    } else if (info.shape.size() == 1) {
      value.mul_(0.2).add_(1);
    } else {
      value.mul_(0.3);
    }
    values[info.name] = value;
  }
  return values;
}

/// Random tokens and targets; every seventh target or so does not count. The last one of a sequence always
/// does: where only the first counts, the gradients of q and k are zero but for rounding, which no relative
/// tolerance fits.
inline StepInput random_input(const Plan& plan, const ModelConfig& model, u64 seed = 3) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  const std::vector<i64> shape = {total_sequences(plan), plan.seq_len};
  StepInput input;
  input.tokens = at::randint(0, model.vocab, shape, generator, at::TensorOptions().dtype(at::kLong));
  input.targets = at::randint(0, model.vocab, shape, generator, at::TensorOptions().dtype(at::kLong));
  const at::Tensor drawn = at::rand(shape, generator, at::TensorOptions());
  input.targets.masked_fill_(drawn.lt(0.14), -100);
  input.targets.select(1, plan.seq_len - 1).fill_(1);
  input.target_count = input.targets.ne(-100).sum().item<i64>();
  return input;
}

/// What one step of a plan ends with; "" = no error.
inline std::string error_of_step(const ModelConfig& model, const Cluster& cluster, const Plan& plan,
                                 const RigOptions& options) {
  Rig rig(model, cluster, plan, options);
  rig.load(lively_values(model));
  try {
    rig.executor().run(random_input(plan, model));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// max |a - b| / max(max |b|, 1e-6 x the largest gradient), the worst over all tensors.
struct Comparison {
  double loss = 0, aux_loss = 0, gradient = 0;
  std::string worst;  ///< name of the gradient
  double max() const { return std::max({loss, aux_loss, gradient}); }
};

inline double relative(double a, double b) { return std::abs(a - b) / std::max(std::abs(b), 1e-12); }

inline Comparison compare(const StepResult& result, const TensorsByName& gradients,
                          const ReferenceResult& expected) {
  Comparison out;
  // NaN must not look like agreement: max() with NaN keeps the other side.
  const auto defined = [](double x) { return std::isfinite(x) ? x : 1e30; };
  out.loss = defined(relative(result.loss + result.aux_loss, expected.loss));
  out.aux_loss = defined(std::abs(result.aux_loss - expected.aux_loss) / std::abs(expected.loss));
  double largest = 0;
  for (const auto& [name, grad] : expected.grads)
    largest = std::max(largest, grad.abs().max().item<double>());
  EXPECT_EQ(gradients.size(), expected.grads.size());
  for (const auto& [name, grad] : expected.grads) {
    const auto found = gradients.find(name);
    if (found == gradients.end()) {
      ADD_FAILURE() << "no gradient of " << name;
      continue;
    }
    const double scale = std::max(grad.abs().max().item<double>(), 1e-6 * largest);
    const double error = defined((found->second.to(at::kDouble) - grad).abs().max().item<double>() / scale);
    if (error > out.gradient) {
      out.gradient = error;
      out.worst = name;
    }
  }
  return out;
}

}  // namespace hetermoe::testing
