#include "hetermoe/train/session/start.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <thread>

#include "hetermoe/base/index.h"
#include "hetermoe/base/version.h"
#include "hetermoe/base/words.h"
#include "hetermoe/comm/codec.h"
#include "hetermoe/comm/transports.h"
#include "hetermoe/device/accelerator.h"
#include "hetermoe/exec/threads.h"
#include "hetermoe/kernels/kernel_code.h"
#include "hetermoe/kernels/launch.h"
#include "hetermoe/train/job/gpu_run.h"
#include "hetermoe/train/session/ranks.h"

namespace hetermoe {
namespace {

i32 lane_threads(const Job& job, const Plan& plan) {
  if (job.clock.threads > 0) {
    check_threads("clock.threads", job.clock.threads);
    return job.clock.threads;
  }
  return std::max(1, num_cores() / static_cast<i32>(devices_of(plan).size()));
}

bool computes_in_fp64(const Plan& plan) {
  return std::find(plan.dtype.begin(), plan.dtype.end(), Dtype::kFp64) != plan.dtype.end();
}

/// A plan that does not fit is refused before anything is allocated.
void check_gpu_memory(const SessionParts& parts, const Session::Options& options, const Schedule& schedule,
                      i64 communicators) {
  if (options.where.empty()) return;
  const Placement placement(parts.plan, parts.model, options.step);
  const ExpectedRouting routing(parts.model);
  const OpTimes times = simulate(schedule, placement, parts.model, parts.cluster, parts.truth, routing);
  const std::vector<MemoryPeak> peaks =
      peak_memory(schedule, times, placement, parts.model, parts.cluster, routing);
  std::vector<GpuRoom> room;
  for (const GpuFacts& gpu : gpus_here())
    room.push_back({gpu.memory, free_gpu_memory(c10::Device(gpu.id)), gpu.capability});
  const std::string fault =
      gpu_memory_fault(peaks, options.local.empty() ? devices_of(parts.plan) : options.local, options.where,
                       room, communicators);
  if (!fault.empty()) fail<ConfigError>("plan", "{}", fault);
}

/// Kernels of our own for the dtypes of this process's devices, on each kind of GPU.
void compile_kernels(const Plan& plan, const Session::Options& options) {
  std::map<int, std::set<at::ScalarType>> by_capability;
  for (const PlaceId place : options.local.empty() ? devices_of(plan) : options.local) {
    const bool on_gpu = idx(place) < options.where.size() && kernels::has_kernels(options.where[idx(place)]);
    if (on_gpu)
      by_capability[compute_capability(options.where[idx(place)])].insert(
          scalar_type(plan.dtype[idx(place)]));
  }
  for (auto& [capability, elements] : by_capability) {
    elements.insert({at::kFloat, at::kInt, at::kLong});
    const std::vector<at::ScalarType> list(elements.begin(), elements.end());
    kernels::compile_ahead(capability, list, num_cores());
  }
}

Json content_of(const ProfileSet& profiles) {
  Json json = Json::object();
  for (const auto& [type, named] : profiles) {
    ProfileFile profile = named.profile;
    json[std::to_string(type)] = write_fields(profile);
  }
  return json;
}

RankGpu rank_gpu(const GpuFacts& gpu) { return {host_name(), gpu.name, gpu.capability, gpu.memory}; }

/// The rank of each device of the cluster, -1 = idle.
std::vector<i32> place_ranks(const SessionParts& parts, const Processes& processes, c10::Device own) {
  std::vector<const Plan*> plans = {&parts.plan};
  for (const PlannedChange& change : parts.changes) plans.push_back(&change.plan);
  std::vector<i32> rank_of = ranks_of_devices(plans, parts.cluster, processes.num_ranks());
  // On an emulated clock any GPU may stand for any device.
  const std::vector<WantedGpu> wanted = wanted_gpus(parts.plan, parts.cluster);
  const bool one_each = static_cast<i32>(wanted.size()) == processes.num_ranks();
  if (own.is_cpu() || parts.job.clock.kind != ClockKind::kReal || !one_each) return rank_of;
  const std::vector<i32> ranks = assign_ranks(gather_gpus(processes, rank_gpu(gpu_facts(own))), wanted);
  for (std::size_t i = 0; i < wanted.size(); ++i) rank_of[idx(wanted[i].device)] = ranks[i];
  return rank_of;
}

/// The GPUs of this process's devices, where it has several of each.
void place_on_gpus(Session::Options& options, const SessionParts& parts, const Processes& processes) {
  if (parts.job.run.device != "cuda" || options.where.empty()) return;
  std::vector<WantedGpu> wanted = wanted_gpus(parts.plan, parts.cluster);
  if (!processes.alone()) {
    std::erase_if(wanted, [&](const WantedGpu& gpu) {
      return std::ranges::find(options.local, gpu.device) == options.local.end();
    });
  }
  if (wanted.size() < 2) return;
  std::vector<RankGpu> found;
  for (const GpuFacts& gpu : gpus_here()) found.push_back(rank_gpu(gpu));
  const bool any = parts.job.clock.kind != ClockKind::kReal;  // on an emulated clock
  if (any) found.assign(found.size(), found.front());
  const i32 first = processes.alone() ? 0 : processes.local_rank() * static_cast<i32>(wanted.size());
  const bool must_fit = !processes.alone() && !any && found.size() >= wanted.size();
  const std::vector<i32> gpus = must_fit ? assign_ranks(found, wanted) : assign_gpus(found, wanted, first);
  for (std::size_t i = 0; i < wanted.size(); ++i)
    options.where[idx(wanted[i].device)].set_index(static_cast<c10::DeviceIndex>(gpus[i]));
}

bool has_several_devices(const std::vector<i32>& rank_of) {
  std::set<i32> seen;
  return std::ranges::any_of(rank_of, [&](i32 rank) { return rank != kNoRank && !seen.insert(rank).second; });
}

/// A host belongs to the process of its devices.
void add_hosts(std::vector<i32>& rank_of, const SessionParts& parts) {
  const Plan& plan = parts.plan;
  if (!uses_hosts(plan)) return;
  const DeviceId num_devices = parts.cluster.num_devices();
  rank_of.resize(idx(num_devices) + parts.cluster.nodes.size(), kNoRank);
  for (const DeviceId device : devices_of(plan)) {
    i32& rank = rank_of[idx(num_devices + plan.hosts[idx(device)])];
    if (rank != kNoRank && rank != rank_of[idx(device)]) {
      fail<ConfigError>(
          "plan.offload",
          "devices of node {} are in processes {} and {}, but share a host: expected one process for "
          "all devices of a node. Start one process for each of the {} nodes",
          parts.cluster.nodes[idx(plan.hosts[idx(device)])].name, rank, rank_of[idx(device)],
          parts.cluster.nodes.size());
    }
    rank = rank_of[idx(device)];
  }
}

/// Rank 0 decides in which order the transfers are launched, where the transport needs one order.
void agree_on_launches(Session::Options& options, const SessionParts& parts, const Processes& processes) {
  options.launch_by = &parts.nominal;
  options.agree_on_order = [&processes](const Schedule& schedule, const std::vector<OpId>& mine) {
    return order_of_rank_0(processes, schedule, mine);
  };
}

/// [num_devices] as the job says it, or the profile of the device's type.
std::vector<ExpertProducts> expert_products_of(const SessionParts& parts) {
  std::vector<ExpertProducts> out(idx(parts.cluster.num_devices()), parts.job.run.expert_products);
  if (parts.job.run.expert_products != ExpertProducts::kAuto) return out;
  for (DeviceId d = 0; d < parts.cluster.num_devices(); ++d) {
    const auto found = parts.profiles.find(parts.cluster.devices[idx(d)].type);
    if (found != parts.profiles.end()) out[idx(d)] = found->second.profile.expert_products;
  }
  return out;
}

}  // namespace

i32 num_cores() { return std::max(1, static_cast<i32>(std::thread::hardware_concurrency())); }

std::vector<i32> queues_of_run(const Schedule& schedule, const Job& job) {
  if (job.train.changes.empty() && !job.balancer.on()) return transfer_queues(schedule);
  std::vector<i32> all;
  for (i32 queue = 0; queue < kNumQueues; ++queue) {
    if (static_cast<Queue>(queue) != Queue::kCompute) all.push_back(queue);
  }
  return all;
}

ExecutorOptions executor_options(const SessionParts& parts, const Processes& processes) {
  const Job& job = parts.job;
  ExecutorOptions options;
  options.emulated = &parts.emulated;
  options.clock = job.clock.kind == ClockKind::kReal ? ClockKind::kReal : ClockKind::kVirtual;
  options.truth = &parts.truth;
  // Threads of one process share its cores: who of them is slower says nothing of a device.
  const bool tells_stragglers = !processes.alone() || job.clock.kind != ClockKind::kReal;
  if (job.balancer.measure && !tells_stragglers)
    fail<ConfigError>("balancer.measure",
                      "got true, expected false with one process under the real clock, whose threads share "
                      "the cores: nobody can tell which device is slow. Start a process for each device, or "
                      "say clock.kind: virtual");
  if ((job.train.straggler_share > 0 || job.balancer.measure) && tells_stragglers)
    options.nominal = &parts.nominal;
  options.threads_per_lane = lane_threads(job, parts.plan);
  options.watchdog = job.clock.watchdog_s;
  options.memory = parts.meter;
  options.memory_limit = job.run.memory_limit_gib * 1024 * 1024 * 1024;
  return options;
}

std::unique_ptr<Session> make_session(const SessionParts& parts, const Processes& processes) {
  const Job& job = parts.job;
  const Cluster& cluster = parts.cluster;
  check_same_run(processes, facts_of(parts));
  Session::Options options;
  options.step = step_options(job, parts.model);
  options.executor = executor_options(parts, processes);
  options.where = places_of(job, cluster, processes, computes_in_fp64(parts.plan));
  if (!options.where.empty()) options.expert_products = expert_products_of(parts);
  if (!processes.alone() && job.clock.kind == ClockKind::kPaced) {
    fail<ConfigError>("clock.kind",
                      "got paced with {}, expected real or virtual: processes have no common "
                      "clock to keep pace with",
                      counted(processes.num_ranks(), "process"));
  }
  const c10::Device own = options.where.empty() ? c10::Device(c10::DeviceType::CPU) : options.where[0];
  TransportOptions transport{.rank_of = std::vector<i32>(idx(cluster.num_devices()), 0),
                             .queues = {},
                             .device = own,
                             .tells_ready = job.clock.kind != ClockKind::kReal};
  if (!processes.alone()) {
    transport.rank_of = place_ranks(parts, processes, own);
  }
  const TransportNeeds needs{.hosts = uses_hosts(parts.plan),
                             .several_devices = has_several_devices(transport.rank_of)};
  const TransportKind& kind = find_transport(processes, own, job.run.transport, needs);
  add_hosts(transport.rank_of, parts);
  if (!processes.alone()) {
    for (PlaceId place = 0; place < static_cast<PlaceId>(transport.rank_of.size()); ++place) {
      if (transport.rank_of[idx(place)] == processes.rank()) options.local.push_back(place);
    }
  }
  place_on_gpus(options, parts, processes);
  if (!kind.attributes.hosts && needs.hosts) {
    fail<ConfigError>(
        "plan.offload",
        "keeps parameters on hosts, which transport {} does not reach: expected one process, or "
        "one for each node by mpirun (-np {})",
        kind.name, parts.cluster.nodes.size());
  }
  if (kind.attributes.one_launch_order) agree_on_launches(options, parts, processes);
  return std::make_unique<Session>(parts.model, cluster, parts.plan, options, [&](const Schedule& schedule) {
    check_same_run(processes, {{"schedule", fmt::format("{:016x}", hash(schedule))}});
    compile_kernels(parts.plan, options);
    transport.queues = queues_of_run(schedule, job);
    // NCCL's transport alone wants one order of launches, and has a communicator for each queue.
    const i64 communicators =
        kind.attributes.one_launch_order ? static_cast<i64>(transport.queues.size()) : 0;
    check_gpu_memory(parts, options, schedule, communicators);
    std::unique_ptr<Transport> made = kind.make(processes, transport);
    if (parts.sent != nullptr) made = make_counted_transport(std::move(made), *parts.sent);
    return job.train.checksum_messages ? make_checksummed_transport(std::move(made)) : std::move(made);
  });
}

Facts facts_of(const SessionParts& parts) {
  Json changes = Json::array();
  for (const PlannedChange& change : parts.changes) changes.push_back({change.step, to_json(change.plan)});
  return {{"program", version()},
          {"model", checksum_of(to_hf(parts.model))},
          {"cluster", checksum_of(to_json(parts.cluster))},
          {"profiles", checksum_of(content_of(parts.profiles))},
          {"plan", checksum_of(to_json(parts.plan))},
          {"changes", checksum_of(changes)},
          {"job", checksum_of(to_json(parts.job))},
          {"text", fmt::format("{:016x}", parts.text_checksum)}};
}

void check_same_run(const Processes& processes, const Facts& mine) {
  if (processes.alone()) return;
  const std::vector<std::string> all = processes.gather(Json(mine).dump());
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    const auto expected = Json::parse(all[0]).get<Facts>(), got = Json::parse(all[r]).get<Facts>();
    std::vector<std::string> differences;
    for (std::size_t i = 0; i < std::min(got.size(), expected.size()); ++i) {
      if (got[i] == expected[i]) continue;
      differences.push_back(
          fmt::format("{} (got {}, expected {})", got[i].first, got[i].second, expected[i].second));
    }
    fail<ConfigError>(
        fmt::format("rank {}", r),
        "is not started like rank 0: it differs in {}. All ranks need the same program, files, job "
        "and text.",
        fmt::join(differences, ", "));
  }
}

std::vector<OpId> order_of_rank_0(const Processes& processes, const Schedule& schedule,
                                  const std::vector<OpId>& mine) {
  const Json told = {{"schedule", hash(schedule)}, {"order", mine}};
  const Json got = Json::parse(processes.gather(processes.rank() == 0 ? told.dump() : "").front());
  auto order = got.at("order").get<std::vector<OpId>>();
  if (got.at("schedule") != told.at("schedule") || order.size() != schedule.ops.size()) {
    fail<ConfigError>(fmt::format("rank {}", processes.rank()),
                      "has another schedule than rank 0: got {} ops, expected {}", schedule.ops.size(),
                      order.size());
  }
  return order;
}

}  // namespace hetermoe
