#include "hetermoe/train/run/restore.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>

#include "hetermoe/base/words.h"
#include "hetermoe/train/checkpoint/resume.h"
#include "hetermoe/train/run/takeover.h"
#include "hetermoe/weights/peft_adapter.h"

namespace hetermoe {
namespace {

/// A run that begins anew leaves no checkpoint of another one where it or a restart of it would look.
void name_run(RunState& run) {
  const std::filesystem::path folder = checkpoint_folder(run.job.output);
  if (run.processes.rank() == 0) recover_checkpoints(folder);
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  run.attempt = run.name = run.processes.gather(fmt::format("{:x}", static_cast<u64>(now)))[0];
  if (run.job.checkpoint.resume || run.job.checkpoint.every == 0 || run.processes.rank() != 0) return;
  const std::string note = set_others_aside(folder, run.name);
  if (!note.empty()) run.tell(note);
}

/// What will not be as it was in the run that wrote the checkpoint.
void tell_differences(RunState& run, const CheckpointInfo& info) {
  for (const std::string& difference : job_differences(info.job, to_json(run.job))) run.tell(difference);
  if (const Json now = to_json(run.plan()); !info.plan.is_null() && info.plan != now) {
    std::vector<std::string> keys;
    for (const Json* side : {&now, &info.plan})
      for (const auto& [key, value] : side->items())
        if (now.value(key, Json()) != info.plan.value(key, Json()) &&
            std::find(keys.begin(), keys.end(), key) == keys.end())
          keys.push_back(key);
    const std::string before = plan_text(info.plan), after = plan_text(now);
    run.tell(before == after ? fmt::format("another plan goes on, which differs in {}", fmt::join(keys, ", "))
                             : fmt::format("another plan goes on: {}, it was {}", after, before));
  }
  if (info.text != run.text.checksum() || info.seed != run.job.train.seed)
    run.tell("the training text or the seed is not that of the checkpoint: the data are not continued");
}

/// All but the tensors.
void load_info(RunState& run, const CheckpointInfo& info) {
  go_over_to(run, plan_after(run, info));
  run.next_sequence = info.sequences;
  for (const auto& part : run.parts) part->load(info);
}

}  // namespace

void start_weights(RunState& run) {
  if (!run.source) return;
  load_weights(*run.source, run.session->states());
  const std::string& adapters = run.job.train.lora.from;
  if (!adapters.empty()) {
    PeftAdapter(adapters).load(run.session->states());
    run.tell(fmt::format("goes on with the adapters of {}", adapters));
  }
  const TensorMap& map = run.source->map();
  run.tell(fmt::format("starts from {}: {} ({}), experts {}", run.job.train.init_from,
                       counted(map.sources.size(), "parameter tensor"),
                       dtype_text(run.source->dtype("model.norm.weight")), name_of(map.layout)));
  if (!map.ignored.empty())
    run.tell(fmt::format("{} of {} not read, such as {}", counted(map.ignored.size(), "tensor"),
                         agree(map.ignored.size(), "it is", "them are"), map.ignored[0]));
}

void resume(RunState& run) {
  name_run(run);
  for (const std::string& note : run.session->notes()) run.tell(note);
  if (!run.job.checkpoint.resume) return;
  const Resumed resumed =
      load_newest(checkpoint_folder(run.job.output), run.model, run.session->states(), run.processes);
  for (const std::string& text : resumed.notes) run.tell(text);
  if (!resumed.checkpoint) return;
  const CheckpointInfo& info = resumed.checkpoint->info;
  load_info(run, info);
  run.name = info.run;
  run.outcome.first_step = info.step;
  if (run.marks.empty()) run.marks.push_back("the run went on from a checkpoint");
  if (info.step < run.job.train.steps) tell_differences(run, info);
}

i64 go_back_to(RunState& run, const std::optional<FoundCheckpoint>& checkpoint) {
  if (!checkpoint) {
    start_weights(run);
    return 0;
  }
  load_checkpoint(*checkpoint, run.model, run.session->states());
  load_info(run, checkpoint->info);
  return checkpoint->info.step;
}

}  // namespace hetermoe
