#include "hetermoe/base/index.h"
#include "hetermoe/base/rows.h"
#include "hetermoe/device/host_copy.h"
#include "hetermoe/train/run/trainer.h"

// A run and what its routers chose in the step that has ended.
namespace hetermoe {
namespace {

/// What each domain chose on the devices of this process. domains: [sequences of the step]
Activations copies_of_domains(const std::vector<TakenRoutes>& taken, const std::vector<i64>& layers,
                              i64 num_experts, const std::vector<i32>& domains, i64 num_domains) {
  Activations out(idx(num_domains), std::vector<double>(layers.size() * idx(num_experts), 0));
  for (const TakenRoutes& routes : taken) {
    const at::Tensor on_host = to_host(routes.ids, "choices of domains").contiguous();
    const std::int16_t* ids = on_host.const_data_ptr<std::int16_t>();
    const std::size_t begin = position<i64>(layers, routes.layer) * idx(num_experts);
    const i64 of_sequence = on_host.numel() / routes.count;
    for (i64 s = 0; s < routes.count; ++s) {
      std::vector<double>& row = out[idx(domains[idx(routes.first + s)])];
      for (i64 i = 0; i < of_sequence; ++i) {
        const std::int16_t id = ids[s * of_sequence + i];
        if (id >= 0) row[begin + idx(id)] += 1;
      }
    }
  }
  return out;
}

/// Of all processes together, the same numbers on each.
void add_over(const Processes& processes, Activations& copies) {
  if (processes.alone()) return;
  const std::vector<std::string> of_ranks = processes.gather(Json(copies).dump());
  copies.clear();
  for (const std::string& text : of_ranks) add_to(copies, Json::parse(text).get<Activations>());
}

}  // namespace

/// What of the traces that a run reads and writes its user may not expect.
void Trainer::tell_routes(TrainOutcome& out) {
  if (route_replay_) {
    for (const std::string& note : route_replay_->notes(model_)) tell("routing.replay: " + note, out);
  }
  const std::string& record = job_.routing.record;
  if (!record.empty() && out.first_step == 0 && std::filesystem::exists(record))
    tell(fmt::format("routing.record: {} is there and is written anew", record), out);
}

bool Trainer::collects(i64 step) const {
  return (recorder_ && recorder_->records(step)) || (balancer_ && balancer_->goes_by_domains());
}

/// Of the sequences of a step that begins with `first`.
std::vector<i32> Trainer::domains_from(i64 first) const {
  const RecordedText text = recorded_text(TextCondition::kText);
  std::vector<i32> out;
  for (i64 s = 0; s < job_.train.sequences; ++s) out.push_back(static_cast<i32>(text.domain_of(first + s)));
  return out;
}

/// Of the newest step. Collective where a balancer goes by domains.
void Trainer::use_routes(i64 step) {
  const std::vector<TakenRoutes> taken = routes_->finish();
  const i64 first = next_sequence_ - job_.train.sequences;
  if (recorder_ && recorder_->records(step)) recorder_->write(step, first, plan(), taken);
  if (!balancer_ || !balancer_->goes_by_domains()) return;
  const std::vector<i32> domains = domains_from(first);
  DomainUse use;
  use.copies = copies_of_domains(taken, layers_with_experts(model_), model_.num_experts, domains,
                                 static_cast<i64>(domains_.size()));
  add_over(processes_, use.copies);
  use.sequences.assign(domains_.size(), 0);
  for (const i32 domain : domains) use.sequences[idx(domain)] += 1;
  balancer_->add_use(use);
}

}  // namespace hetermoe
