#include "hetermoe/train/growth/grow_run.h"

#include "hetermoe/base/version.h"
#include "hetermoe/train/checkpoint/checkpoint_archive.h"
#include "hetermoe/train/checkpoint/resume.h"
#include "hetermoe/weights/disk_room.h"
#include "hetermoe/weights/merge.h"
#include "hetermoe/weights/upcycle.h"

namespace hetermoe {
namespace {

namespace fs = std::filesystem;

/// What a run keeps of one parameter, made of what it kept of the source's. Suffixes name what that is: "" is
/// the value.
struct MadeParameter {
  ParamInfo parameter;
  std::string source;  ///< one of those that it is made of, which tells what is kept
  std::function<at::Tensor(const std::string& suffix)> value;
  std::function<at::Tensor(const std::string& suffix, i64 power)> moment;
};

void add_to(CheckpointShard& shard, const Archive& archive, const MadeParameter& made) {
  const std::string& name = made.parameter.name;
  const auto add = [&](std::vector<OutTensor>& out, const std::string& suffix, at::ScalarType type,
                       std::function<at::Tensor()> make) {
    out.push_back({{name + suffix, type, made.parameter.shape},
                   [type, make = std::move(make)] { return make().to(type); }});
  };
  const auto kept = [&](const std::string& suffix) { return archive.has(made.source + suffix); };
  const auto add_kept = [&](const std::string& suffix, std::function<at::Tensor()> make) {
    if (kept(suffix)) add(shard.optimizer, suffix, archive.dtype(made.source + suffix), std::move(make));
  };
  // A value is a rounding of its master, noise included.
  const std::string best = kept(".master") ? ".master" : "";
  add(shard.model, "", archive.dtype(made.source), [make = made.value, best] { return make(best); });
  for (const std::string suffix : {".master", ".published"})
    add_kept(suffix, [make = made.value, suffix] { return make(suffix); });
  // Frozen parameters have no moments.
  for (const auto& [suffix, power] : {std::pair(".exp_avg", i64{1}), std::pair(".exp_avg_sq", i64{2})})
    add_kept(suffix, [make = made.moment, suffix = std::string(suffix), power = power] {
      return make(suffix, power);
    });
}

/// The checkpoint of another model: what is of the old experts is left out.
CheckpointShard begin_shard(const FoundCheckpoint& from, const ModelConfig& model, GrownMoments moments) {
  CheckpointShard shard;
  shard.info = from.info;
  shard.info.version = version();
  shard.info.plan = nullptr;
  shard.info.balancer.loads.clear();
  shard.info.balancer.use = {};
  if (moments == GrownMoments::kReset) shard.info.forgotten = from.info.step - from.info.skipped;
  shard.config = to_hf(model);
  return shard;
}

/// The job that goes on; what names experts by their old numbers is left out.
Json grown_job(Json job, const fs::path& output, std::vector<std::string>& notes) {
  job["model"] = (output / "model.json").string();
  job["output"] = output.string();
  job["train"]["init_from"] = "";
  job["checkpoint"]["resume"] = true;
  const auto drop = [&](const char* part, const char* key, const Json& empty) {
    if (!job.contains(part) || !job[part].contains(key) || job[part][key] == empty) return;
    notes.push_back(fmt::format("{}.{} is left out of the job: it is about the old experts", part, key));
    job[part][key] = empty;
  };
  drop("plan", "file", "");
  drop("train", "changes", Json::array());
  drop("routing", "record", "");
  drop("routing", "replay", "");
  drop("grow", "at", 0);
  drop("grow", "narrow_to", 0);
  return job;
}

}  // namespace

CheckpointShard grow_checkpoint(const FoundCheckpoint& from, const Growth& how) {
  CheckpointShard shard = begin_shard(from, how.after, how.moments);
  const auto archive = std::make_shared<const Archive>(from.path, from.files);
  const auto growth = std::make_shared<const Growth>(how);
  std::map<std::string, ParamInfo> before;
  for (const ParamInfo& parameter : parameters(growth->before)) before[parameter.name] = parameter;
  for (const ParamInfo& parameter : parameters(growth->after)) {
    const ParamInfo& source = before.at(source_name(*growth, parameter));
    const auto read = [archive, source](const std::string& suffix) {
      return archive->read(source.name + suffix, source.shape);
    };
    add_to(
        shard, *archive,
        {.parameter = parameter,
         .source = source.name,
         .value = [=](const std::string& suffix) { return grown_tensor(*growth, parameter, read(suffix)); },
         .moment = [=](const std::string& suffix,
                       i64 power) { return grown_moment(*growth, parameter, read(suffix), power); }});
  }
  return shard;
}

CheckpointShard shrink_checkpoint(const FoundCheckpoint& from, const Growth& how, double least_cosine) {
  CheckpointShard shard = begin_shard(from, how.before, how.moments);
  const auto archive = std::make_shared<const Archive>(from.path, from.files);
  const auto growth = std::make_shared<const Growth>(how);
  const auto reads = [archive](const std::string& suffix) -> ReadTensor {
    return [archive, suffix](const ParamInfo& p) { return archive->read(p.name + suffix, p.shape); };
  };
  check_alike(*growth, reads(""), least_cosine);
  for (const ParamInfo& parameter : parameters(growth->before)) {
    add_to(
        shard, *archive,
        {.parameter = parameter,
         .source = instance_names(*growth, parameter).front(),
         .value = [=](const std::string& suffix) { return merged_tensor(*growth, parameter, reads(suffix)); },
         .moment = [=](const std::string& suffix,
                       i64 power) { return merged_moment(*growth, parameter, reads(suffix), power); }});
  }
  return shard;
}

void check_grown_output(const fs::path& output) {
  check_output_folder(output);
  std::error_code code;
  if (!fs::exists(output, code) || fs::is_empty(output, code)) return;
  fail<ConfigError>(output.string(), "is not empty, expected a new folder for the run that goes on");
}

GrownRun write_grown_run(const FoundCheckpoint& from, const Growth& growth, const fs::path& output) {
  return write_changed_run(grow_checkpoint(from, growth), output);
}

GrownRun write_changed_run(CheckpointShard shard, const fs::path& output) {
  check_grown_output(output);
  if (const std::string lacks = lack_of_room(output, bytes_of(shard)); !lacks.empty())
    fail<ConfigError>(output.string(), "{}: free that much, or name a folder on another disk", lacks);
  GrownRun out;
  shard.info.job = grown_job(std::move(shard.info.job), output, out.notes);
  out.job = output / "job.json";
  try {
    write_checkpoint(checkpoint_folder(output), shard, 1);
    write_text(output / "model.json", shard.config.dump(2) + "\n");
    write_text(out.job, shard.info.job.dump(2) + "\n");
  } catch (...) {
    std::error_code code;
    fs::remove_all(output, code);
    throw;
  }
  out.checkpoint = find_checkpoints(checkpoint_folder(output), [](const std::string&) {}).at(0).path;
  return out;
}

}  // namespace hetermoe
