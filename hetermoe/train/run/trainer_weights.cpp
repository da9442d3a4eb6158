#include <algorithm>

#include "hetermoe/base/words.h"
#include "hetermoe/train/run/trainer.h"

// From which weights a run starts, and where they go at its end.
namespace hetermoe {
namespace {

/// What the devices of a rank have written, or its error.
Json listing_of(const std::vector<ShardFile>& shards, const std::vector<OutTensor>& tensors) {
  i64 bytes = 0;
  for (const OutTensor& tensor : tensors) bytes += tensor.head.bytes();
  return {{"shards", to_json(shards)}, {"dtype", static_cast<int>(main_dtype(tensors))}, {"bytes", bytes}};
}

}  // namespace

/// Everything that can be wrong with the folders is told before the first step.
void Trainer::prepare_weights() {
  const TrainOptions& train = job_.train;
  if (train.init_from.empty()) {
    session_->initialize(train.seed);
  } else {
    source_.emplace(train.init_from, model_);
    check_same_arithmetic(model_, source_->folder());
    if (train.lora.rank > 0) session_->initialize(train.seed);  // adapters are not in the folder
  }
}

/// Of a run that does not go on from a checkpoint.
void Trainer::start_weights(TrainOutcome& out) {
  if (!source_) return;
  load_weights(*source_, session_->states());
  const TensorMap& map = source_->map();
  tell(fmt::format("starts from {}: {} ({}), experts {}", job_.train.init_from,
                   counted(map.sources.size(), "parameter tensor"),
                   dtype_text(source_->dtype("model.norm.weight")), name_of(map.layout)),
       out);
  if (!map.ignored.empty())
    tell(fmt::format("{} of {} not read, such as {}", counted(map.ignored.size(), "tensor"),
                     agree(map.ignored.size(), "it is", "them are"), map.ignored[0]),
         out);
}

at::ScalarType Trainer::saved_dtype(const LogicalTensor& tensor) const {
  const at::ScalarType own = source_ ? source_->dtype(tensor.name) : tensor.value.scalar_type();
  // A bias of the router is never less than fp32.
  if (tensor.buffer) return own == at::kDouble ? at::kDouble : at::kFloat;
  if (job_.train.save_dtype) return scalar_type(*job_.train.save_dtype);
  return own;
}

std::vector<OutTensor> Trainer::weights_to_save() {
  return tensors_to_save(session_->states(), model_,
                         [this](const LogicalTensor& tensor) { return saved_dtype(tensor); });
}

void Trainer::check_save() {
  if (job_.train.save_hf.empty()) return;
  if (processes_.rank() == 0) {
    check_hf_target(folder_path(job_.train.save_hf), job_.train.init_from);
    const i64 every = job_.train.save_hf_every;
    for (i64 done = every; every > 0 && done < job_.train.steps; done += every)
      check_hf_target(export_folder(done), job_.train.init_from);
  }
  weights_to_save();
}

/// In PEFT's format, which has one file. In a folder of its own, for transformers adds adapters that lie
/// beside a model.
void Trainer::save_adapters(const std::filesystem::path& folder) {
  const bool first = processes_.rank() == 0;
  if (first) std::filesystem::create_directories(folder);
  processes_.gather("");
  const std::vector<ShardFile> mine = write_shards(folder, fmt::format("rank-{:05}", processes_.rank()),
                                                   adapters_to_save(session_->states()));
  std::vector<OutTensor> all;
  std::vector<std::filesystem::path> parts;
  for (const std::string& text : processes_.gather(to_json(mine).dump())) {
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
             adapter_config(model_, *session_->lora(), job_.train.init_from).dump(2) + "\n");
}

/// What the last step leaves is in train.save_hf itself.
bool Trainer::exports_after(i64 step) const {
  const TrainOptions& train = job_.train;
  return writer_ && train.save_hf_every > 0 && (step + 1) % train.save_hf_every == 0 &&
         step + 1 < train.steps;
}

std::filesystem::path Trainer::export_folder(i64 steps_done) const {
  return export_folder_of(folder_path(job_.train.save_hf), steps_done);
}

/// Every rank writes what its devices speak for; rank 0 makes a folder of it.
void Trainer::save_weights(const std::filesystem::path& target, i64 steps_done, TrainOutcome& out) {
  const std::filesystem::path folder = unfinished_folder(target);
  if (processes_.rank() == 0) {
    check_hf_target(target, job_.train.init_from);
    begin_hf_folder(target);
  }
  processes_.gather("");
  const std::vector<OutTensor> tensors = weights_to_save();
  const std::vector<ShardFile> mine =
      write_shards(folder, fmt::format("rank-{:05}", processes_.rank()), tensors);
  std::vector<ShardFile> shards;
  at::ScalarType dtype = at::kFloat;
  i64 most = -1;
  for (const std::string& text : processes_.gather(listing_of(mine, tensors).dump())) {
    const Json listing = Json::parse(text);
    for (ShardFile& shard : shards_from_json(listing.at("shards"))) shards.push_back(std::move(shard));
    if (listing.at("bytes").get<i64>() <= most) continue;
    most = listing.at("bytes");
    dtype = static_cast<at::ScalarType>(listing.at("dtype").get<int>());
  }
  if (job_.train.lora.rank > 0) save_adapters(folder / "adapter");
  if (processes_.rank() == 0) {
    FolderContents contents{
        .config = with_dtype(source_ ? config_after(model_, source_->folder()) : to_hf(model_), dtype),
        .source = job_.train.init_from,
        .origin = {{"steps", steps_done}, {"job", to_json(job_)}}};
    for (const ParamInfo& parameter : parameters(model_)) contents.names.push_back(parameter.name);
    finish_hf_folder(target, shards, contents);
  }
  processes_.gather("");
  if (job_.train.lora.rank > 0 && target == folder_path(job_.train.save_hf)) {
    const std::vector<std::string> dropped = dropped_by_peft(model_, *session_->lora());
    if (!dropped.empty())
      tell(fmt::format(
               "PEFT drops without a word the adapters of {} of shared experts and dense MLPs, such as {}: "
               "use the merged folder, {}",
               counted(dropped.size(), "matrix"), dropped[0], target.string()),
           out);
  }
  tell(fmt::format("wrote {} after {} to {}", counted(parameters(model_).size(), "parameter tensor"),
                   counted(steps_done, "step"), target.string()),
       out);
}

}  // namespace hetermoe
