#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <iostream>

#include "hetermoe/plan/row_nodes.h"
#include "hetermoe/report/table.h"
#include "tests/fault/scene.h"
#include "tests/support/case_count.h"
#include "tests/support/faults.h"
#include "tests/support/guest_plan.h"
#include "tests/support/one_thread.h"

// Each exchange call of one step, on each device, with each kind of fault: how does the step end?
namespace hetermoe::testing {
namespace {

struct StepEnd {
  std::string error;  ///< "" = none
  StepResult result;
  TensorsByName gradients;
};

StepEnd run_step(Rig& rig) {
  StepEnd end;
  try {
    end.result = rig.executor().run(random_input(rig.plan(), rig.model()));
    end.gradients = rig.gradients();
  } catch (const Error& error) {
    end.error = error.what();
  }
  return end;
}

bool bit_equal(const StepEnd& a, const StepEnd& b) {
  if (a.result.loss != b.result.loss || a.result.grad_norm != b.result.grad_norm ||
      !at::equal(a.result.counts_LE, b.result.counts_LE)) {
    return false;
  }
  for (const auto& [name, gradient] : b.gradients) {
    if (!at::equal(a.gradients.at(name), gradient)) return false;
  }
  return true;
}

enum class Outcome { kNamed, kSame, kOther, kNothingToAlter };

/// Counts per outcome of one kind of fault.
struct Row {
  std::array<i64, 4> counts = {};
  i64 of(Outcome outcome) const { return counts[static_cast<std::size_t>(outcome)]; }
};

class Experiment {
 public:
  Experiment(const Scene& scene, bool checksums)
      : scene_(scene),
        checksums_(checksums),
        schedule_(build_schedule(scene.plan, scene.model, scene.step)),
        whole_(run_step(*make_rig(scene, {}))) {}

  /// Of ops of one kind, or of all; every n-th of them (Turns).
  Row run(Fault fault, std::optional<OpKind> kind = {}, int n = 1) {
    Row row;
    Turns turns(n);
    for (const FaultPoint& point : fault_points(schedule_, fault)) {
      if (kind && schedule_.ops[static_cast<std::size_t>(point.op)].kind != *kind) continue;
      if (!turns.takes()) continue;
      ++row.counts[static_cast<std::size_t>(outcome_of(point))];
    }
    return row;
  }

 private:
  StepEnd step_with(const FaultPoint& point, Seconds watchdog, bool& altered) {
    const Deadline deadline(std::chrono::seconds(60));
    FaultPlanter planter(point);
    RigOptions options;
    options.checksum_messages = checksums_;
    options.executor.watchdog = watchdog;
    options.on_send = [&](const ExchangeCall& call, std::vector<Message>& out) {
      planter.on_send(call, out);
    };
    options.on_abort = [&] { planter.on_abort(); };
    const StepEnd end = run_step(*make_rig(scene_, options));
    altered = planter.altered();
    return end;
  }

  Outcome outcome_of(const FaultPoint& point) {
    StepEnd end;
    bool altered = false;
    for (const Seconds watchdog : watchdogs_for(point.fault)) {
      end = step_with(point, watchdog, altered);
      if (!woke_early(point.fault, name_of_op(point), end.error)) break;
    }
    if (!end.error.empty()) {
      expect_named(point, end.error);
      return Outcome::kNamed;
    }
    if (alters(point.fault) && !altered) return Outcome::kNothingToAlter;
    return bit_equal(end, whole_) ? Outcome::kSame : Outcome::kOther;
  }

  std::string name_of_op(const FaultPoint& point) const {
    return to_string(schedule_.ops[static_cast<std::size_t>(point.op)]);
  }

  /// Op, device, peer, cause.
  void expect_named(const FaultPoint& point, const std::string& error) {
    const auto device = [&](DeviceId d) {
      return fmt::format("device {} ({})", d, scene_.cluster.device_name(d));
    };
    const std::string op = name_of_op(point);
    switch (point.fault) {
      case Fault::kFail:
        EXPECT_TRUE(has(error, fmt::format("[{} {}] [to device {}] the wire broke", device(point.device), op,
                                           point.peer)));
        break;
      case Fault::kGone:
        EXPECT_TRUE(has(error, "[watchdog]"));
        EXPECT_TRUE(has(error, fmt::format("{} exchanges with its peers, has nothing from {}", op,
                                           device(point.device))));
        break;
      default:
        EXPECT_TRUE(has(error, fmt::format("[{} {}]", device(point.peer), op)));
        EXPECT_TRUE(has(error, fmt::format("device {}", point.device)));
        EXPECT_TRUE(has(error, "got "));
        // An altered expert id or index is outside of what is expected; everything else says what that is.
        EXPECT_TRUE(has(error, "expected ") || has(error, "which is not here"));
    }
  }

  const Scene& scene_;
  bool checksums_;
  Schedule schedule_;
  StepEnd whole_;
};

void add_row(Table& table, const std::string& strategy, bool checksums, Fault fault, const Row& row) {
  table.add_row({strategy, checksums ? "yes" : "no", name_of(fault),
                 std::to_string(row.counts[0] + row.counts[1] + row.counts[2] + row.counts[3]),
                 std::to_string(row.of(Outcome::kNamed)), std::to_string(row.of(Outcome::kSame)),
                 std::to_string(row.of(Outcome::kOther)), std::to_string(row.of(Outcome::kNothingToAlter)),
                 "0"});
}

// Claim (NthCall.*, Mpi.NthCallFaults*): a fault at any exchange call of a step, on any device: one error
// that names op, device, peer and cause, or the same bits; no hang; over two processes, too
TEST(NthCall, EveryFaultOfEveryCallOfAStepEndsWithOneErrorOrTheSameResult) {
  Table table({"strategy", "checksums", "fault", "calls", "one named error", "same result", "other result",
               "nothing to alter", "hangs"});
  for (const char* strategy : {"zebra", "ep"}) {
    const Scene scene = scene_of(strategy);
    for (const bool checksums : {false, true}) {
      Experiment experiment(scene, checksums);
      for (const Fault fault : all_faults()) {
        if (checksums && !alters(fault)) continue;  // the same as without
        const Row row = experiment.run(fault, {}, 7);
        add_row(table, strategy, checksums, fault, row);
        const bool harmless = fault == Fault::kDelay;
        EXPECT_EQ(row.of(Outcome::kNamed) > 0, !harmless) << name_of(fault);
        // A flipped bit of a number is a number: only a checksum can tell.
        if (fault == Fault::kFlip && !checksums) {
          EXPECT_GT(row.of(Outcome::kOther), 0) << "flips that change nothing prove nothing";
          continue;
        }
        EXPECT_EQ(row.of(Outcome::kOther), 0) << name_of(fault);
        if (harmless)
          EXPECT_GT(row.of(Outcome::kSame), case_count(8, 60));
        else
          EXPECT_EQ(row.of(Outcome::kSame), 0) << name_of(fault);
      }
    }
  }
  std::cout << table.str();  // a hang would have ended the program
}

/// Device 2 reaches the others through one of them.
TEST(NthCall, EveryFaultOfRowsByNodesEndsWithOneErrorOrTheSameResult) {
  Scene scene = scene_of("ep");
  scene.plan.row_nodes = nodes_of_devices(scene.cluster);
  ASSERT_TRUE(may_pass_rows_on(scene.plan, scene.cluster));
  for (const bool checksums : {false, true}) {
    Experiment experiment(scene, checksums);
    for (const Fault fault : all_faults()) {
      for (const OpKind kind : {OpKind::kDispatch, OpKind::kCombine}) {
        const Row row = experiment.run(fault, kind, 4);
        // A flipped bit of a number is a number: only a checksum can tell.
        if (fault == Fault::kFlip && !checksums) continue;
        EXPECT_EQ(row.of(Outcome::kOther), 0) << name_of(fault) << " " << name_of(kind);
        EXPECT_EQ(row.of(Outcome::kNamed) > 0, fault != Fault::kDelay)
            << name_of(fault) << " " << name_of(kind);
      }
    }
  }
}

/// A team of three, of which one has no heads: its exchanges carry nothing that way.
TEST(NthCall, EveryFaultOfEveryTeamExchangeEndsWithOneErrorOrTheSameResult) {
  Scene scene = scene_of("ep");
  StrategyRequest request;
  request.seq_len = 4, request.sequences = 4, request.microbatches = 2;
  request.team = {3}, request.head_weights = {1, 1, 0};
  scene.plan = find_strategy("sp-ep").make(scene.model, scene.cluster, request);
  use_fp64(scene.plan);
  for (const bool checksums : {false, true}) {
    Experiment experiment(scene, checksums);
    for (const Fault fault : all_faults()) {
      for (const OpKind kind : {OpKind::kToHeads, OpKind::kToTokens}) {
        const Row row = experiment.run(fault, kind, 3);
        EXPECT_GT(row.counts[0] + row.counts[1] + row.counts[2], 0) << name_of(fault) << " " << name_of(kind);
        // A flipped bit of a number is a number: only a checksum can tell.
        if (fault == Fault::kFlip && !checksums) continue;
        EXPECT_EQ(row.of(Outcome::kOther), 0) << name_of(fault) << " " << name_of(kind);
        EXPECT_EQ(row.of(Outcome::kNamed) > 0, fault != Fault::kDelay)
            << name_of(fault) << " " << name_of(kind);
      }
    }
  }
}

/// Results of experts and residual streams on their way to the next layer.
TEST(NthCall, EveryFaultOfResultsToTheNextLayerEndsWithOneErrorOrTheSameResult) {
  Scene scene = scene_of("ep");
  scene.cluster = make_cluster(4);
  StrategyRequest request;
  request.seq_len = 2, request.sequences = 4, request.microbatches = 2;
  request.depth_groups = {2}, request.combine_to = CombineTo::kNext;
  scene.plan = find_strategy("af-pipe").make(scene.model, scene.cluster, request);
  use_fp64(scene.plan);
  for (const bool checksums : {false, true}) {
    Experiment experiment(scene, checksums);
    for (const Fault fault : all_faults()) {
      for (const OpKind kind : {OpKind::kCombine, OpKind::kMove}) {
        const Row row = experiment.run(fault, kind, 3);
        // A flipped bit of a number is a number: only a checksum can tell.
        if (fault == Fault::kFlip && !checksums) continue;
        EXPECT_EQ(row.of(Outcome::kOther), 0) << name_of(fault) << " " << name_of(kind);
        EXPECT_EQ(row.of(Outcome::kNamed) > 0, fault != Fault::kDelay)
            << name_of(fault) << " " << name_of(kind);
      }
    }
  }
}

TEST(NthCall, EveryFaultOfEveryTallyEndsWithOneErrorOrTheSameResult) {
  Scene scene = scene_of("ep");
  use_lplb(scene.plan, scene.model);
  Experiment experiment(scene, false);
  for (const Fault fault : all_faults()) {
    const Row row = experiment.run(fault, OpKind::kTally);
    EXPECT_GT(row.counts[0] + row.counts[1], 0) << name_of(fault);
    EXPECT_EQ(row.of(Outcome::kOther), 0) << name_of(fault);
    EXPECT_EQ(row.of(Outcome::kNamed) > 0, fault != Fault::kDelay) << name_of(fault);
  }
}

TEST(NthCall, EveryFaultOfEveryLendAndSettleEndsWithOneErrorOrTheSameResult) {
  Scene scene = scene_of("ep");
  use_guests(scene.plan, scene.model);
  for (const bool checksums : {false, true}) {
    Experiment experiment(scene, checksums);
    for (const Fault fault : all_faults()) {
      for (const OpKind kind : {OpKind::kLend, OpKind::kSettle}) {
        const Row row = experiment.run(fault, kind, 4);
        EXPECT_GT(row.counts[0] + row.counts[1] + row.counts[2], 0) << name_of(fault) << " " << name_of(kind);
        // A flipped bit of a number is a number: only a checksum can tell.
        if (fault == Fault::kFlip && !checksums) continue;
        EXPECT_EQ(row.of(Outcome::kOther), 0) << name_of(fault) << " " << name_of(kind);
        EXPECT_EQ(row.of(Outcome::kNamed) > 0, fault != Fault::kDelay)
            << name_of(fault) << " " << name_of(kind);
      }
    }
  }
}

// Claim (NthCall.AMessageWithWrongCounts*): a message with wrong counts names op, sender, receiver, got and
// expected
TEST(NthCall, AMessageWithWrongCountsNamesOpSenderReceiverGotAndExpected) {
  const Deadline deadline(std::chrono::seconds(60));
  const Scene s = scene_of("zebra");
  RigOptions options;
  const auto num_owners = static_cast<i64>(Placement(s.plan, s.model, s.step).owners(0, 1).size());
  options.on_send = [&](const ExchangeCall& call, std::vector<Message>& out) {
    if (call.name != "dispatch.F l1 m0" || call.self != 0 || call.round != 0) return;
    at::Tensor& begins = out.back().tensors[0];  // others have the same memory
    begins = begins.clone();
    begins.narrow(0, 1, num_owners).fill_(1000);
  };
  const std::string error = run_step(*make_rig(s, options)).error;
  EXPECT_TRUE(has(error, "[device 2 (A40#2) dispatch.F l1 m0] [message of device 0 (A40#0)] "));
  EXPECT_TRUE(has(error, "rows for device 1: got 1000, expected 0 to 4, its copies"));
}

// Claim (NonfiniteGradient.*, Nonfinite.*): a NaN gradient on one device keeps all from updating; a skipped
// step leaves weights and moments as they were, and a resumed run has the same bits
TEST(NonfiniteGradient, OfOneDeviceKeepsEveryDeviceFromUpdating) {
  const Deadline deadline(std::chrono::seconds(60));
  const Scene s = scene_of("zebra");
  RigOptions options;
  options.on_send = [](const ExchangeCall& call, std::vector<Message>& out) {
    if (call.name != "dispatch.B l0 m0" || call.self != 1) return;
    for (Message& message : out) {
      for (at::Tensor& tensor : message.tensors) tensor = at::full_like(tensor, NAN);
    }
  };
  const std::unique_ptr<Rig> rig = make_rig(s, options);
  const TensorsByName before = rig->values();
  StepInput input = random_input(rig->plan(), rig->model());
  input.learning_rate = 0.1;
  const StepResult result = rig->executor().run(input);
  EXPECT_FALSE(result.updated);
  EXPECT_TRUE(std::isfinite(result.loss));
  EXPECT_TRUE(std::isnan(result.grad_norm));
  for (const auto& [name, value] : rig->values()) EXPECT_TRUE(at::equal(value, before.at(name))) << name;
}

}  // namespace
}  // namespace hetermoe::testing
