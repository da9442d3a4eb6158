#include "hetermoe/train/start.h"

#include <algorithm>
#include <thread>

#include "hetermoe/base/checksum.h"
#include "hetermoe/base/index.h"
#include "hetermoe/base/version.h"
#include "hetermoe/comm/mpi.h"
#include "hetermoe/comm/nccl.h"
#include "hetermoe/nn/accelerator.h"

namespace hetermoe {
namespace {

u64 sum_of(const Json& json) {
  const std::string text = json.dump();
  return checksum(text.data(), text.size());
}

i32 lane_threads(const Job& job, const Plan& plan) {
  if (job.clock.threads > 0) return job.clock.threads;
  return std::max(1, num_cores() / static_cast<i32>(devices_of(plan).size()));
}

Session::Options session_options(const SessionParts& parts) {
  const Job& job = parts.job;
  Session::Options options;
  options.step = step_options(job, parts.model);
  options.executor.emulated = &parts.emulated;
  options.executor.clock = job.clock.kind == ClockKind::kPaced ? ClockKind::kVirtual : job.clock.kind;
  options.executor.truth = &parts.truth;
  if (job.train.straggler_share > 0) options.executor.nominal = &parts.nominal;
  options.executor.threads_per_lane = lane_threads(job, parts.plan);
  options.executor.watchdog = job.clock.watchdog_s;
  return options;
}

/// Where the tensors of each device are: empty = on the CPU.
std::vector<c10::Device> places(const Job& job, const Cluster& cluster, const Processes& processes) {
  if (find_device(job.run.device, "run.device").is_cpu()) return {};
  std::vector<c10::Device> where;
  for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
    const i32 turn = processes.alone() ? d : processes.local_rank();
    where.push_back(find_device_in_turn(job.run.device, turn, "run.device"));
  }
  return where;
}

}  // namespace

StepOptions step_options(const Job& job, const ModelConfig& model) {
  return {.balance = model.aux_loss_coef > 0, .aux_group = job.train.aux_group, .backward = true};
}

i32 num_cores() { return std::max(1, static_cast<i32>(std::thread::hardware_concurrency())); }

std::unique_ptr<Session> make_session(const SessionParts& parts, const Processes& processes) {
  const Job& job = parts.job;
  const Cluster& cluster = parts.cluster;
  Session::Options options = session_options(parts);
  // Threads of one process share its cores: who of them is slower says nothing of a device.
  if (processes.alone() && job.clock.kind == ClockKind::kReal) options.executor.nominal = nullptr;
  options.where = places(job, cluster, processes);
  const auto start = [&](const Session::MakeTransport& make) {
    return std::make_unique<Session>(
        parts.model, cluster, parts.plan, options, [&](const Schedule& schedule) {
          std::unique_ptr<Transport> transport = make(schedule);
          return job.train.checksum_messages ? make_checksummed_transport(std::move(transport))
                                             : std::move(transport);
        });
  };
  if (processes.alone())
    return start([&](const Schedule&) { return make_in_process_transport(cluster.num_devices()); });
  if (job.clock.kind == ClockKind::kPaced) {
    fail<ConfigError>("clock.kind",
                      "got paced with {} processes, expected real or virtual: processes have no common "
                      "clock to keep pace with",
                      processes.num_ranks());
  }
  const std::vector<DeviceId> devices = devices_of(parts.plan);
  const std::vector<i32> ranks = spread_devices(static_cast<i32>(devices.size()), processes.num_ranks());
  std::vector<i32> rank_of(cluster.devices.size(), 0);
  for (std::size_t i = 0; i < devices.size(); ++i) {
    rank_of[idx(devices[i])] = ranks[i];
    if (ranks[i] == processes.rank()) options.local.push_back(devices[i]);
  }
  if (options.where.empty())
    return start([&](const Schedule&) { return make_mpi_transport(processes, rank_of); });
  options.launch_by = &parts.nominal;
  const c10::Device own = options.where[idx(options.local.front())];
  return start([&](const Schedule& schedule) {
    return make_nccl_transport(processes, open_nccl(),
                               {.rank_of = rank_of, .queues = transfer_queues(schedule), .device = own});
  });
}

void check_same_run(const Processes& processes, const Job& job, const Session& session, u64 text_checksum) {
  const std::string mine =
      fmt::format("{} plan {:016x} schedule {:016x} model {:016x} job {:016x} text {:016x}", version(),
                  sum_of(to_json(session.plan())), hash(session.schedule()), sum_of(to_hf(session.model())),
                  sum_of(write_fields(job)), text_checksum);
  check_alike(processes, mine, "All ranks need the same program, job and text.");
}

}  // namespace hetermoe
