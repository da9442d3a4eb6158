#include <algorithm>
#include <map>
#include <utility>

#include "hetermoe/base/words.h"
#include "hetermoe/train/run/parts.h"
#include "hetermoe/train/run/run_state.h"
#include "hetermoe/weights/fused_experts.h"
#include "hetermoe/weights/hf_export.h"

namespace hetermoe {
namespace {

/// What the devices of a rank have written, or its error.
Json listing_of(const std::vector<ShardFile>& shards, const std::vector<OutTensor>& tensors) {
  i64 bytes = 0;
  for (const OutTensor& tensor : tensors) bytes += tensor.head.bytes();
  return {{"shards", to_json(shards)}, {"dtype", static_cast<int>(main_dtype(tensors))}, {"bytes", bytes}};
}

/// Of all tensors, as the family has them in files.
std::vector<std::string> names_in_files(const ModelConfig& model) {
  std::vector<OutTensor> heads;
  for (const ParamInfo& parameter : parameters(model))
    heads.push_back({{parameter.name, at::kFloat, parameter.shape}, {}});
  std::vector<std::string> names;
  for (const OutTensor& tensor : in_layout(model, file_layout(model), std::move(heads)))
    names.push_back(tensor.head.name);
  return names;
}

class ExportPart : public RunPart {
 public:
  explicit ExportPart(RunState& run) : run_(run) {
    const TrainOptions& train = run.job.train;
    if (run.processes.rank() == 0) {
      check_hf_target(folder_path(train.save_hf), train.init_from);
      const i64 every = train.save_hf_every;
      for (i64 done = every; every > 0 && done < train.steps; done += every)
        check_hf_target(folder_after(done), train.init_from);
    }
    weights_to_save();
  }

  void after_step(StepDone& done) override {
    const i64 step = done.record.step;
    if (is_due_after(step - 1)) save_weights(folder_after(step), step);
  }

  void end_run() override {
    if (run_.end == run_.job.train.steps)
      save_weights(folder_path(run_.job.train.save_hf), run_.steps_done());
  }

  bool ends_before_next(i64 step) const override { return is_due_after(step); }

 private:
  /// What the last step leaves is in train.save_hf itself.
  bool is_due_after(i64 step) const {
    const TrainOptions& train = run_.job.train;
    return train.save_hf_every > 0 && (step + 1) % train.save_hf_every == 0 && step + 1 < train.steps;
  }

  std::filesystem::path folder_after(i64 steps_done) const {
    return export_folder_of(folder_path(run_.job.train.save_hf), steps_done);
  }

  at::ScalarType saved_dtype(const LogicalTensor& tensor) const {
    const at::ScalarType own = run_.source ? run_.source->dtype(tensor.name) : tensor.value.scalar_type();
    // A bias of the router is never less than fp32.
    if (tensor.buffer) return own == at::kDouble ? at::kDouble : at::kFloat;
    if (run_.job.train.save_dtype) return scalar_type(*run_.job.train.save_dtype);
    return own;
  }

  std::vector<OutTensor> weights_to_save() {
    return tensors_to_save(run_.session->states(), run_.model,
                           [this](const LogicalTensor& tensor) { return saved_dtype(tensor); });
  }

  /// In PEFT's format, which has one file. In a folder of its own, for transformers adds adapters that lie
  /// beside a model.
  void save_adapters(const std::filesystem::path& folder) {
    const bool first = run_.processes.rank() == 0;
    if (first) std::filesystem::create_directories(folder);
    run_.processes.gather("");
    const std::vector<ShardFile> mine = write_shards(folder, fmt::format("rank-{:05}", run_.processes.rank()),
                                                     adapters_to_save(run_.session->states()));
    std::vector<OutTensor> all;
    std::vector<std::filesystem::path> parts;
    for (const std::string& text : run_.processes.gather(to_json(mine).dump())) {
      for (const ShardFile& shard : shards_from_json(Json::parse(text))) {
        if (!first) continue;
        parts.push_back(folder / shard.name);
        const auto part = std::make_shared<SafetensorsReader>(parts.back());
        for (const TensorHead& head : part->heads())
          all.push_back({head, [part, name = head.name] { return part->read(name); }});
      }
    }
    if (!first) return;
    std::sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.head.name < b.head.name; });
    const std::string written = write_shards(folder, "adapter", all).at(0).name;
    std::filesystem::rename(folder / written, folder / "adapter_model.safetensors");
    for (const std::filesystem::path& part : parts) std::filesystem::remove(part);
    write_text(folder / "adapter_config.json",
               adapter_config(run_.model, *run_.session->lora(), run_.job.train.init_from).dump(2) + "\n");
  }

  /// Shards of all ranks, whose experts rank 0 puts together as the family wants them.
  std::vector<ShardFile> fuse(const std::filesystem::path& folder, const std::vector<ShardFile>& shards) {
    std::map<std::string, std::pair<TensorHead, std::shared_ptr<SafetensorsReader>>> all;
    for (const ShardFile& shard : shards) {
      const auto file = std::make_shared<SafetensorsReader>(folder / shard.name);
      for (const TensorHead& head : file->heads()) all[head.name] = {head, file};
    }
    std::vector<OutTensor> tensors;
    for (const ParamInfo& parameter : parameters(run_.model)) {
      const auto& [head, file] = all.at(parameter.name);
      tensors.push_back({head, [file = file, name = head.name] { return file->read(name); }});
    }
    const std::vector<ShardFile> out =
        write_shards(folder, "fused", in_layout(run_.model, file_layout(run_.model), std::move(tensors)));
    for (const ShardFile& shard : shards) std::filesystem::remove(folder / shard.name);
    return out;
  }

  /// Every rank writes what its devices speak for; rank 0 makes a folder of it.
  void save_weights(const std::filesystem::path& target, i64 steps_done) {
    const std::filesystem::path folder = unfinished_folder(target);
    if (run_.processes.rank() == 0) {
      check_hf_target(target, run_.job.train.init_from);
      begin_hf_folder(target);
    }
    run_.processes.gather("");
    const std::vector<OutTensor> tensors = weights_to_save();
    const std::vector<ShardFile> mine =
        write_shards(folder, fmt::format("rank-{:05}", run_.processes.rank()), tensors);
    std::vector<ShardFile> shards;
    at::ScalarType dtype = at::kFloat;
    i64 most = -1;
    for (const std::string& text : run_.processes.gather(listing_of(mine, tensors).dump())) {
      const Json listing = Json::parse(text);
      for (ShardFile& shard : shards_from_json(listing.at("shards"))) shards.push_back(std::move(shard));
      if (listing.at("bytes").get<i64>() <= most) continue;
      most = listing.at("bytes");
      dtype = static_cast<at::ScalarType>(listing.at("dtype").get<int>());
    }
    if (run_.job.train.lora.rank > 0) save_adapters(folder / "adapter");
    if (run_.processes.rank() == 0) {
      if (file_layout(run_.model) != ExpertLayout::kPerExpert) shards = fuse(folder, shards);
      FolderContents contents{
          .config = with_dtype(
              run_.source ? config_after(run_.model, run_.source->folder()) : to_hf(run_.model), dtype),
          .source = run_.job.train.init_from,
          .origin = {{"steps", steps_done}, {"job", to_json(run_.job)}}};
      contents.names = names_in_files(run_.model);
      finish_hf_folder(target, shards, contents);
    }
    run_.processes.gather("");
    if (run_.job.train.lora.rank > 0 && target == folder_path(run_.job.train.save_hf)) {
      const std::vector<std::string> dropped = dropped_by_peft(run_.model, *run_.session->lora());
      if (!dropped.empty())
        run_.tell(
            fmt::format("PEFT drops without a word the adapters of {}, such as {}: use the merged folder, {}",
                        counted(dropped.size(), "matrix"), dropped[0], target.string()));
    }
    run_.tell(fmt::format("wrote {} after {} to {}",
                          counted(parameters(run_.model).size(), "parameter tensor"),
                          counted(steps_done, "step"), target.string()));
  }

  RunState& run_;
};

}  // namespace

std::unique_ptr<RunPart> export_part(RunState& run) {
  if (run.checkpoints == Checkpoints::kOff || run.job.train.save_hf.empty()) return nullptr;
  return std::make_unique<ExportPart>(run);
}

}  // namespace hetermoe
