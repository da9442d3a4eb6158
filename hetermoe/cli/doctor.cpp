#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <torch/version.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <thread>

#include "hetermoe/base/error.h"
#include "hetermoe/base/paths.h"
#include "hetermoe/base/version.h"
#include "hetermoe/base/words.h"
#include "hetermoe/cli/command.h"
#include "hetermoe/cluster/hostfile.h"
#include "hetermoe/comm/mpi.h"
#include "hetermoe/comm/nccl_api.h"
#include "hetermoe/comm/preflight.h"
#include "hetermoe/comm/transports.h"
#include "hetermoe/data/source_files.h"
#include "hetermoe/device/accelerator.h"
#include "hetermoe/device/speed.h"
#include "hetermoe/kernels/launch.h"
#include "hetermoe/kernels/nvrtc.h"
#include "hetermoe/model/model_config.h"
#include "hetermoe/report/table.h"
#include "hetermoe/train/job/job.h"

namespace hetermoe {
namespace {

/// Value of a line "key   : value" of a file of /proc; empty when there is none.
std::string proc_value(const std::string& path, const std::string& key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t colon = line.find(':');
    const std::size_t begin = colon == std::string::npos ? colon : line.find_first_not_of(" \t", colon + 1);
    if (begin != std::string::npos) return line.substr(begin);
  }
  return "";
}

Bytes proc_memory(const std::string& key) {
  const std::string kib = proc_value("/proc/meminfo", key);
  return kib.empty() ? 0 : 1024 * std::stod(kib);
}

/// Cores that this process may use: fewer than the machine has under taskset or in a container.
i64 usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : std::thread::hardware_concurrency();
}

constexpr double kBusy = 0.5;  ///< processes for each core that lower what is measured

/// Processes that wanted a core in the last minute, on average; 0 = not known.
double machine_load() {
  double load = 0;
  return getloadavg(&load, 1) == 1 ? load : 0;
}

/// Limit of this process's control group (version 2); 0 = none known.
Bytes memory_limit() {
  std::ifstream in("/sys/fs/cgroup/memory.max");
  double bytes = 0;
  return in >> bytes ? bytes : 0;
}

Json cpu_features() {
  Json out = Json::object();
#if defined(__x86_64__)
  __builtin_cpu_init();
  out["avx2"] = __builtin_cpu_supports("avx2") != 0;
  out["avx512f"] = __builtin_cpu_supports("avx512f") != 0;
  out["avx512_bf16"] = __builtin_cpu_supports("avx512bf16") != 0;
#endif
  const std::string flags = fmt::format(" {} ", proc_value("/proc/cpuinfo", "flags"));
  out["amx_bf16"] = flags.find(" amx_bf16 ") != std::string::npos;
  return out;
}

Json text_json() {
  const std::filesystem::path library = python_library();
  if (library.empty())
    return {{"found", false}, {"why", "no Python 3 standard library: name data.paths yourself"}};
  return {{"found", true}, {"path", library.string()}};
}

Json configs_json() {
  try {
    return {{"folder", configs_folder().string()},
            {"models", known_models().size()},
            {"clusters", known_clusters().size()},
            {"device_types", known_device_types().size()}};
  } catch (const Error& error) {
    return {{"folder", nullptr}, {"why", error.what()}};
  }
}

std::string gpu_driver() {
  std::ifstream in("/proc/driver/nvidia/version");
  std::string line;
  std::getline(in, line);
  return line;
}

/// One sentence for every GPU that libtorch has no code for, such as a V100 with a library for CUDA 13.
std::string gpus_without_code(const std::vector<GpuFacts>& gpus) {
  std::string out;
  for (const GpuFacts& gpu : gpus) {
    const std::string why = no_code_for(gpu, library_architectures());
    if (!why.empty()) out += "; " + why;
  }
  return out;
}

Json speed_json(c10::Device device) {
  constexpr Seconds kBudget = 0.05;
  try {
    const DeviceSpeed speed = measure_speed(device, kBudget);
    return {{"fp32_flops", speed.fp32},
            {"bf16_flops", speed.bf16},
            {"fp16_flops", speed.fp16},
            {"copy_bytes_per_s", speed.copy}};
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return {{"why", text.substr(0, text.find('\n'))}};
  }
}

/// What compiles kernels of our own for a GPU, or why libtorch's take their place.
std::string kernels_text(c10::Device device) {
  const std::string missing = kernels::kernels_missing(device);
  return missing.empty() ? "of our own, by " + kernels::nvrtc_description()
                         : "libtorch's alone, which are slower: " + missing;
}

Json gpus_json(const std::vector<GpuFacts>& gpus) {
  Json out = Json::array();
  for (const GpuFacts& gpu : gpus) {
    const std::string why = no_code_for(gpu, library_architectures());
    Json one = {{"device", gpu.id},
                {"name", gpu.name},
                {"compute_capability", capability_text(gpu.capability)},
                {"memory_bytes", gpu.memory},
                {"usable", why.empty()}};
    if (why.empty()) {
      one["speed"] = speed_json(c10::Device(gpu.id));
      one["kernels"] = kernels_text(c10::Device(gpu.id));
    } else {
      one["why"] = why;
    }
    out.push_back(std::move(one));
  }
  return out;
}

/// "1.2 TFLOP/s fp32, ..., copies at 3.0 TB/s".
std::string speed_text(const Json& speed) {
  if (speed.contains("why")) return "not measured: " + speed["why"].get<std::string>();
  const auto rate = [&](const char* key) {
    const double value = speed[key].get<double>();
    return value >= 1e12 ? fmt::format("{:.4g} TFLOP/s", value / 1e12)
                         : fmt::format("{:.4g} GFLOP/s", value / 1e9);
  };
  return fmt::format("products fp32 {}, bf16 {}, fp16 {}; copies {:.4g} GB/s read and written",
                     rate("fp32_flops"), rate("bf16_flops"), rate("fp16_flops"),
                     speed["copy_bytes_per_s"].get<double>() / 1e9);
}

/// Why a driver that is there shows no GPU.
std::string no_gpu_hint() {
  const std::string why = why_no_gpu();
  return why.empty() ? "" : "; " + why;
}

std::string describe_gpus(const std::string& driver, const std::vector<GpuFacts>& gpus) {
  if (driver.empty()) return "no NVIDIA driver here";
  if (!open_cuda().empty()) return fmt::format("{}, but CUDA cannot be used: {}", driver, open_cuda());
  return fmt::format("{} for this process; {}{}", gpus.size(), driver,
                     gpus.empty() ? no_gpu_hint() : gpus_without_code(gpus));
}

Json transports_json() {
  Json all = Json::array();
  for (const TransportKind& kind : transport_kinds())
    all.push_back({{"name", kind.name},
                   {"between", kind.between},
                   {"library", kind.library()},
                   {"one_launch_order", kind.attributes.one_launch_order},
                   {"hosts", kind.attributes.hosts},
                   {"several_devices", kind.attributes.several_devices}});
  return all;
}

Json examine() {
  const Bytes limit = memory_limit(), memory = proc_memory("MemTotal");
  const std::string driver = gpu_driver();
  const std::vector<GpuFacts> gpus = gpus_here();
  return {{"hetermoe", version()},
          {"compiler", __VERSION__},
          {"build_type", build_type()},
          {"torch", TORCH_VERSION},
          {"torch_cpu_capability", at::get_cpu_capability()},
          {"blas", at::hasMKL() ? "MKL" : "not MKL"},
          {"cpu", proc_value("/proc/cpuinfo", "model name")},
          {"cores", usable_cores()},
          {"load", machine_load()},
          {"cpu_features", cpu_features()},
          {"cpu_speed", speed_json({c10::DeviceType::CPU})},
          {"memory_bytes", limit > 0 ? std::min(limit, memory) : memory},
          {"memory_available_bytes", proc_memory("MemAvailable")},
          {"mpi", {{"available", mpi_is_available()}, {"description", mpi_description()}}},
          {"gpu",
           {{"available", !gpus.empty()},
            {"count", gpus.size()},
            {"description", describe_gpus(driver, gpus)},
            {"architectures", library_architectures()},
            {"devices", gpus_json(gpus)},
            {"hardware_queues", environment_variable("CUDA_DEVICE_MAX_CONNECTIONS")},
            {"nccl", nccl_description()}}},
          {"transports", transports_json()},
          {"text", text_json()},
          {"configs", configs_json()}};
}

void print_gpus(const Json& gpu, const std::function<void(const char*, const std::string&)>& line) {
  line("gpu", gpu["description"].get<std::string>());
  const auto architectures = gpu["architectures"].get<std::vector<int>>();
  if (!architectures.empty())
    line("", fmt::format("libtorch has code for compute capabilities {} (10 times each)",
                         fmt::join(architectures, ", ")));
  if (!gpu["devices"].empty())
    line("", fmt::format("{} hardware queues (CUDA_DEVICE_MAX_CONNECTIONS)",
                         gpu["hardware_queues"].get<std::string>()));
  for (const Json& one : gpu["devices"]) {
    line("", fmt::format("{}: {}, compute capability {}, {}", one["device"].get<std::string>(),
                         one["name"].get<std::string>(), one["compute_capability"].get<std::string>(),
                         format_bytes(one["memory_bytes"].get<double>())));
    if (one.contains("speed")) line("", speed_text(one["speed"]));
    if (one.contains("kernels")) line("", "kernels " + one["kernels"].get<std::string>());
  }
}

void print_found(const Json& found) {
  const auto line = [](const char* key, const std::string& value) {
    std::cout << fmt::format("{:<12}{}\n", key, value);
  };
  line("hetermoe", fmt::format("{} ({} build, compiler {})", found["hetermoe"].get<std::string>(),
                               found["build_type"].get<std::string>(), found["compiler"].get<std::string>()));
  line("torch",
       fmt::format("{}, kernels for {}, {}", found["torch"].get<std::string>(),
                   found["torch_cpu_capability"].get<std::string>(), found["blas"].get<std::string>()));
  std::string features;
  for (const auto& [name, has] : found["cpu_features"].items())
    features += fmt::format(" {}{}", has.get<bool>() ? "" : "no ", name);
  line("cpu", fmt::format("{}, {} usable cores:{}", found["cpu"].get<std::string>(),
                          found["cores"].get<i64>(), features));
  line("", speed_text(found["cpu_speed"]));
  if (const auto load = found["load"].get<double>(); load > kBusy * found["cores"].get<double>())
    line("", fmt::format("other programs were running (load {:.1f}): alone these rates are higher", load));
  line("memory", fmt::format("{}, {} of it available", format_bytes(found["memory_bytes"].get<double>()),
                             format_bytes(found["memory_available_bytes"].get<double>())));
  for (const Json& kind : found["transports"])
    line(kind == found["transports"][0] ? "transports" : "",
         fmt::format("{}: {} ({})", kind["name"].get<std::string>(), kind["between"].get<std::string>(),
                     kind["library"].get<std::string>()));
  print_gpus(found["gpu"], line);
  const Json& text = found["text"];
  line("text", text[text["found"].get<bool>() ? "path" : "why"].get<std::string>());
  const Json& configs = found["configs"];
  line("configs", configs["folder"].is_null()
                      ? configs["why"].get<std::string>()
                      : fmt::format("{}: {}, {}, {}", configs["folder"].get<std::string>(),
                                    counted(configs["models"].get<i64>(), "model"),
                                    counted(configs["clusters"].get<i64>(), "cluster"),
                                    counted(configs["device_types"].get<i64>(), "device type")));
}

struct DoctorArguments {
  std::string cluster;
  std::string device = "cpu";
  double limit = PreflightOptions().limit;
  bool json = false;
};

/// `text` names a cluster, or a job that does.
Cluster cluster_of(const std::string& text) {
  if (std::filesystem::is_regular_file(text) && !is_hostfile(text)) {
    const Json yaml = read_yaml(text);
    if (yaml.is_object() && !yaml.contains("nodes")) return load_cluster(load_job(text, {}).cluster);
  }
  return load_cluster(text);
}

Json to_json(const PairTimes& pair, const std::vector<std::string>& names, const PreflightOptions& options) {
  const char* const states[] = {"good", "slow", "dead"};
  Json json = {{"a", names[static_cast<std::size_t>(pair.a)]},
               {"b", names[static_cast<std::size_t>(pair.b)]},
               {"link", pair.link},
               {"sizes_bytes", options.sizes},
               {"seconds", pair.seconds},
               {"state", states[static_cast<int>(pair.state)]}};
  if (!pair.seconds.empty()) json["latency_s"] = pair.seconds.front();
  if (pair.has_bandwidth())
    json["bytes_per_s"] = static_cast<double>(options.sizes.back()) / pair.seconds.back();
  return json;
}

/// Every pair of the cluster's devices, as threads of this process.
MeasuredPairs measure_threads(const Processes& processes, const Cluster& cluster,
                              const PreflightOptions& options) {
  MeasuredPairs out;
  for (DeviceId d = 0; d < cluster.num_devices(); ++d)
    out.names.push_back(fmt::format("device {} ({})", d, cluster.device_name(d)));
  const std::unique_ptr<Transport> transport = make_in_process_transport(cluster.num_devices());
  out.pairs = measure_pairs(processes, *transport, std::vector<i32>(out.names.size(), 0), options);
  return out;
}

/// Every pair of processes, or of devices where there is one process.
int preflight(const DoctorArguments& options, const Processes& processes) {
  const Cluster cluster = cluster_of(options.cluster);
  check_alike(processes, fmt::format("{} {}", version(), to_json(cluster).dump()),
              "All ranks need the same program and cluster.");
  PreflightOptions how;
  how.limit = options.limit;
  how.device = find_device_in_turn(options.device, processes.local_rank(), "--device");
  const auto [pairs, names] = processes.alone()
                                  ? measure_threads(processes, cluster, how)
                                  : measure_processes(processes, pair_transport(processes, how.device), how);
  const std::vector<std::string> complaints = pair_complaints(pairs, names, how);
  const int code = any_dead(pairs) ? 1 : 0;
  if (processes.rank() > 0) return code;
  if (options.json) {
    Json rows = Json::array();
    for (const PairTimes& pair : pairs) rows.push_back(to_json(pair, names, how));
    print_json({{"processes", processes.num_ranks()}, {"pairs", rows}, {"complaints", complaints}});
  } else {
    std::cout << pair_table(pairs, names, how);
    for (const std::string& complaint : complaints) std::cout << complaint << "\n";
    if (complaints.empty())
      std::cout << fmt::format("{}, none slow or dead\n", counted(pairs.size(), "pair"));
  }
  return code;
}

/// With several processes an error of one ends all, as in `train`.
int preflight(const DoctorArguments& options) {
  const std::unique_ptr<Processes> processes =
      join_processes(options.device == "cpu" ? RunsOn::kCpu : RunsOn::kGpu);
  int code = 1;
  try {
    code = preflight(options, *processes);
  } catch (const std::exception& error) {
    if (processes->alone()) throw;
    end_run(*processes, error, exit_code_of(error));
  }
  return code;
}

}  // namespace

std::function<int()> make_doctor(Flags& flags) {
  const auto options = std::make_shared<DoctorArguments>();
  flags.add_option(
      "--cluster", options->cluster,
      "a cluster, or a job that names one: exchange messages between every pair of its devices, or of "
      "the processes that mpirun or torchrun started, and name slow and dead pairs");
  flags
      .add_option("--device", options->device,
                  "of the processes: cpu, which talk over MPI, or cuda, which talk over NCCL")
      ->capture_default_str();
  flags.add_option("--limit", options->limit, "seconds after which a pair is dead")
      ->capture_default_str()
      ->range(between(0.001, 1e6));
  flags.add_flag("--json", options->json, "print JSON");
  return [options] {
    if (options->device != "cpu" && options->device != "cuda")
      fail<ConfigError>("--device", "got \"{}\", expected cpu or cuda", options->device);
    if (!options->cluster.empty()) return preflight(*options);
    const Json found = examine();
    if (options->json)
      print_json(found);
    else
      print_found(found);
    return found["configs"]["folder"].is_null() ? 1 : 0;
  };
}

}  // namespace hetermoe
