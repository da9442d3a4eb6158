#include "hetermoe/train/growing_job.h"

#include "hetermoe/report/table.h"
#include "hetermoe/train/grow_run.h"
#include "hetermoe/train/growth_scores.h"
#include "hetermoe/train/resume.h"

namespace hetermoe {
namespace {

namespace fs = std::filesystem;

GrowthOptions growth_options(const Job& job) {
  const GrowOptions& grow = job.grow;
  return {.factor = grow.factor,
          .mode = grow.mode,
          .cap = grow.cap,
          .noise = grow.noise,
          .seed = job.train.seed,
          .moments = grow.moments};
}

void check_growing(const Job& job) {
  const GrowOptions& grow = job.grow;
  if (grow.at >= job.train.steps) {
    fail<ConfigError>("grow.at", "got {}, expected a step before the last one, {} (train.steps)", grow.at,
                      job.train.steps);
  }
  if (job.checkpoint.every == 0)
    fail<ConfigError>("checkpoint.every",
                      "got 0 with grow.at {}, expected checkpoints: the one of that step "
                      "grows",
                      grow.at);
  const auto refuse = [&](bool given, const char* key) {
    if (given)
      fail<ConfigError>(key,
                        "is given with grow, expected none: it is about the old experts or the new ones, "
                        "not both");
  };
  refuse(!job.train.changes.empty(), "train.changes");
  refuse(!job.routing.record.empty(), "routing.record");
  refuse(!job.routing.replay.empty(), "routing.replay");
  refuse(job.balancer.on(), "balancer.name");
  refuse(job.train.lora.rank > 0, "train.lora");
  if (grow.score == GrowthScore::kLoad && grow.counts.empty())
    fail<ConfigError>("grow.counts", "is missing, expected a routing trace for grow.score load");
}

/// The job from the growth on.
Job job_after(Job job) {
  const GrowOptions& grow = job.grow;
  if (!grow.cluster.empty()) job.cluster = grow.cluster;
  job.plan.file = grow.plan;
  job.train.init_from.clear();
  job.checkpoint.resume = true;
  return job;
}

/// Whether the run that is in the output folder has grown; collective. Throws ConfigError when it is beyond
/// the step at which it should have.
bool has_grown(const Job& job, const ModelConfig& grown, const Processes& processes) {
  Json told = {{"grown", false}, {"step", 0}};
  if (processes.rank() == 0 && job.checkpoint.resume) {
    const std::vector<FoundCheckpoint> found =
        find_checkpoints(checkpoint_folder(job.output), [](const std::string&) {});
    if (!found.empty()) {
      told["grown"] = read_json(found.front().path / "config.json") == to_hf(grown);
      told["step"] = found.front().info.step;
    }
  }
  told = Json::parse(processes.gather(told.dump()).front());
  const i64 step = told.at("step");
  if (told.at("grown").get<bool>()) return true;
  if (step > job.grow.at) {
    fail<ConfigError>(
        "grow.at",
        "got {}, but the newest checkpoint in {} is of step {} and has not grown: expected that step or "
        "a later one",
        job.grow.at, job.output, step);
  }
  return false;
}

/// Rank 0 puts the grown checkpoint in the place of that of step grow.at; collective.
void grow_newest(const Job& job, const Job& after, const ModelConfig& model, const Processes& processes) {
  if (processes.rank() == 0) {
    const std::vector<FoundCheckpoint> found =
        find_checkpoints(checkpoint_folder(job.output), [](const std::string&) {});
    HM_CHECK(!found.empty() && found.front().info.step == job.grow.at, "no checkpoint of step {}",
             job.grow.at);
    const GrowthSource source{.model = model, .weights = found.front().path, .checkpoint = found.front()};
    GrowthOptions how = growth_options(job);
    const GrowOptions& grow = job.grow;
    how.scores = growth_scores({grow.score, grow.counts, job.train.seed}, source, [&] {
      return GrowthData(job, model, found.front().info.sequences, grow.batches);
    });
    CheckpointShard shard = grow_checkpoint(found.front(), plan_growth(model, how));
    shard.info.job = to_json(after);
    write_checkpoint(checkpoint_folder(job.output), shard, job.checkpoint.keep);
  }
  processes.gather("");
}

std::string growth_note(const Job& job, const ModelConfig& model, const ModelConfig& grown,
                        const StrategyRun& before) {
  return fmt::format(
      "step {}: grows from {} to {} experts ({}), of which a token sees {}; steps took {} (simulated)",
      job.grow.at + 1, model.num_experts, grown.num_experts, name_of(job.grow.mode), grown.top_k,
      format_seconds(before.predicted.step));
}

/// What was trained before the growth comes before the rest.
void put_before(TrainOutcome first, TrainOutcome& rest) {
  rest.first_step = first.first_step;
  const auto prepend = [](auto& head, auto& tail) { tail.insert(tail.begin(), head.begin(), head.end()); };
  prepend(first.notes, rest.notes);
  prepend(first.records, rest.records);
  prepend(first.warnings, rest.warnings);
}

}  // namespace

TrainedJob train_job(const Job& job, const CompareRunOptions& options,
                     const std::function<void(const std::string&, const StepRecord&)>& on_step,
                     const Processes& processes) {
  const ModelConfig model = load_model(job.model);
  if (job.grow.at == 0) return {compare_job(job, options, on_step, processes), model, job.cluster};
  check_growing(job);
  const ModelConfig grown = plan_growth(model, growth_options(job)).after;
  const Job after = job_after(job);
  make_job_plan(after, grown,
                load_cluster(after.cluster));  // a plan that cannot be is told before the first step
  CompareRunOptions how = options;
  std::optional<TrainOutcome> first;
  if (!has_grown(job, grown, processes)) {
    how.end_after = job.grow.at;
    std::vector<StrategyRun> runs = compare_job(job, how, on_step, processes);
    if (runs[0].outcome.stopped_by != 0) return {std::move(runs), model, job.cluster};
    grow_newest(job, after, model, processes);
    runs[0].outcome.notes.push_back(growth_note(job, model, grown, runs[0]));
    if (options.hooks.on_note) options.hooks.on_note(runs[0].outcome.notes.back());
    first = std::move(runs[0].outcome);
    how.mark = fmt::format("{} experts, {} before ({})", grown.num_experts, model.num_experts,
                           name_of(job.grow.mode));
  }
  how.end_after = 0;
  how.model = grown;
  TrainedJob out{compare_job(after, how, on_step, processes), grown, after.cluster};
  if (first) put_before(std::move(*first), out.runs[0].outcome);
  return out;
}

}  // namespace hetermoe
