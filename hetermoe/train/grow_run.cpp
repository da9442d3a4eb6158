#include "hetermoe/train/grow_run.h"

#include "hetermoe/base/version.h"
#include "hetermoe/train/checkpoint_archive.h"
#include "hetermoe/train/resume.h"
#include "hetermoe/weights/upcycle.h"

namespace hetermoe {
namespace {

namespace fs = std::filesystem;

/// What a run keeps of one parameter.
class GrownParameter {
 public:
  GrownParameter(const Archive& archive, const Growth& growth, const ParamInfo& before,
                 const ParamInfo& after)
      : archive_(archive), growth_(growth), before_(before), after_(after) {}

  void add_to(CheckpointShard& shard) const {
    const at::Tensor value = read("");
    if (archive_.has(before_.name + ".master")) {
      // A value is a rounding of its master, noise included.
      const at::Tensor master = grown(read(".master"));
      shard.model.push_back({after_.name, master.to(value.scalar_type())});
      shard.optimizer.push_back({after_.name + ".master", master});
    } else {
      shard.model.push_back({after_.name, grown(value)});
    }
    if (archive_.has(before_.name + ".published"))
      shard.optimizer.push_back({after_.name + ".published", grown(read(".published"))});
    add_moment(shard, ".exp_avg", 1);
    add_moment(shard, ".exp_avg_sq", 2);
  }

 private:
  at::Tensor read(const char* suffix) const { return archive_.read(before_.name + suffix, before_.shape); }
  at::Tensor grown(const at::Tensor& source) const { return grown_tensor(growth_, after_, source); }
  /// Frozen parameters have none.
  void add_moment(CheckpointShard& shard, const char* suffix, i64 power) const {
    if (!archive_.has(before_.name + suffix)) return;
    shard.optimizer.push_back({after_.name + suffix, grown_moment(growth_, after_, read(suffix), power)});
  }

  const Archive& archive_;
  const Growth& growth_;
  const ParamInfo &before_, &after_;
};

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
  return job;
}

}  // namespace

CheckpointShard grow_checkpoint(const FoundCheckpoint& from, const Growth& growth) {
  CheckpointShard shard;
  shard.info = from.info;
  shard.info.version = version();
  shard.info.plan = nullptr;        // it has owners of the old experts
  shard.info.expert_loads.clear();  // of the old experts
  if (growth.moments == GrownMoments::kReset) shard.info.forgotten = from.info.step - from.info.skipped;
  shard.config = to_hf(growth.after);
  const Archive archive(from.path, from.files);
  std::map<std::string, ParamInfo> before;
  for (const ParamInfo& parameter : parameters(growth.before)) before[parameter.name] = parameter;
  for (const ParamInfo& parameter : parameters(growth.after))
    GrownParameter(archive, growth, before.at(source_name(growth, parameter)), parameter).add_to(shard);
  return shard;
}

void check_grown_output(const fs::path& output) {
  check_output_folder(output);
  std::error_code code;
  if (!fs::exists(output, code) || fs::is_empty(output, code)) return;
  fail<ConfigError>(output.string(), "is not empty, expected a new folder for the run that goes on");
}

GrownRun write_grown_run(const FoundCheckpoint& from, const Growth& growth, const fs::path& output) {
  check_grown_output(output);
  GrownRun out;
  CheckpointShard shard = grow_checkpoint(from, growth);
  shard.info.job = grown_job(std::move(shard.info.job), output, out.notes);
  out.job = output / "job.json";
  try {
    write_checkpoint(checkpoint_folder(output), shard, 1);
    write_text(output / "model.json", to_hf(growth.after).dump(2) + "\n");
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
