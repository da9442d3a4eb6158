#include <c10/core/GradMode.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>

#include "fuzz/messages.h"
#include "fuzz/micro_model.h"
#include "fuzz/small_plans.h"
#include "fuzz/target.h"
#include "hetermoe/exec/device_runtime.h"
#include "hetermoe/exec/ops/op_functions.h"

// What a peer sent, as the ops of a device check it, unpack it and compute with it. A scene is a step that
// has come to a transfer; for each exchange of each kind and phase there is one. The first byte of an input
// chooses the scene, the others are the message of one peer without magic number and checksum.
namespace hetermoe::fuzz {
namespace {

/// What a device sends in an exchange, to whom.
struct Sent {
  std::vector<DeviceId> peers;
  std::vector<Message> messages;
};
using Runtimes = std::function<DeviceRuntime&(DeviceId)>;

std::map<DeviceId, Sent> sent_by(const TransferOp& transfer, const Op& op,
                                 const std::vector<DeviceId>& participants, const Runtimes& runtime_of) {
  std::map<DeviceId, Sent> all;
  for (const DeviceId device : participants) {
    Sent& sent = all[device];
    sent.peers = peers_of(transfer, demo_cluster(), participants, device);
    sent.messages = runtime_of(device).pack(transfer, op, sent.peers);
  }
  return all;
}

/// From each of its peers.
std::vector<Message> received_by(DeviceId device, const std::map<DeviceId, Sent>& sent) {
  std::vector<Message> in;
  for (const DeviceId peer : sent.at(device).peers) {
    const Sent& theirs = sent.at(peer);
    in.push_back(theirs.messages[position(std::span<const DeviceId>(theirs.peers), device)]);
  }
  return in;
}

/// All devices of a plan, in one thread.
class Step {
 public:
  Step(const ModelConfig& model, Plan plan)
      : model_(model),
        plan_(std::move(plan)),
        options_{.balance = true, .aux_group = 1, .backward = true, .frozen = {}},
        placement_(plan_, model_, options_),
        schedule_(build_schedule(plan_, model_, options_)),
        context_{model_, demo_cluster(), placement_, schedule_} {
    input_.tokens = at::arange(total_sequences(plan_) * plan_.seq_len).remainder(model.vocab);
    input_.tokens = input_.tokens.view({total_sequences(plan_), plan_.seq_len});
    input_.targets = input_.tokens;
    input_.target_count = input_.targets.numel();
    for (const DeviceId device : plan_.groups[0].devices) {
      states_.push_back(
          std::make_unique<DeviceState>(device, schedule_, model_, storage_options(plan_, device)));
      states_.back()->store().initialize(1);
      runtimes_[device] = std::make_unique<DeviceRuntime>(context_, *states_.back());
      runtimes_[device]->begin_step(input_);
    }
  }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  const Schedule& schedule() const { return schedule_; }
  const Placement& placement() const { return placement_; }
  const std::vector<std::unique_ptr<DeviceState>>& states() const { return states_; }
  const StepInput& input() const { return input_; }
  DeviceRuntime& runtime(DeviceId device) { return *runtimes_.at(device); }

  /// Runs all ops before `end`, which come after those that they depend on.
  void run_until(OpId end) {
    for (OpId id = 0; id < end; ++id) {
      const Op& op = schedule_.ops[idx(id)];
      const std::vector<DeviceId> devices = participants(schedule_, id);
      if (is_compute(op.kind)) {
        runtime(devices[0]).compute(op);
        continue;
      }
      exchange_until(id, nullptr);
    }
  }

  /// Runs the exchanges of a transfer before `end`, null = all.
  void exchange_until(OpId id, const TransferOp* end) {
    const Op& op = schedule_.ops[idx(id)];
    const std::vector<DeviceId> devices = participants(schedule_, id);
    for (const TransferOp* each = &transfer_op_of(op, placement_, demo_cluster()); each != end;
         each = each->next) {
      const std::map<DeviceId, Sent> sent =
          sent_by(*each, op, devices, [this](DeviceId d) -> DeviceRuntime& { return runtime(d); });
      for (const DeviceId device : devices) {
        std::vector<Message> in = received_by(device, sent);
        runtime(device).unpack(*each, op, sent.at(device).peers, in);
      }
    }
  }

  /// Computes what follows on a device from what it has received in `received`, as far as nothing else is
  /// awaited. Updates are left out, which would change all later inputs.
  void compute_after(OpId received, DeviceId device) {
    std::set<OpId> missing;
    for (OpId id = received + 1; id < schedule_.num_ops(); ++id) {
      const std::vector<DeviceId> devices = participants(schedule_, id);
      if (std::find(devices.begin(), devices.end(), device) == devices.end()) continue;
      const Op& op = schedule_.ops[idx(id)];
      const std::span<const OpId> needed = schedule_.deps_of(id);
      const bool ready =
          std::none_of(needed.begin(), needed.end(), [&](OpId dep) { return missing.count(dep) > 0; });
      if (!is_compute(op.kind)) {
        missing.insert(id);
      } else if (!ready || op.kind == OpKind::kUpdate) {
        return;
      } else {
        runtime(device).compute(op);
      }
    }
  }

  static std::vector<DeviceId> participants(const Schedule& schedule, OpId op) {
    std::vector<DeviceId> devices;
    for (const LaneId lane : schedule.lanes_of(op)) devices.push_back(device_of(lane));
    return devices;
  }

 private:
  const ModelConfig& model_;
  Plan plan_;
  StepOptions options_;
  Placement placement_;
  Schedule schedule_;
  RunContext context_;
  StepInput input_;
  std::vector<std::unique_ptr<DeviceState>> states_;
  std::map<DeviceId, std::unique_ptr<DeviceRuntime>> runtimes_;
};

/// Where a message of `peer` to `self` is awaited.
struct Scene {
  OpId id = 0;
  Op op;
  const TransferOp* transfer = nullptr;  ///< which of the op's exchanges
  DeviceId self = 0;
  std::size_t peer = 0;                ///< among these
  std::vector<DeviceId> participants;  ///< of the exchange, with `self`
  std::vector<Message> in;
};

bool is_empty(const Message& message) {
  return message.numbers.empty() && message.values.empty() && message.tensors.empty();
}

/// The first pair of a sender and a receiver with something to say; false = there is none.
bool choose_pair(Scene& scene, const Runtimes& runtime_of) {
  const std::map<DeviceId, Sent> sent = sent_by(*scene.transfer, scene.op, scene.participants, runtime_of);
  for (const auto& [device, own] : sent) {
    const std::vector<Message> in = received_by(device, sent);
    for (std::size_t from = 0; from < in.size(); ++from) {
      if (own.peers[from] == device || is_empty(in[from])) continue;
      // Of rows some, where there are any: indices of none prove little.
      if (!in[from].tensors.empty() && in[from].tensors[0].numel() == 0) continue;
      scene.self = device;
      scene.peer = from;
      scene.participants = own.peers;
      scene.in = in;
      return true;
    }
  }
  return false;
}

const ModelConfig& model() {
  static const ModelConfig micro = micro_model(2, 4);
  return micro;
}

StrategyRequest small_request() {
  StrategyRequest request;
  request.seq_len = 2;
  request.sequences = 4;
  request.microbatches = 2;
  return request;
}

/// Every kind of transfer: experts on attention devices, a head elsewhere, replicas.
Plan mixed_plan() {
  StrategyRequest request = small_request();
  request.experts_moved = {1, 0};
  Plan plan = find_strategy("zebra").make(model(), demo_cluster(), request);
  plan.groups[0].head = make_share_rows({1, 2}, plan.groups[0].microbatches, {});
  return plan;
}

Plan other_plan() { return find_strategy("ep").make(model(), demo_cluster(), small_request()); }

/// Replicas that each update a part of the parameters.
Plan sharded_plan() {
  Plan plan = other_plan();
  plan.shard_optimizer = true;
  return plan;
}

void check(DeviceRuntime& runtime, const Scene& scene, const std::vector<Message>& in) {
  const Message& own = in[position(scene.participants, runtime.device())];
  runtime.check(*scene.transfer, scene.op, scene.participants,
                runtime.expected(*scene.transfer, scene.op, scene.participants, own), in);
}

/// A transfer of a step. What an input leaves in its buffers is overwritten by the next.
class StepScene {
 public:
  StepScene(const Plan& plan, OpId id, const TransferOp& transfer)
      : step_(std::make_unique<Step>(model(), plan)) {
    step_->run_until(id);
    step_->exchange_until(id, &transfer);
    scene_.id = id;
    scene_.transfer = &transfer;
    scene_.op = step_->schedule().ops[idx(id)];
    scene_.participants = Step::participants(step_->schedule(), id);
    found_ = choose_pair(scene_, [this](DeviceId d) -> DeviceRuntime& { return step_->runtime(d); });
  }
  bool found() const { return found_; }
  const Scene& scene() const { return scene_; }

  void receive(const Message& message) {
    std::vector<Message> in = scene_.in;
    in[scene_.peer] = message;
    DeviceRuntime& runtime = step_->runtime(scene_.self);
    check(runtime, scene_, in);
    runtime.unpack(*scene_.transfer, scene_.op, scene_.participants, in);
    if (scene_.transfer->next == nullptr) step_->compute_after(scene_.id, scene_.self);
  }

 private:
  std::unique_ptr<Step> step_;
  Scene scene_;
  bool found_ = false;
};

/// The first layer that moves in a change of plan. Made anew for every message that is taken, which changes
/// where parameters lie.
class MigrateScene {
 public:
  MigrateScene()
      : before_(model(), mixed_plan()),
        after_(model(), other_plan()),
        migration_(make_migration(moves_between(mixed_plan(), other_plan(), model(), demo_cluster()).moves,
                                  demo_cluster().num_devices())),
        run_{.migration = migration_,
             .before = before_.schedule().states,
             .num_layers = static_cast<i32>(model().num_layers)},
        context_{model(), demo_cluster(), after_.placement(), migration_.schedule, &run_} {
    for (const std::unique_ptr<DeviceState>& state : before_.states()) {
      rearrange_alone(run_, after_.schedule().states, *state);
      runtimes_[state->device()] = std::make_unique<DeviceRuntime>(context_, *state);
    }
    scene_.op = migration_.schedule.ops[0];
    scene_.transfer = &transfer_op_of(scene_.op, after_.placement(), demo_cluster());
    scene_.participants = Step::participants(migration_.schedule, 0);
    choose_pair(scene_, [this](DeviceId d) -> DeviceRuntime& { return *runtimes_.at(d); });
  }
  const Scene& scene() const { return scene_; }

  void receive(const Message& message) {
    std::vector<Message> in = scene_.in;
    in[scene_.peer] = message;
    DeviceRuntime& runtime = *runtimes_.at(scene_.self);
    check(runtime, scene_, in);
    runtime.unpack(*scene_.transfer, scene_.op, scene_.participants, in);
  }

 private:
  Step before_, after_;
  Migration migration_;
  MigrationRun run_;
  RunContext context_;
  std::map<DeviceId, std::unique_ptr<DeviceRuntime>> runtimes_;
  Scene scene_;
};

/// The exchanges of the first transfer with something to say of each kind and phase.
std::vector<StepScene> make_step_scenes() {
  const c10::NoGradGuard no_grad;
  std::vector<StepScene> scenes;
  std::set<std::pair<OpKind, Phase>> seen;
  for (const Plan& plan : {mixed_plan(), sharded_plan()}) {
    const Step step(model(), plan);
    const Schedule& schedule = step.schedule();
    for (OpId id = 0; id < schedule.num_ops(); ++id) {
      const Op& op = schedule.ops[idx(id)];
      if (is_compute(op.kind) || seen.count({op.kind, op.phase}) > 0) continue;
      for (const TransferOp* each = &transfer_op_of(op, step.placement(), demo_cluster()); each;
           each = each->next) {
        StepScene scene(plan, id, *each);
        if (!scene.found()) continue;
        seen.insert({op.kind, op.phase});
        scenes.push_back(std::move(scene));
      }
    }
  }
  return scenes;
}

std::vector<StepScene>& step_scenes() {
  static std::vector<StepScene> scenes = make_step_scenes();
  return scenes;
}

/// Without magic number and checksum.
std::string body_of(const Scene& scene) {
  const std::vector<char> bytes = to_bytes(kStamp, scene.in[scene.peer]);
  return {bytes.begin() + 16, bytes.end()};
}

void run(const std::string& input) {
  if (input.empty()) return;
  const c10::NoGradGuard no_grad;
  std::vector<char> bytes(15, 0);
  bytes.insert(bytes.end(), input.begin(), input.end());
  const std::size_t chosen = static_cast<unsigned char>(input[0]) % (step_scenes().size() + 1);
  bytes[15] = 0;
  seal(bytes);
  const Message message = from_bytes(bytes, kStamp, "peer");
  if (chosen < step_scenes().size()) {
    step_scenes()[chosen].receive(message);
    return;
  }
  static std::unique_ptr<MigrateScene> migrate = std::make_unique<MigrateScene>();
  migrate->receive(message);
  migrate = std::make_unique<MigrateScene>();
}

std::vector<std::string> seeds() {
  std::vector<std::string> texts;
  for (const StepScene& scene : step_scenes())
    texts.push_back(static_cast<char>(texts.size()) + body_of(scene.scene()));
  const c10::NoGradGuard no_grad;
  texts.push_back(static_cast<char>(texts.size()) + body_of(MigrateScene().scene()));
  return texts;
}

}  // namespace

extern const Target kReceived{"received", run, seeds};

}  // namespace hetermoe::fuzz
