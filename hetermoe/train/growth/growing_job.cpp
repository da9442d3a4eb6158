#include "hetermoe/train/growth/growing_job.h"

#include <limits>

#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/report/table.h"
#include "hetermoe/train/checkpoint/checkpoint_room.h"
#include "hetermoe/train/checkpoint/resume.h"
#include "hetermoe/train/growth/grow_run.h"
#include "hetermoe/train/growth/growth_scores.h"
#include "hetermoe/train/job/host_memory.h"
#include "hetermoe/weights/disk_room.h"

namespace hetermoe {
namespace {

GrowthOptions growth_options(const Job& job) {
  const GrowOptions& grow = job.grow;
  return {.factor = grow.factor,
          .mode = grow.mode,
          .cap = grow.cap,
          .noise = grow.noise,
          .seed = job.train.seed,
          .moments = grow.moments,
          .keys = "grow."};
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

/// Up to growth, from there, and one for each fall of top-k. Scores are not known yet: the first growth is
/// planned without them.
std::vector<JobPart> growing_parts(const Job& job, const ModelConfig& model) {
  const GrowOptions& grow = job.grow;
  const Growth growth = plan_growth(model, growth_options(job));
  const Job after = job_after(job);
  std::vector<JobPart> out = {{job, model, {}, grow.at}, {after, growth.after, growth, job.train.steps}};
  if (grow.narrow_to == 0) return out;
  plan_narrowing(growth, growth.after, grow.narrow_to);  // what cannot be is told with the key
  i64 begin = grow.at;
  for (i64 top_k = growth.after.top_k - 1; top_k >= grow.narrow_to; --top_k) {
    begin += grow.narrow_every;
    out.back().end = begin;
    Growth narrowing = plan_narrowing(growth, out.back().model, top_k);
    ModelConfig narrower = narrowing.after;
    out.push_back({after, std::move(narrower), std::move(narrowing), job.train.steps});
  }
  if (begin >= job.train.steps) {
    fail<ConfigError>("grow.narrow_to",
                      "got {}, which top-k reaches after step {}, expected before the end, {} (train.steps)",
                      grow.narrow_to, begin, job.train.steps);
  }
  return out;
}

/// Throws ConfigError for a plan that cannot be, and where devices had room before the growth and have none
/// after it. Emulated devices run plans that are too large for them, and so they do when these grow.
void check_room(const JobPart& before, const JobPart& after) {
  const auto overfilled = [](const JobPart& part) {
    const Cluster cluster = load_cluster(part.job.cluster);
    const TrainedShares trained({.frozen = step_options(part.job, part.model).frozen}, part.model);
    return overfilled_device(
        estimate_memory(make_job_plan(part.job, part.model, cluster), part.model, {}, trained), cluster);
  };
  const std::string full = overfilled(after);
  if (full.empty() || !overfilled(before).empty()) return;
  fail<ConfigError>("grow",
                    "{} for {} experts in place of {}: expected a smaller grow.factor, more devices "
                    "(grow.cluster), or plan.offload",
                    full, after.model.num_experts, before.model.num_experts);
}

/// Of a checkpoint of the part: each parameter once, with what the optimizer keeps of it.
Bytes least_checkpoint_bytes(const JobPart& part) {
  const Plan plan = make_job_plan(part.job, part.model, load_cluster(part.job.cluster));
  const bool trains_all = part.job.train.freeze.empty();
  Bytes least = std::numeric_limits<Bytes>::infinity();
  for (const DeviceId device : devices_of(plan)) {
    const StateBytes each = state_bytes_of(plan, device);
    least = std::min(least, each.weights + (trains_all ? each.master + each.moments : 0));
  }
  return least * real(count_parameters(part.model).total);
}

/// Throws ConfigError when this machine has no memory, or its disk no room, for a model that grows later:
/// nobody wants to know that after the steps before. `first` is the part with which the run begins;
/// collective.
void check_machine(const std::vector<JobPart>& parts, std::size_t first, const Processes& processes) {
  for (std::size_t i = first + 1; i < parts.size(); ++i) {
    const auto& [job, model, from, end] = parts[i];
    if (processes.alone() && job.run.device == "cpu") check_host_memory(job, model, "grow.factor");
    const i64 steps = job.train.steps - parts[i - 1].end + job.checkpoint.every;  // with that of the growth
    const Bytes most = most_checkpoint_bytes(job.checkpoint, steps, 0, least_checkpoint_bytes(parts[i]));
    check_checkpoint_room(job, most, "checkpoints of the model that grew", processes);
  }
}

/// With which part the run in the output folder goes on; collective. Throws ConfigError when it is beyond the
/// step at which it should have grown.
std::size_t part_to_go_on_with(const std::vector<JobPart>& parts, const Processes& processes) {
  if (parts.size() == 1) return 0;
  const Job& job = parts[0].job;
  Json told = {{"part", 0}, {"step", 0}, {"known", true}};
  if (processes.rank() == 0 && job.checkpoint.resume) {
    recover_checkpoints(checkpoint_folder(job.output));
    const std::vector<FoundCheckpoint> found =
        find_checkpoints(checkpoint_folder(job.output), [](const std::string&) {});
    if (!found.empty()) {
      const Json config = read_json(found.front().path / "config.json");
      told["known"] = false;
      for (std::size_t i = 0; i < parts.size(); ++i) {
        if (config == to_hf(parts[i].model)) told["part"] = i, told["known"] = true;
      }
      told["step"] = found.front().info.step;
    }
  }
  told = Json::parse(processes.gather(told.dump()).front());
  const auto part = told.at("part").get<std::size_t>();
  const i64 step = told.at("step");
  if (!told.at("known").get<bool>()) {
    fail<ConfigError>(
        "grow",
        "the newest checkpoint in {} has a model that this job never has: expected the grow.factor, "
        "grow.mode and grow.narrow_to that its run was begun with, or another output",
        job.output);
  }
  if (step <= parts[part].end) return part;
  if (part > 0) {
    fail<ConfigError>("grow.narrow_every",
                      "got {}, but the newest checkpoint in {} is of step {} with top-k {}: expected it to "
                      "fall after that step",
                      job.grow.narrow_every, job.output, step, parts[part].model.top_k);
  }
  fail<ConfigError>("grow.at",
                    "got {}, but the newest checkpoint in {} is of step {} and has not grown: expected that "
                    "step or a later one",
                    job.grow.at, job.output, step);
}

/// The growth by which the part begins, with the scores of the checkpoint that grows.
Growth growth_into(const JobPart& part, const JobPart& before, const FoundCheckpoint& checkpoint) {
  if (part.from.factor == 1) return part.from;  // top-k alone falls
  const Job& job = before.job;
  const GrowthSource source{.model = before.model, .weights = checkpoint.path, .checkpoint = checkpoint};
  GrowthOptions how = growth_options(job);
  const GrowOptions& grow = job.grow;
  how.scores = growth_scores({grow.score, grow.counts, job.train.seed}, source, [&] {
    return GrowthData(job, before.model, checkpoint.info.sequences, grow.batches);
  });
  return plan_growth(before.model, how);
}

/// For the report: which expert each was made of, and the copies of those that were there before.
void write_growth(const Growth& growth, const TrainOutcome& before, const Job& job) {
  Json layers = Json::array(), copies = Json::array(), sources = Json::array();
  for (i64 l = 0; l < growth.before.num_layers; ++l) {
    if (!growth.before.is_moe(l)) continue;
    layers.push_back(l);
    sources.push_back(growth.source_of[idx(l)]);
    if (!before.expert_copies.empty()) copies.push_back(before.expert_copies[idx(l)]);
  }
  const i64 last_step = before.records.empty() ? 0 : before.records.back().step;
  write_text(growth_file(job), Json{{"first_step", before.copies_from},
                                    {"last_step", last_step},
                                    {"layers", layers},
                                    {"copies", copies},
                                    {"source_of", sources}}
                                       .dump() +
                                   "\n");
}

/// Throws WriteError when the disk has no room for the checkpoint that grows, before its scores are computed.
void check_room_to_grow(const std::filesystem::path& folder, const FoundCheckpoint& from,
                        const Growth& growth) {
  const std::string lacks = lack_of_room(folder, bytes_of(grow_checkpoint(from, growth)));
  if (lacks.empty()) return;
  fail<WriteError>(folder.string(),
                   "{} for the checkpoint of the model that grows: free that much and start again, the run "
                   "goes on from {}",
                   lacks, from.path.string());
}

/// Rank 0 puts the checkpoint that `part` begins with in the place of the last one of the part before, whose
/// outcome is `trained`; collective.
void begin_part(const JobPart& part, const JobPart& before, const TrainOutcome& trained,
                const Processes& processes) {
  if (processes.rank() == 0) {
    const std::filesystem::path folder = checkpoint_folder(part.job.output);
    const std::vector<FoundCheckpoint> found = find_checkpoints(folder, [](const std::string&) {});
    HM_CHECK(!found.empty() && found.front().info.step == before.end, "no checkpoint of step {}", before.end);
    check_room_to_grow(folder, found.front(), part.from);
    const Growth growth = growth_into(part, before, found.front());
    CheckpointShard shard = grow_checkpoint(found.front(), growth);
    if (growth.factor > 1) write_growth(growth, trained, part.job);
    shard.info.job = to_json(part.job);
    write_checkpoint(folder, shard, part.job.checkpoint.keep);
  }
  processes.gather("");
}

std::string note_of(const JobPart& part, const JobPart& before, const StrategyRun& run) {
  const std::string took = format_seconds(run.predicted.step);
  if (part.from.factor == 1)
    return fmt::format("step {}: a token sees {} experts, {} before; steps took {} (simulated)",
                       before.end + 1, part.model.top_k, before.model.top_k, took);
  return fmt::format(
      "step {}: grows from {} to {} experts ({}), of which a token sees {}; steps took {} (simulated)",
      before.end + 1, before.model.num_experts, part.model.num_experts, name_of(before.job.grow.mode),
      part.model.top_k, took);
}

/// What the report says of the step by which the part begins.
std::string mark_of(const JobPart& part, const JobPart& before) {
  if (part.from.factor == 1)
    return fmt::format("{} experts for a token, {} before", part.model.top_k, before.model.top_k);
  return fmt::format("{} experts, {} before ({})", part.model.num_experts, before.model.num_experts,
                     name_of(before.job.grow.mode));
}

/// What was trained before the growth comes before the rest.
void put_before(TrainOutcome first, TrainOutcome& rest) {
  rest.first_step = first.first_step;
  const auto prepend = [](auto& head, auto& tail) { tail.insert(tail.begin(), head.begin(), head.end()); };
  prepend(first.notes, rest.notes);
  prepend(first.records, rest.records);
  prepend(first.warnings, rest.warnings);
  // Copies of experts that were fewer are not counted with those of the grown ones.
  if (first.expert_copies.empty() || rest.expert_copies.empty() ||
      first.expert_copies[0].size() != rest.expert_copies[0].size())
    return;
  rest.copies_from = first.copies_from;
  for (std::size_t l = 0; l < first.expert_copies.size(); ++l) {
    for (std::size_t e = 0; e < first.expert_copies[l].size(); ++e)
      rest.expert_copies[l][e] += first.expert_copies[l][e];
  }
}

}  // namespace

std::vector<JobPart> parts_of(const Job& job) {
  const ModelConfig model = load_model(job.model);
  if (job.grow.at == 0) {
    if (job.grow.narrow_to > 0)
      fail<ConfigError>("grow.narrow_to", "got {} without grow.at, expected a step after which experts grow",
                        job.grow.narrow_to);
    return {{job, model, {}, job.train.steps}};
  }
  check_growing(job);
  std::vector<JobPart> out = growing_parts(job, model);
  check_room(out[0], out[1]);
  return out;
}

bool grows(const Job& job) { return job.grow.at > 0 || job.grow.narrow_to > 0; }

TrainedJob train_growing_job(const Job& job, const JobRunOptions& options, const OnStep& on_step,
                             const Processes& processes) {
  const std::vector<JobPart> parts = parts_of(job);
  const std::size_t first = part_to_go_on_with(parts, processes);
  check_machine(parts, first, processes);
  std::optional<TrainOutcome> done;
  for (std::size_t i = first;; ++i) {
    const JobPart& part = parts[i];
    if (i == 0 && processes.rank() == 0) forget_growth(job);
    const bool last = i + 1 == parts.size();
    JobRunOptions how = options;
    how.model = part.model;
    how.end_after = last ? 0 : part.end;
    if (done) how.mark = mark_of(part, parts[i - 1]);
    TrainedJob out{run_job(part.job, {part.job.strategy}, how, on_step, processes), part.model,
                   part.job.cluster};
    TrainOutcome& outcome = out.runs[0].outcome;
    if (done) put_before(std::move(*done), outcome);
    if (last || outcome.stopped_by != 0) return out;
    begin_part(parts[i + 1], part, outcome, processes);
    outcome.notes.push_back(note_of(parts[i + 1], part, out.runs[0]));
    if (options.hooks.on_note) options.hooks.on_note(outcome.notes.back());
    done = std::move(outcome);
  }
}

}  // namespace hetermoe
