#include <iostream>

#include "hetermoe/base/words.h"
#include "hetermoe/cli/routing.h"
#include "hetermoe/train/checkpoint/resume.h"
#include "hetermoe/train/job/host_memory.h"
#include "hetermoe/train/job/job_data.h"
#include "hetermoe/train/run/trainer.h"

namespace hetermoe {
namespace {

struct RoutingRecordArguments {
  std::string job, output, condition = "text";
  i64 steps = 1;
  bool from_start = false;
  bool json = false;
};

std::optional<FoundCheckpoint> newest_checkpoint(const Job& job) {
  const std::filesystem::path folder = checkpoint_folder(job.output);
  if (!std::filesystem::exists(folder)) return std::nullopt;
  const auto tell = [](const std::string& note) { std::cerr << note << std::endl; };
  const std::vector<FoundCheckpoint> found = find_checkpoints(folder, tell);
  return found.empty() ? std::nullopt : std::optional(found.front());
}

int run_record(const RoutingRecordArguments& options, const Overrides& overrides) {
  const auto condition = enum_from<TextCondition>(options.condition, "--condition");
  Job job = options.job.empty() ? job_from_overrides(overrides) : load_job(options.job, overrides);
  job.routing.record = options.output;
  job.routing.replay.clear();
  job.balancer = {};  // nothing is balanced while the routers choose
  const ModelConfig model = load_model(job.model);
  const Cluster cluster = load_cluster(job.cluster);
  Plan plan = make_job_plan(job, model, cluster);
  check_host_memory(job, model);
  const Dataset data = load_job_data(job, model);
  const Processes alone;
  stop_on_interrupt();
  Trainer trainer(job, model, cluster, std::move(plan), data, alone);
  const std::optional<FoundCheckpoint> checkpoint =
      options.from_start ? std::nullopt : newest_checkpoint(job);
  const RecordedRoutes done = trainer.record_routes(checkpoint, options.steps, condition);
  const std::string weights =
      checkpoint ? fmt::format("the checkpoint of step {} in {}", done.steps_done, job.output)
                 : (job.train.init_from.empty() ? fmt::format("a draw with seed {}", job.train.seed)
                                                : job.train.init_from);
  if (options.json) {
    print_json({{"trace", options.output},
                {"condition", options.condition},
                {"weights", weights},
                {"steps", done.steps},
                {"first_step", done.steps_done + 1},
                {"first_sequence", done.first_sequence},
                {"loss", done.loss}});
  } else {
    std::cout << fmt::format("wrote {}: {} from step {} on (sequences from {}), weights of {}, loss {:.4f}\n",
                             options.output, counted(done.steps, "step"), done.steps_done + 1,
                             done.first_sequence, weights, done.loss);
  }
  return done.steps == options.steps ? 0 : 128 + stop_asked();
}

}  // namespace

std::function<int()> make_routing_record(Flags& flags) {
  const auto options = std::make_shared<RoutingRecordArguments>();
  flags.add_option("job", options->job, "job file (YAML); every key of it is also a flag");
  flags.add_option("-o,--trace", options->output, "file of the trace")->required()->is_output();
  flags.add_option("--steps", options->steps, "batches of the training data, from the one that comes next")
      ->range(between(1, 1e9));
  flags
      .add_option(
          "--condition", options->condition,
          "what is read: text (the job's training text), heldout (its validation text), shuffled (each "
          "sequence's tokens in another order), unigram (tokens by their frequency), mock (tokens drawn "
          "evenly) or constant (one token)")
      ->capture_default_str();
  flags.add_flag("--from-start", options->from_start,
                 "weights with which the run begins; else those of the newest checkpoint in the job's output "
                 "folder, if there is one");
  flags.add_flag("--json", options->json, "print what was recorded as JSON");
  allow_overrides(flags);
  return [options, flags] { return run_record(*options, overrides_of(flags)); };
}

}  // namespace hetermoe
