#include "hetermoe/base/index.h"
#include "hetermoe/base/rows.h"
#include "hetermoe/base/words.h"
#include "hetermoe/device/host_copy.h"
#include "hetermoe/report/table.h"
#include "hetermoe/train/run/parts.h"
#include "hetermoe/train/run/route_collector.h"
#include "hetermoe/train/run/step_balancer.h"
#include "hetermoe/train/run/takeover.h"
#include "hetermoe/train/session/batch.h"

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

class BalancerPart : public RunPart, public RouteReader {
 public:
  explicit BalancerPart(RunState& run)
      : run_(run),
        balancer_(run.job, run.model, run.cluster, run.first_plan, run.profiles, run.text.num_domains()) {
    if (balancer_.goes_by_domains()) run.route_readers.push_back(this);
  }

  /// Rank 0 decides: what a balancer computes need not be equal to the bit on all machines.
  void before_step(i64 step) override {
    if (balancer_.foresees()) {
      ForeseenStep next = run_.foresight(step);
      balancer_.foresee(next.copies, std::move(next.routing));
    } else if (balancer_.goes_by_domains()) {
      balancer_.expect(run_.text.domains_from(run_.next_sequence));
    }
    if (!balancer_.is_due(step)) return;
    const BalancedOwners chosen = balancer_.choose(*run_.priced);
    ++looks_;
    held_ += chosen.held ? 1 : 0;
    held_before_ = chosen.held;
    const Plan next = plan_of_rank_0(run_.processes, chosen.plan.value_or(run_.plan()));
    if (to_json(next) == to_json(run_.plan()))
      tell_kept(step, chosen.why_not);
    else
      go_on_with(next, step, chosen);
  }

  /// The sequences come where the balancer wants them. Rank 0 decides.
  void add_to(StepInput& input) override {
    std::vector<i64>& order = run_.order = balancer_.order(run_.plan());
    if (order.empty()) return;
    if (!run_.processes.alone()) {
      const std::string told = run_.processes.rank() == 0 ? Json(order).dump() : "";
      order = Json::parse(run_.processes.gather(told).front()).get<std::vector<i64>>();
    }
    reorder(input, order);
  }

  void step_ended(StepRecord& record) override {
    balancer_.add(copies_of(run_.last.counts_LE));
    record.owners_held = std::exchange(held_before_, false);
  }

  void after_step(StepDone& done) override { balancer_.add_slowness(done.all.slowness); }

  void end_run() override {
    if (held_ > 0)
      run_.tell(
          fmt::format("the guard held {} back in {} of {}: its owners would not have shortened the simulated "
                      "step by half a percent (balancer.guard)",
                      run_.job.balancer.name, held_, counted(looks_, "look")));
  }

  bool reads(i64) const override { return true; }

  void read(i64, i64 first, const std::vector<TakenRoutes>& taken) override {
    const std::vector<i32> domains = run_.text.domains_from(first);
    DomainUse use;
    use.copies = copies_of_domains(taken, layers_with_experts(run_.model), run_.model.num_experts, domains,
                                   run_.text.num_domains());
    add_over(run_.processes, use.copies);
    use.sequences.assign(idx(run_.text.num_domains()), 0);
    for (const i32 domain : domains) use.sequences[idx(domain)] += 1;
    balancer_.add_use(use);
  }

  void save(CheckpointInfo& info) override { info.balancer = balancer_.history(); }
  void load(const CheckpointInfo& info) override { balancer_.restore(info.balancer); }

  std::optional<Plan> plan_after(const CheckpointInfo& info) const override {
    if (info.plan.is_null()) return std::nullopt;
    Plan balanced = plan_from_json(info.plan, "plan of the checkpoint");
    return balancer_.may_go_on_with(balanced) ? std::optional(std::move(balanced)) : std::nullopt;
  }

 private:
  void tell_kept(i64 step, const std::string& why) {
    if (why.empty() || why == kept_for_) return;
    run_.tell(fmt::format("step {}: owners of experts stay: {}", step + 1, why));
    kept_for_ = why;
  }

  void go_on_with(const Plan& next, i64 step, const BalancedOwners& chosen) {
    const std::string& name = run_.job.balancer.name;
    const std::string promise = chosen.before > 0
                                    ? fmt::format(", for steps of {} instead of {} (simulated)",
                                                  format_seconds(chosen.after), format_seconds(chosen.before))
                                    : "";
    const std::string who = chosen.held ? "the guard gave up copies" : name + " chose other owners";
    run_.tell(fmt::format("step {}: {} of experts{}", step + 1, who, promise));
    take_over(run_, next, step, "owners by " + name);
  }

  RunState& run_;
  StepBalancer balancer_;
  i64 looks_ = 0, held_ = 0;  // at owners; and how often the guard left them
  bool held_before_ = false;  // before the step that comes
  std::string kept_for_;      // why owners were left as they are, as told last
};

}  // namespace

std::unique_ptr<RunPart> balancer_part(RunState& run) {
  if (!run.job.balancer.on()) return nullptr;
  return std::make_unique<BalancerPart>(run);
}

}  // namespace hetermoe
