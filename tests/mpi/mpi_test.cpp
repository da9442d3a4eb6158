// Started by mpirun with 2, 3 and 4 processes: every strategy over MPI against the same plan in one process.
#include "hetermoe/comm/mpi.h"

#include <gtest/gtest.h>

#include <iostream>
#include <optional>

#include "hetermoe/base/paths.h"
#include "hetermoe/comm/preflight.h"
#include "hetermoe/comm/wire.h"
#include "hetermoe/report/table.h"
#include "hetermoe/train/run/trainer.h"
#include "hetermoe/train/session/presence.h"
#include "hetermoe/train/session/session.h"
#include "tests/mpi/job.h"
#include "tests/support/case_count.h"
#include "tests/support/counting_data.h"
#include "tests/support/error_of.h"
#include "tests/support/faults.h"
#include "tests/support/strategy_plans.h"
#include "tests/train/tiny_run.h"

namespace hetermoe::testing {
namespace {

struct Outcome {
  std::vector<StepResult> results;
  TensorsByName values, gradients;
};

Outcome run(Session& session, const Plan& plan, const ModelConfig& model) {
  session.initialize(1);
  Outcome out;
  for (i64 step = 0; step < 2; ++step) {
    StepInput input = random_input(plan, model);
    input.step = step;
    input.learning_rate = 1e-3;
    input.max_grad_norm = 0.1;
    out.results.push_back(session.train_step(input));
  }
  out.values = session.values();
  out.gradients = session.gradients();
  return out;
}

TEST(Mpi, EveryStrategyEqualsTheSameInOneProcessBitForBit) {
  ASSERT_GE(job->num_ranks(), 2);
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = load_cluster("demo");
  const StrategyRequest request = small_step();
  int compared = 0;
  for (const NamedPlan& named : strategy_plans(model, cluster, request)) {
    if (static_cast<i32>(devices_of(named.plan).size()) < job->num_ranks()) continue;
    const std::vector<i32> rank_of = spread_devices(cluster.num_devices(), job->num_ranks());
    Session::Options options{{true, 1, true}, {}, {}};
    Session alone(model, cluster, named.plan, options);
    for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
      if (rank_of[static_cast<std::size_t>(d)] == job->rank()) options.local.push_back(d);
    }
    Session part(model, cluster, named.plan, options,
                 [&](const Schedule&) { return make_mpi_transport(*job, rank_of); });
    const Outcome expected = run(alone, named.plan, model), got = run(part, named.plan, model);
    for (std::size_t step = 0; step < 2; ++step) {
      EXPECT_EQ(got.results[step].loss, expected.results[step].loss) << named.name;
      EXPECT_EQ(got.results[step].aux_loss, expected.results[step].aux_loss) << named.name;
      EXPECT_EQ(got.results[step].grad_norm, expected.results[step].grad_norm) << named.name;
      EXPECT_TRUE(at::equal(got.results[step].counts_LE, expected.results[step].counts_LE)) << named.name;
    }
    EXPECT_LT(got.values.size(), expected.values.size() + 1);
    for (const auto& [name, value] : got.values) {
      EXPECT_TRUE(at::equal(value, expected.values.at(name))) << named.name << " " << name;
      ++compared;
    }
    for (const auto& [name, value] : got.gradients) {
      EXPECT_TRUE(at::equal(value, expected.gradients.at(name))) << named.name << " " << name;
    }
  }
  EXPECT_GT(compared, 100);
}

/// zebra -> ep -> zebra, two steps with each.
Outcome run_with_changes(Session& session, const std::vector<Plan>& plans) {
  session.initialize(1);
  Outcome out;
  for (i64 step = 0; step < 2 * static_cast<i64>(plans.size()); ++step) {
    if (step > 0 && step % 2 == 0) session.change_plan(plans[static_cast<std::size_t>(step / 2)], {});
    StepInput input = random_input(session.plan(), session.model());
    input.step = step;
    input.learning_rate = 1e-2;
    input.max_grad_norm = 1;
    out.results.push_back(session.train_step(input));
  }
  out.values = session.values();
  return out;
}

TEST(Mpi, ARunThatChangesItsPlanEqualsTheSameInOneProcessBitForBit) {
  ModelConfig model = load_model("tiny");
  model.num_experts = 7;
  const Cluster cluster = load_cluster("demo");
  for (const Dtype dtype : {Dtype::kFp64, Dtype::kBf16}) {
    std::vector<Plan> plans;
    for (const char* strategy : {"zebra", "ep", "zebra"}) {
      plans.push_back(find_strategy(strategy).make(model, cluster, small_step()));
      use_dtype(plans.back(), dtype);
    }
    const std::vector<i32> rank_of = spread_devices(cluster.num_devices(), job->num_ranks());
    Session::Options options{{true, 1, true}, {}, {}};
    Session alone(model, cluster, plans[0], options);
    for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
      if (rank_of[static_cast<std::size_t>(d)] == job->rank()) options.local.push_back(d);
    }
    Session part(model, cluster, plans[0], options,
                 [&](const Schedule&) { return make_mpi_transport(*job, rank_of); });
    const Outcome expected = run_with_changes(alone, plans), got = run_with_changes(part, plans);
    for (std::size_t step = 0; step < expected.results.size(); ++step) {
      EXPECT_EQ(got.results[step].loss, expected.results[step].loss) << step;
      EXPECT_EQ(got.results[step].grad_norm, expected.results[step].grad_norm) << step;
    }
    EXPECT_FALSE(got.values.empty());
    for (const auto& [name, value] : got.values)
      EXPECT_TRUE(at::equal(value, expected.values.at(name))) << name;
  }
}

// ---- a training run as `hetermoe train` makes it ----

struct Trained {
  std::vector<double> losses;
  std::vector<u64> hashes;  ///< of the tokens of each step
  TensorsByName values;     ///< of this process's devices
  std::vector<std::string> notes;
  i64 first_step = 0;
};

Trained train(const std::string& folder, const std::string& steps, const Processes& processes) {
  const TinyRun rig(folder, {{"train.steps", steps}, {"train.validation_sequences", "4"}});
  const Dataset text = counting_data();
  Trainer trainer(rig.job, rig.model, rig.cluster, rig.plan, text, processes, Checkpoints::kOn);
  const TrainOutcome outcome = trainer.run();
  Trained out;
  for (const StepRecord& record : outcome.records) {
    out.losses.push_back(record.loss);
    out.hashes.push_back(record.tokens_hash);
  }
  out.losses.push_back(outcome.validations().at(0).loss);
  out.values = trainer.session().values();
  out.notes = outcome.notes;
  out.first_step = outcome.first_step;
  return out;
}

// Claim (Mpi.ATrainingOverSeveralProcesses*): a training over processes, with checkpoints and continuation,
// equals that in one to the bit
TEST(Mpi, ATrainingOverSeveralProcessesAndItsContinuationEqualThoseInOneToTheBit) {
  std::optional<WorkFolder> own;
  if (job->rank() == 0) own.emplace();
  const std::string shared = job->gather(job->rank() == 0 ? own->path().string() : "").front();
  const WorkFolder of_one;
  const Processes one;
  for (const std::string steps : {"4", "6"}) {  // the second goes on from the checkpoint of step 4
    const Trained expected = train(of_one / "run", steps, one), got = train(shared + "/run", steps, *job);
    EXPECT_EQ(got.losses, expected.losses);
    EXPECT_EQ(got.hashes, expected.hashes);
    EXPECT_EQ(got.first_step, expected.first_step);
    EXPECT_EQ(got.notes.size(), expected.notes.size());
    EXPECT_FALSE(got.values.empty());
    for (const auto& [name, value] : got.values)
      EXPECT_TRUE(at::equal(value, expected.values.at(name))) << name;
  }
  // Each rank has said that it is done.
  const std::vector<RankEnd> ends = read_rank_ends(shared + "/run");
  EXPECT_EQ(static_cast<i32>(ends.size()), job->num_ranks());
  job->gather("looked");  // before rank 0 removes the folder
}

void expect_folder_there_and_back(const std::string& family, bool several_files) {
  std::optional<WorkFolder> own;
  if (job->rank() == 0) own.emplace();
  const std::string shared = job->gather(job->rank() == 0 ? own->path().string() : "").front();
  const fs::path source = configs_folder().parent_path() / "tests/data/parity" / family;
  const TinyRun rig(shared + "/run", {{"model", source.string()},
                                      {"train.steps", "2"},
                                      {"train.learning_rate", "0"},
                                      {"checkpoint.every", "0"},
                                      {"train.init_from", source.string()},
                                      {"train.save_hf", shared + "/hf"},
                                      {"train.save_hf_every", "1"}});
  const Dataset text = byte_dataset(std::vector<std::uint8_t>(100), std::vector<std::uint8_t>(100));
  Trainer(rig.job, rig.model, rig.cluster, rig.plan, text, *job, Checkpoints::kOn).run();
  // As many files as ranks have parameters, and the tensors of the source in them: nothing was learned.
  for (const char* folder : {"/hf", "/hf/checkpoint-1"}) {
    const HfWeights got(shared + folder, rig.model), expected(source, rig.model);
    EXPECT_EQ(got.folder().files().size() > 1, several_files);
    EXPECT_EQ(got.map().layout, expected.map().layout);
    for (const ParamInfo& parameter : parameters(rig.model))
      EXPECT_TRUE(at::equal(got.read(parameter.name), expected.read(parameter.name))) << parameter.name;
  }
  job->gather("looked");  // before rank 0 removes the folder
}

TEST(Mpi, RanksReadTheirPartsOfAHuggingFaceFolderAndWriteOne) {
  expect_folder_there_and_back("qwen3_moe", true);
  expect_folder_there_and_back("gpt_oss", false);  // rank 0 puts experts together
}

TEST(Mpi, TextsArriveInRankOrder) {
  const std::vector<std::string> all = job->gather(std::string(static_cast<std::size_t>(job->rank()), 'x'));
  ASSERT_EQ(static_cast<i32>(all.size()), job->num_ranks());
  for (std::size_t r = 0; r < all.size(); ++r) EXPECT_EQ(all[r].size(), r);
}

/// What every rank hears from every other when messages travel in blocks of so many bytes.
void expect_messages_arrive(std::size_t block) {
  const i32 num_ranks = job->num_ranks();
  const std::vector<DeviceId> everyone = device_range(0, num_ranks);
  const std::unique_ptr<Transport> transport =
      make_mpi_transport(*job, spread_devices(num_ranks, num_ranks), {.block = block});
  for (OpId op = 0; op < 3; ++op) {
    std::vector<Message> out(everyone.size());
    for (std::size_t to = 0; to < out.size(); ++to) {
      out[to].numbers = {job->rank(), static_cast<i64>(to), op};
      out[to].tensors = {at::full({100 * (op + 1)}, 10 * job->rank() + op, at::kLong)};
    }
    const std::vector<Message> in = transport->exchange(
        {.op = op, .name = "test", .self = job->rank(), .participants = everyone}, std::move(out));
    for (i64 from = 0; from < num_ranks; ++from) {
      const Message& got = in[static_cast<std::size_t>(from)];
      EXPECT_EQ(got.numbers, (std::vector<i64>{from, job->rank(), op})) << block;
      EXPECT_TRUE(at::equal(got.tensors.at(0), at::full({100 * (op + 1)}, 10 * from + op, at::kLong)));
    }
  }
}

TEST(Mpi, AMessageLargerThanABlockTravelsInSeveral) {
  Message of_op_0;
  of_op_0.numbers = {0, 0, 0};
  of_op_0.tensors = {at::zeros({100}, at::kLong)};
  const std::size_t size = to_bytes({}, of_op_0).size();
  ASSERT_EQ(size % 8, 0U);
  // Many blocks; as many bytes as one or two blocks hold, whose end is an empty block; one block.
  for (const std::size_t block : {std::size_t{100}, size, size / 2, size + 1}) expect_messages_arrive(block);
}

TEST(Mpi, ARankAtAnotherStepIsNamedWithBothSides) {
  if (job->num_ranks() != 2) GTEST_SKIP() << "one size is enough: two processes";
  const std::vector<DeviceId> both = {0, 1};
  const std::unique_ptr<Transport> transport = make_mpi_transport(*job, {0, 1});
  const i64 step = 10 + job->rank(), other = 11 - job->rank();
  EXPECT_EQ(
      error_of<TransportError>([&] {
        transport->exchange(
            {.step = step, .op = 7, .name = "move.F", .self = job->rank(), .participants = both},
            std::vector<Message>(2));
      }),
      fmt::format("[device {} move.F from device {}] sent op 7 of step {}, expected op 7 of step {}: the "
                  "processes are not at the same step, or do not run the same schedule in the same order",
                  job->rank(), 1 - job->rank(), other, step));
  transport->abort("the test is over");
  job->gather("");
}

TEST(Mpi, AnIdleDeviceNeedsNoProcess) {
  std::vector<i32> rank_of = {kNoRank};
  std::vector<DeviceId> working;
  for (i32 r = 0; r < job->num_ranks(); ++r) {
    working.push_back(r + 1);
    rank_of.push_back(r);
  }
  const std::unique_ptr<Transport> transport = make_mpi_transport(*job, rank_of);
  std::vector<Message> out(working.size());
  for (Message& message : out) message.numbers = {job->rank()};
  const std::vector<Message> in =
      transport->exchange({.name = "test", .self = job->rank() + 1, .participants = working}, std::move(out));
  for (i64 r = 0; r < job->num_ranks(); ++r)
    EXPECT_EQ(in[static_cast<std::size_t>(r)].numbers, std::vector<i64>{r});
}

TEST(Mpi, AnAbortedTransferThrowsAndDoesNotHang) {
  const i32 num_ranks = job->num_ranks();
  std::vector<DeviceId> everyone = device_range(0, num_ranks);
  const std::unique_ptr<Transport> transport = make_mpi_transport(*job, spread_devices(num_ranks, num_ranks));
  if (job->rank() == 0) {
    std::thread stopper([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      transport->abort("the test wants it");
    });
    // Nobody else takes part.
    EXPECT_THROW(transport->exchange({0, 0, "test", 0, everyone, 0}, std::vector<Message>(everyone.size())),
                 TransportError);
    stopper.join();
  }
  job->gather("");
}

/// How a step with a fault ends on all ranks.
struct FaultRun {
  std::vector<std::string> errors;  ///< by rank, "" = none
  bool altered = false;             ///< on the rank of the fault
  double loss = 0, grad_norm = 0;
  std::string all() const { return errors[0] + "\n" + errors[1]; }
};

FaultRun run_with(const FaultPoint& point, const ModelConfig& model, const Cluster& cluster, const Plan& plan,
                  Seconds watchdog) {
  const Deadline deadline(std::chrono::seconds(60));
  const std::vector<i32> rank_of = spread_devices(cluster.num_devices(), job->num_ranks());
  FaultPlanter planter(point);
  const auto make_transport = [&](const Schedule&) {
    return make_checksummed_transport(std::make_unique<HookedTransport>(
        make_mpi_transport(*job, rank_of),
        [&](const ExchangeCall& call, std::vector<Message>& out) { planter.on_send(call, out); },
        HookedTransport::Hook(), [&] { planter.on_abort(); }));
  };
  Session::Options options{{true, 1, true}, {}, {}};
  // A rank without the fault hears of nothing: under mpirun the failing rank ends it, here its watchdog does.
  options.executor.watchdog = watchdog;
  for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
    if (rank_of[static_cast<std::size_t>(d)] == job->rank()) options.local.push_back(d);
  }
  FaultRun run;
  std::string error;
  {
    Session session(model, cluster, plan, options, make_transport);
    session.initialize(1);
    try {
      const StepResult result = session.train_step(random_input(plan, model));
      run.loss = result.loss;
      run.grad_norm = result.grad_norm;
    } catch (const Error& failed) {
      error = failed.what();
    }
    run.errors = job->gather(error);
  }
  for (const std::string& text : job->gather(planter.altered() ? "yes" : "")) run.altered |= !text.empty();
  return run;
}

TEST(Mpi, NthCallFaultsEndWithAnErrorThatNamesThemOrWithTheSameResult) {
  if (job->num_ranks() != 2) GTEST_SKIP() << "one size is enough: two processes with two devices each";
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = load_cluster("demo");
  Plan plan = find_strategy("zebra").make(model, cluster, small_step());
  use_fp64(plan);
  const Schedule schedule = build_schedule(plan, model, {true, 1, true});
  const FaultRun whole = run_with({Fault::kDelay, -1, 0, 0}, model, cluster, plan, 60);
  ASSERT_EQ(whole.errors, std::vector<std::string>(2));
  Table table(
      {"fault", "calls", "one named error", "same result", "other result", "nothing to alter", "hangs"});
  for (const Fault fault : all_faults()) {
    const std::vector<FaultPoint> points = fault_points(schedule, fault);
    std::array<i64, 4> counts = {};
    const std::size_t stride =
        std::max<std::size_t>(1, points.size() / testing::case_count(6, 12)) | 1;  // odd: all devices come by
    for (std::size_t p = 0; p < points.size(); p += stride) {
      const FaultPoint& point = points[p];
      const std::string op = to_string(schedule.ops[static_cast<std::size_t>(point.op)]);
      const std::string cause = fault == Fault::kFail   ? "the wire broke"
                                : fault == Fault::kGone ? op + " exchanges with its peers, has nothing from"
                                                        : "a message is c";  // cut or corrupted
      FaultRun run = run_with(point, model, cluster, plan, fault == Fault::kDelay ? 60 : 0.5);
      // The watchdog of a machine that stood still wakes before the fault: once more, with patience.
      if (has(run.all(), "[watchdog]") && !has(run.all(), cause))
        run = run_with(point, model, cluster, plan, 5);
      if (run.all() != "\n") {
        ++counts[0];
        for (const std::string& part : {op, fmt::format("device {}", point.device), cause})
          EXPECT_TRUE(has(run.all(), part));
      } else if (alters(fault) && !run.altered) {
        ++counts[3];
      } else {
        ++counts[run.loss == whole.loss && run.grad_norm == whole.grad_norm ? 1 : 2];
      }
    }
    table.add_row({name_of(fault), std::to_string(counts[0] + counts[1] + counts[2] + counts[3]),
                   std::to_string(counts[0]), std::to_string(counts[1]), std::to_string(counts[2]),
                   std::to_string(counts[3]), "0"});
    EXPECT_EQ(counts[2], 0) << name_of(fault);
    EXPECT_EQ(counts[1] > 0, fault == Fault::kDelay) << name_of(fault);
    EXPECT_EQ(counts[0] > 0, fault != Fault::kDelay) << name_of(fault);
  }
  if (job->rank() == 0) std::cout << table.str();
}

/// The schedule does not hold shares, and the job only names the file of a plan.
TEST(Mpi, ARankWithOtherSharesInItsPlanIsNamed) {
  Job same;
  same.model = "tiny";
  same.train.seq_len = 8;
  same.train.sequences = 8;
  same.train.microbatches = 2;
  same.train.validation_sequences = 0;
  same.data.max_bytes = 200000;
  const ModelConfig model = load_model(same.model);
  const Cluster cluster = load_cluster(same.cluster);
  const Plan plan = make_job_plan(same, model, cluster);
  same.plan.attention_weights = {3, 1};
  const Plan other = make_job_plan(same, model, cluster);
  same.plan.attention_weights.clear();
  const StepOptions step{model.aux_loss_coef > 0, same.train.aux_group, true};
  ASSERT_EQ(hash(build_schedule(plan, model, step)), hash(build_schedule(other, model, step)));
  const i32 last = job->num_ranks() - 1;
  try {
    Trainer(same, model, cluster, job->rank() == last ? other : plan, load_dataset(same.data, 8), *job);
    ADD_FAILURE() << "nobody noticed";
  } catch (const ConfigError& error) {
    EXPECT_TRUE(
        std::string(error.what()).starts_with(fmt::format("[rank {}] is not started like rank 0", last)))
        << error.what();
  }
}

TEST(Mpi, APreflightMeasuresEveryPairOfProcesses) {
  const MeasuredPairs found = measure_processes(*job, pair_transport(*job, c10::DeviceType::CPU), {});
  EXPECT_EQ(static_cast<i32>(found.names.size()), job->num_ranks());
  EXPECT_EQ(static_cast<i32>(found.pairs.size()), job->num_ranks() * (job->num_ranks() - 1) / 2);
  for (const PairTimes& pair : found.pairs) {
    EXPECT_EQ(pair.link, "same host");
    EXPECT_EQ(pair.seconds.size(), 3U);
  }
}

/// What two ranks tell each other is lost.
TEST(Mpi, APairThatHearsNothingIsNamedAsDeadOnAllRanks) {
  std::vector<i32> ranks;
  for (i32 r = 0; r < job->num_ranks(); ++r) ranks.push_back(r);
  Gate gate;
  HookedTransport transport(
      make_mpi_transport(*job, ranks),
      [&](const ExchangeCall& call, std::vector<Message>&) {
        if (call.participants[0] == 0 && call.participants[1] == 1) {
          gate.wait();
          throw TransportError("aborted");
        }
      },
      {}, [&] { gate.open(); });
  PreflightOptions options;
  options.limit = 3;
  const std::vector<PairTimes> pairs = measure_pairs(*job, transport, ranks, options);
  for (const PairTimes& pair : pairs)
    EXPECT_EQ(pair.state == PairState::kDead, pair.a == 0 && pair.b == 1) << pair.a << " " << pair.b;
}

}  // namespace
}  // namespace hetermoe::testing
