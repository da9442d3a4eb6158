#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "tests/support/guest_plan.h"
#include "tests/support/one_thread.h"
#include "tests/support/rig.h"

// Faults planted in messages and schedules: each must make the comparison with the reference fail.
namespace hetermoe::testing {
namespace {

constexpr double kCaught = 1e-6;  // a planted fault is no rounding

struct Scene {
  ModelConfig model = tiny_mixtral();
  Cluster cluster = make_cluster(4);
  Plan plan;
  StepOptions step = {true, 1, true};
};

/// Zebra with experts moved onto the attention devices: every kind of op but move.
Scene zebra_scene() {
  Scene s;
  s.model.num_experts = 6;
  StrategyRequest request;
  request.seq_len = 4;
  request.sequences = 6;
  request.microbatches = 2;
  request.experts_moved = {1, 1};
  s.plan = find_strategy("zebra").make(s.model, s.cluster, request);
  use_fp64(s.plan);
  return s;
}

Scene pipeline_scene() {
  Scene s = zebra_scene();
  StrategyRequest request;
  request.seq_len = 4;
  request.sequences = 6;
  request.microbatches = 3;
  s.plan = make_pipeline(s.model, s.cluster, request);
  use_fp64(s.plan);
  return s;
}

/// How far a run is from the reference; "refused" when it throws.
struct Outcome {
  double error = 0;
  bool refused = false;
  std::set<std::string> differing;
  bool caught() const { return refused || error > kCaught || !differing.empty(); }
};

Outcome run(const Scene& s, const RigOptions& mutation) {
  RigOptions options = mutation;
  options.step = s.step;
  Rig rig(s.model, s.cluster, s.plan, options);
  const TensorsByName values = lively_values(s.model);
  rig.load(values);
  const StepInput input = random_input(s.plan, s.model);
  Outcome out;
  try {
    const StepResult result = rig.executor().run(input);
    const ReferenceResult expected =
        reference_step(s.model, values, input.tokens, input.targets, aux_of(s.step));
    out.error = compare(result, rig.gradients(), expected).max();
    double squares = 0;
    for (const auto& [name, grad] : expected.grads) squares += grad.pow(2).sum().item<double>();
    out.error = std::max(out.error, relative(result.grad_norm, std::sqrt(squares)));
    out.differing = rig.differing_replicas();
  } catch (const Error&) {
    out.refused = true;
  }
  return out;
}

/// Alters what arrives in ops whose name begins so. Counts how often it did.
struct MessageMutation {
  std::string ops;
  std::function<void(const ExchangeCall&, std::vector<Message>&)> alter;
  i32 round = -1;  ///< of an op that is several exchanges: which one, -1 = all
};

Outcome run_with(const Scene& s, const MessageMutation& mutation) {
  std::atomic<int> altered = 0;
  RigOptions options;
  options.on_receive = [&](const ExchangeCall& call, std::vector<Message>& in) {
    if (!call.name.starts_with(mutation.ops)) return;
    if (mutation.round >= 0 && call.round != mutation.round) return;
    mutation.alter(call, in);
    ++altered;
  };
  const Outcome out = run(s, options);
  EXPECT_GT(altered, 0) << mutation.ops;
  EXPECT_FALSE(out.refused) << mutation.ops << ": meant to run";
  return out;
}

/// Replaces tensor `t` of every message that has it. Tensors are shared with the sender: never altered in
/// place.
MessageMutation replace(const std::string& ops, std::size_t t, at::Tensor (*change)(const at::Tensor&),
                        i32 round = -1) {
  return {ops,
          [t, change](const ExchangeCall&, std::vector<Message>& in) {
            for (Message& message : in) {
              if (message.tensors.size() > t) message.tensors[t] = change(message.tensors[t]);
            }
          },
          round};
}

at::Tensor zeros(const at::Tensor& x) { return at::zeros_like(x); }
at::Tensor reversed(const at::Tensor& x) { return x.flip(0); }
at::Tensor first_two_swapped(const at::Tensor& x) {
  at::Tensor out = x.clone();
  if (x.size(0) < 2) return out;
  out[0].copy_(x[1]);
  out[1].copy_(x[0]);
  return out;
}

TEST(Mutation, NothingPlantedNothingFound) {
  for (const Scene& s : {zebra_scene(), pipeline_scene()}) {
    const Outcome out = run(s, {});
    EXPECT_LE(out.error, kTolerance);
    EXPECT_FALSE(out.caught());
  }
}

TEST(Mutation, LostGradientOfRoutingWeights) {
  EXPECT_GT(run_with(zebra_scene(), replace("dispatch.B", 1, zeros)).error, kCaught);
}

TEST(Mutation, LostGradientOfRows) {
  EXPECT_GT(run_with(zebra_scene(), replace("dispatch.B", 0, zeros)).error, kCaught);
}

TEST(Mutation, WrongOrderOfRowsOrCopies) {
  // After the sizes dispatch.F carries rows, weights, row of each copy, expert of each copy.
  constexpr i32 kAfterSizes = 1;
  const Scene zebra = zebra_scene();
  for (const auto& mutation :
       {replace("dispatch.F", 0, first_two_swapped, kAfterSizes),
        replace("dispatch.F", 1, first_two_swapped, kAfterSizes),
        replace("dispatch.F", 2, first_two_swapped, kAfterSizes),
        replace("dispatch.F", 3, reversed, kAfterSizes), replace("combine.F", 0, first_two_swapped),
        replace("combine.B", 0, first_two_swapped), replace("dispatch.B", 0, first_two_swapped),
        replace("dispatch.B", 1, first_two_swapped)}) {
    EXPECT_GT(run_with(zebra, mutation).error, kCaught) << mutation.ops;
  }
  const Scene pipeline = pipeline_scene();
  for (const char* ops : {"move.F", "move.B"}) {
    EXPECT_GT(run_with(pipeline, replace(ops, 0, first_two_swapped)).error, kCaught) << ops;
  }
}

TEST(Mutation, ReduceThatForgetsAPeer) {
  const MessageMutation forget = {"reduce", [](const ExchangeCall& call, std::vector<Message>& in) {
                                    if (call.self != call.participants[0]) return;
                                    for (at::Tensor& tensor : in.back().tensors) tensor = zeros(tensor);
                                  }};
  const Outcome out = run_with(zebra_scene(), forget);
  EXPECT_GT(out.error, kCaught);
  EXPECT_FALSE(out.differing.empty());
}

TEST(Mutation, BalanceAndNormThatForgetAPeer) {
  const auto forget_balance = [](const ExchangeCall&, std::vector<Message>& in) {
    in.back().tensors[0] = zeros(in.back().tensors[0]);
  };
  EXPECT_GT(run_with(zebra_scene(), {"balance", forget_balance}).error, kCaught);
  const auto forget_norm = [](const ExchangeCall&, std::vector<Message>& in) {
    for (double& value : in.back().values) value = 0;
  };
  EXPECT_GT(run_with(zebra_scene(), {"norm", forget_norm}).error, kCaught);
}

/// The schedule without one op; what depended on it no longer does.
void drop_op(Schedule& schedule, OpId dropped) {
  Schedule out;
  out.num_devices = schedule.num_devices;
  out.states = schedule.states;
  for (OpId op = 0; op < schedule.num_ops(); ++op) {
    if (op == dropped) continue;
    out.ops.push_back(schedule.ops[static_cast<std::size_t>(op)]);
    for (const LaneId lane : schedule.lanes_of(op)) out.lanes.push_back(lane);
    for (const OpId dep : schedule.deps_of(op)) {
      if (dep != dropped) out.deps.push_back(dep > dropped ? dep - 1 : dep);
    }
    out.lane_begin.push_back(static_cast<i64>(out.lanes.size()));
    out.dep_begin.push_back(static_cast<i64>(out.deps.size()));
  }
  schedule = std::move(out);
}

TEST(Mutation, EveryMissingReduceIsFound) {
  const Scene s = zebra_scene();
  const Schedule sound = build_schedule(s.plan, s.model, s.step);
  i64 reduces = 0;
  for (OpId op = 0; op < sound.num_ops(); ++op) {
    if (sound.ops[static_cast<std::size_t>(op)].kind != OpKind::kReduce) continue;
    Schedule altered = sound;
    drop_op(altered, op);
    EXPECT_FALSE(validate(altered, s.plan, s.model, s.step).empty());
    RigOptions options;
    options.alter = [&](Schedule& schedule) { drop_op(schedule, op); };
    const Outcome out = run(s, options);
    EXPECT_GT(out.error, kCaught) << to_string(sound.ops[static_cast<std::size_t>(op)]);
    EXPECT_FALSE(out.differing.empty());
    ++reduces;
  }
  EXPECT_GT(reduces, 2);
}

struct Dependency {
  OpId op, needs;
};

void drop_dependency(Schedule& schedule, const Dependency& dropped) {
  const auto begin = static_cast<std::size_t>(schedule.dep_begin[static_cast<std::size_t>(dropped.op)]);
  std::size_t at = begin;
  while (schedule.deps[at] != dropped.needs) ++at;
  schedule.deps.erase(schedule.deps.begin() + static_cast<std::ptrdiff_t>(at));
  for (std::size_t op = static_cast<std::size_t>(dropped.op) + 1; op < schedule.dep_begin.size(); ++op)
    --schedule.dep_begin[op];
}

/// Holds an op back until the op that no longer waits for it has begun (or failed), and by `pause` longer, so
/// that the two meet in the wrong order; gives up after `limit`, as the order may follow from messages of
/// other devices.
class Overtake {
 public:
  Overtake(const Schedule& schedule, const Dependency& dependency, std::chrono::milliseconds limit,
           std::chrono::milliseconds pause)
      : limit_(limit),
        pause_(pause),
        early_(schedule.ops[static_cast<std::size_t>(dependency.op)]),
        late_(schedule.ops[static_cast<std::size_t>(dependency.needs)]) {
    for (const LaneId lane : schedule.lanes_of(dependency.op)) early_devices_.insert(device_of(lane));
    for (const LaneId lane : schedule.lanes_of(dependency.needs)) late_devices_.insert(device_of(lane));
  }
  void before_op(const Op& op, DeviceId device) {
    if (op == early_ && early_devices_.contains(device) && late_devices_.contains(device)) begin();
    if (!(op == late_ && late_devices_.contains(device))) return;
    std::unique_lock lock(mutex_);
    begun_.wait_for(lock, limit_, [&] { return has_begun_; });
    lock.unlock();
    std::this_thread::sleep_for(pause_);
  }
  void begin() {
    const std::lock_guard lock(mutex_);
    has_begun_ = true;
    begun_.notify_all();
  }

 private:
  std::chrono::milliseconds limit_, pause_;
  Op early_, late_;
  std::set<DeviceId> early_devices_, late_devices_;
  std::mutex mutex_;
  std::condition_variable begun_;
  bool has_begun_ = false;
};

/// Removes each dependency in turn. validate() must refuse every schedule so made; a run must go wrong or be
/// refused, but for `implied` cases in which messages of other devices give the order.
void drop_every_dependency(const Scene& s, const std::vector<std::string>& implied) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "plants data races";
#endif
  const Schedule sound = build_schedule(s.plan, s.model, s.step);
  ASSERT_TRUE(validate(sound, s.plan, s.model, s.step).empty());
  i64 dropped = 0;
  std::vector<std::string> silent;
  for (OpId op = 0; op < sound.num_ops(); ++op) {
    for (const OpId needs : sound.deps_of(op)) {
      const Dependency dependency{op, needs};
      const std::string name = to_string(sound.ops[static_cast<std::size_t>(op)]) + " without " +
                               to_string(sound.ops[static_cast<std::size_t>(needs)]);
      Schedule altered = sound;
      drop_dependency(altered, dependency);
      EXPECT_FALSE(validate(altered, s.plan, s.model, s.step).empty()) << name;
      // On a busy machine the two may meet in the right order after all: then the next try is more patient.
      const bool is_implied = std::find(implied.begin(), implied.end(), name) != implied.end();
      bool caught = false;
      for (int patience = 1; patience <= (is_implied ? 1 : 16) && !caught; patience *= 4) {
        Overtake overtake(sound, dependency, patience * std::chrono::milliseconds(150),
                          patience * std::chrono::milliseconds(3));
        RigOptions options;
        options.alter = [&](Schedule& schedule) { drop_dependency(schedule, dependency); };
        options.executor.before_op = [&](const Op& o, DeviceId device) { overtake.before_op(o, device); };
        options.on_abort = [&] { overtake.begin(); };
        caught = run(s, options).caught();
      }
      if (!caught) silent.push_back(name);
      ++dropped;
    }
  }
  EXPECT_GT(dropped, 50);
  EXPECT_EQ(silent, implied);
}

TEST(Mutation, EveryDroppedDependencyOfZebra) { drop_every_dependency(zebra_scene(), {}); }

TEST(Mutation, EveryDroppedDependencyOfAPipeline) {
  // The gradients that reach the first stage come from devices that have waited for the same balance.
  std::vector<std::string> implied;
  for (int m = 0; m < 3; ++m) {
    for (int device = 0; device < 2; ++device)
      implied.push_back(fmt::format("attention.B l0 m{} without balance m{}", m, m));
  }
  drop_every_dependency(pipeline_scene(), implied);
}

/// Owners of experts on one node, of which some are lent.
Scene guests_scene() {
  Scene s;
  s.model.num_experts = 6;
  s.cluster = make_cluster(4, 2, 1);
  StrategyRequest request;
  request.seq_len = 4;
  request.sequences = 6;
  request.microbatches = 2;
  s.plan = find_strategy("zebra").make(s.model, s.cluster, request);
  use_guests(s.plan, s.model, 1, 1);
  use_fp64(s.plan);
  return s;
}

/// What only the turn of guests keeps changes no number, but how many guests are there at once
/// (Guests.AreThereForAsManyExchangesAsThereAreTurns).
TEST(Mutation, EveryDroppedDependencyOfGuests) {
  std::vector<std::string> implied;
  for (const char* kept : {"lend.F l0 m1 without experts.F l0 m0", "lend.F l1 m0 without experts.F l0 m1",
                           "lend.F l1 m1 without experts.F l1 m0", "lend.B l1 m0 without experts.F l1 m1",
                           "lend.B l1 m1 without experts.B l1 m0", "lend.B l0 m1 without experts.B l0 m0"})
    implied.insert(implied.end(), 2, kept);  // on two owners
  drop_every_dependency(guests_scene(), implied);
}

TEST(Mutation, WrongGuestsAndLostGradientsOfGuests) {
  const Scene s = guests_scene();
  EXPECT_FALSE(run(s, {}).caught());
  EXPECT_GT(run_with(s, replace("lend.F", 0, zeros)).error, kCaught);
  EXPECT_GT(run_with(s, replace("lend.B", 1, zeros)).error, kCaught);
  EXPECT_GT(run_with(s, replace("settle.B", 0, zeros)).error, kCaught);
  EXPECT_GT(run_with(s, replace("settle.B", 1, zeros)).error, kCaught);
}

/// One team of two devices; the second has tokens and no heads but one.
Scene team_scene() {
  Scene s = zebra_scene();
  s.cluster = make_cluster(2);
  StrategyRequest request;
  request.seq_len = 6, request.sequences = 4, request.microbatches = 2;
  request.team = {2};
  request.head_weights = {3, 1};
  s.plan = find_strategy("sp-ep").make(s.model, s.cluster, request);
  s.plan.recompute = Recompute::kAhead;
  use_fp64(s.plan);
  return s;
}

/// Queries, keys and values forth, again for backward, and their gradients; the kernel's output and its
/// gradient.
// Claim (Mutations.WhatTravelsInsideATeamIsCaught, Mutations.LatentsInsideATeamAreCaught,
// Mutations.ADeviceWithoutHeads*): what travels inside a team, and a device without heads that is left out,
// are caught
TEST(Mutations, WhatTravelsInsideATeamIsCaught) {
  const Scene s = team_scene();
  ASSERT_LE(run(s, {}).error, kTolerance);
  for (const char* ops : {"to_heads.F", "to_heads.R", "to_heads.B"}) {
    for (std::size_t t = 0; t < 3; ++t) {
      EXPECT_TRUE(run_with(s, replace(ops, t, zeros)).caught()) << ops << " " << t;
      EXPECT_TRUE(run_with(s, replace(ops, t, reversed)).caught()) << ops << " " << t;
    }
  }
  for (const char* ops : {"to_tokens.F", "to_tokens.B"}) {
    EXPECT_TRUE(run_with(s, replace(ops, 0, zeros)).caught()) << ops;
    EXPECT_TRUE(run_with(s, replace(ops, 0, reversed)).caught()) << ops;
  }
}

/// Queries, the turned key and the latent, and the gradients of each.
TEST(Mutations, LatentsInsideATeamAreCaught) {
  Scene s = team_scene();
  s.model = load_model("tiny-deepseek-v2");
  s.model.kv_lora_rank = 12;
  StrategyRequest request;
  request.seq_len = 6, request.sequences = 4, request.microbatches = 2;
  request.team = {2};
  s.plan = find_strategy("sp-ep").make(s.model, s.cluster, request);
  s.plan.recompute = Recompute::kAhead;
  use_fp64(s.plan);
  ASSERT_TRUE(Placement(s.plan, s.model, s.step).teams_of(0, 0, 0)[0].latents);
  ASSERT_LE(run(s, {}).error, kTolerance);
  for (const char* ops : {"to_heads.F", "to_heads.R", "to_heads.B"}) {
    for (std::size_t t = 0; t < 3; ++t)
      EXPECT_TRUE(run_with(s, replace(ops, t, zeros)).caught()) << ops << " " << t;
  }
}

/// A device without heads has tokens that others need.
TEST(Mutations, ADeviceWithoutHeadsMustStandInTheExchange) {
  Scene s = team_scene();
  for (LayerPlacement& layer : s.plan.groups[0].layers) {
    for (ShareRow& row : layer.attention) row[0].heads += row[1].heads, row[1].heads = 0;
  }
  s.plan.groups[0].embed = s.plan.groups[0].head = s.plan.groups[0].layers[0].attention;
  ASSERT_LE(run(s, {}).error, kTolerance);
  Schedule schedule = build_schedule(s.plan, s.model, s.step);
  ASSERT_EQ(validate(schedule, s.plan, s.model, s.step), std::vector<std::string>{});
  for (OpId op = 0; op < schedule.num_ops(); ++op) {
    if (to_string(schedule.ops[static_cast<std::size_t>(op)]) != "to_heads.F l0 m0 t0") continue;
    const auto end = schedule.lane_begin.begin() + op + 1;
    schedule.lanes.erase(schedule.lanes.begin() + *end - 1);
    for (auto begin = end; begin != schedule.lane_begin.end(); ++begin) --*begin;
    const std::vector<std::string> faults = validate(schedule, s.plan, s.model, s.step);
    ASSERT_FALSE(faults.empty());
    EXPECT_NE(faults[0].find("to_heads.F l0 m0 t0 has lanes"), std::string::npos) << faults[0];
    return;
  }
  FAIL() << "no to_heads";
}

}  // namespace
}  // namespace hetermoe::testing
