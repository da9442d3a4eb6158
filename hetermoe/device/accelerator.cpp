#include "hetermoe/device/accelerator.h"

#include <ATen/ATen.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <torch/version.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "hetermoe/base/error.h"

namespace hetermoe {
namespace {

/// The CUDA library lies beside the one that this program is linked to.
std::filesystem::path cuda_library() {
  Dl_info info{};
  const bool found = dladdr(reinterpret_cast<const void*>(&at::globalContext), &info) != 0;
  const std::filesystem::path cpu = found ? info.dli_fname : "";
  return cpu.parent_path() / "libtorch_cuda.so";
}

/// Streams of a GPU share its hardware queues, 8 unless told otherwise. A wait at the head of a queue holds
/// the other streams in it, and a run has a stream for each of its lanes. CUDA reads this when it starts.
void ask_for_hardware_queues() { ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0); }

/// Nothing may ask libtorch about CUDA before: it remembers the answer.
std::string try_to_open_cuda() {
  ask_for_hardware_queues();
  const std::filesystem::path library = cuda_library();
  const bool exists = std::filesystem::exists(library);
  if (exists && dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr)
    return at::globalContext().hasCUDART() ? "" : fmt::format("{} was opened too late", library.string());
  const std::string why = exists ? dlerror() : fmt::format("{} is not there", library.string());
  // Without a GPU other libraries are missing as well, and to name them would send the reader the wrong way.
  if (dlopen("libcuda.so.1", RTLD_LAZY) == nullptr) return "no NVIDIA driver here (no libcuda.so.1)";
  return fmt::format("{}. What it needs comes with `pip install torch=={}`, without --no-deps", why,
                     TORCH_VERSION);
}

/// What a function `int f(int* version)` of CUDA says, 13000 for 13.0; 0 = there is none, or it failed.
int version_by(const char* function) {
  using GetVersion = int(int* version);
  auto* const get = reinterpret_cast<GetVersion*>(dlsym(RTLD_DEFAULT, function));
  int version = 0;
  return get != nullptr && get(&version) == 0 ? version : 0;
}

int runtime_version() { return version_by("cudaRuntimeGetVersion"); }
int driver_version() { return version_by("cudaDriverGetVersion"); }

c10::impl::VirtualGuardImpl guard_of(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

}  // namespace

const std::string& open_cuda() {
  static const std::string why_not = try_to_open_cuda();
  return why_not;
}

int num_cuda_devices() {
  return open_cuda().empty() ? c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).deviceCount() : 0;
}

std::string why_no_gpu() {
  return open_cuda().empty() ? driver_too_old(driver_version(), runtime_version()) : "";
}

c10::Device find_device(const std::string& name, const std::string& where) {
  std::optional<c10::Device> device;
  try {
    device = c10::Device(name);
  } catch (const c10::Error&) {
  }
  if (!device || (!device->is_cpu() && !device->is_cuda()))
    fail<ConfigError>(where, "no such device: got \"{}\", expected cpu, cuda or cuda:N", name);
  if (device->is_cpu()) return *device;
  if (!open_cuda().empty())
    fail<ConfigError>(where, "got \"{}\", but CUDA cannot be used: {}", name, open_cuda());
  const int count = num_cuda_devices();
  const c10::DeviceIndex index = device->has_index() ? device->index() : c10::DeviceIndex{0};
  if (count == 0 && !why_no_gpu().empty()) fail<ConfigError>(where, "got \"{}\", but {}", name, why_no_gpu());
  if (index >= count)
    fail<ConfigError>(where, "got \"{}\", but this process sees {} GPU{}", name, count,
                      count == 1 ? "" : "s");
  use_wide_gpu_sums();
  return {c10::DeviceType::CUDA, index};
}

c10::Device find_device_in_turn(const std::string& name, i64 n, const std::string& where) {
  c10::Device device = find_device(name, where);
  if (name == "cuda") device.set_index(static_cast<c10::DeviceIndex>(n % num_cuda_devices()));
  return device;
}

int compute_capability(c10::Device device) {
  if (!device.is_cuda() || !open_cuda().empty()) return 0;
  // Of CUDA's runtime, which came with libtorch's CUDA library.
  using GetAttribute = int(int* value, int attribute, int gpu);
  static auto* const get_attribute =
      reinterpret_cast<GetAttribute*>(dlsym(RTLD_DEFAULT, "cudaDeviceGetAttribute"));
  constexpr int kMajor = 75, kMinor = 76;  // cudaDevAttrComputeCapabilityMajor and -Minor
  int major = 0, minor = 0;
  if (get_attribute == nullptr || get_attribute(&major, kMajor, device.index()) != 0 ||
      get_attribute(&minor, kMinor, device.index()) != 0)
    return 0;
  return 10 * major + minor;
}

std::vector<int> library_architectures() {
  return open_cuda().empty() ? wheel_architectures(runtime_version()) : std::vector<int>{};
}

void use_wide_gpu_sums() {
  at::Context& context = at::globalContext();
  context.setAllowFP16ReductionCuBLAS(false);
  context.setAllowBF16ReductionCuBLAS(false);
}

void configure_gpus(const GpuSettings& settings) {
  use_wide_gpu_sums();
  at::Context& context = at::globalContext();
  context.setAllowTF32CuBLAS(settings.tf32);
  // Without a fused kernel attention would keep all scores: rather an error that names the shape.
  context.setSDPUseMath(settings.fp64);
  // cuBLAS repeats itself only with a workspace of its own, which it takes from here.
  if (settings.deterministic) ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  context.setDeterministicAlgorithms(settings.deterministic, /*warn_only=*/false);
  // Nothing here reads what nobody wrote.
  context.setDeterministicFillUninitializedMemory(false);
  c10::CachingAllocator::setAllocatorSettings(settings.expandable_segments ? "expandable_segments:True"
                                                                           : "expandable_segments:False");
}

Bytes gpu_peak(c10::Device device) {
  if (!device.is_cuda() || !c10::GetAllocator(device.type())) return 0;
  constexpr std::size_t kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return static_cast<Bytes>(
      c10::getDeviceAllocator(device.type())->getDeviceStats(device.index()).allocated_bytes[kAll].peak);
}

void restart_gpu_peak(c10::Device device) {
  if (device.is_cuda()) c10::getDeviceAllocator(device.type())->resetPeakStats(device.index());
}

GpuFacts gpu_facts(c10::Device device) {
  return {device.str(), gpu_name(device), compute_capability(device), gpu_memory(device)};
}

std::vector<GpuFacts> gpus_here() {
  std::vector<GpuFacts> gpus;
  for (int gpu = 0; gpu < num_cuda_devices(); ++gpu)
    gpus.push_back(gpu_facts({c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(gpu)}));
  return gpus;
}

std::string gpu_name(c10::Device device) {
  if (device.is_cpu()) return "CPU";
  // The first member of cudaDeviceProp, whose size grows from version to version.
  using GetProperties = int(void* properties, int gpu);
  static auto* const get_properties = [] {
    void* const newer = dlsym(RTLD_DEFAULT, "cudaGetDeviceProperties_v2");
    return reinterpret_cast<GetProperties*>(newer ? newer : dlsym(RTLD_DEFAULT, "cudaGetDeviceProperties"));
  }();
  constexpr std::size_t kNameSize = 256, kRoom = 16384;
  std::array<char, kRoom> properties{};
  if (get_properties == nullptr || get_properties(properties.data(), device.index()) != 0) return "";
  return {properties.data(), ::strnlen(properties.data(), kNameSize)};
}

namespace {

/// As the driver says it.
struct DriverMemory {
  Bytes total = 0, free = 0;
};

DriverMemory driver_memory(c10::Device device) {
  if (!device.is_cuda() || !open_cuda().empty()) return {};
  using GetMemory = int(std::size_t * free, std::size_t * total);
  static auto* const get_memory = reinterpret_cast<GetMemory*>(dlsym(RTLD_DEFAULT, "cudaMemGetInfo"));
  const c10::impl::VirtualGuardImpl guard = guard_of(device);
  const c10::Device before = guard.exchangeDevice(device);
  std::size_t free = 0, total = 0;
  const bool known = get_memory != nullptr && get_memory(&free, &total) == 0;
  guard.setDevice(before);
  return known ? DriverMemory{static_cast<Bytes>(total), static_cast<Bytes>(free)} : DriverMemory{};
}

}  // namespace

Bytes gpu_memory(c10::Device device) { return driver_memory(device).total; }

Bytes free_gpu_memory(c10::Device device) {
  const Bytes of_driver = driver_memory(device).free;
  if (of_driver == 0 || !c10::GetAllocator(device.type())) return of_driver;
  constexpr std::size_t kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  return of_driver +
         static_cast<Bytes>(stats.reserved_bytes[kAll].current - stats.allocated_bytes[kAll].current);
}

void* stream_handle(c10::Device device) {
  return device.is_cpu() ? nullptr : guard_of(device).getStream(device).native_handle();
}

bool stream_has_ended(c10::Device device) {
  return device.is_cpu() || guard_of(device).getStream(device).query();
}

void finish_stream(c10::Device device) {
  if (!device.is_cpu()) guard_of(device).getStream(device).synchronize();
}

OwnStream::OwnStream(c10::Device device, bool comes_first) : device_before_(device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard = guard_of(device);
  device_before_ = guard.exchangeDevice(device);
  own_ = guard.getStreamFromGlobalPool(device, comes_first);
  before_ = guard.exchangeStream(*own_);
}

OwnStream::~OwnStream() {
  if (!own_) return;
  const c10::impl::VirtualGuardImpl guard = guard_of(own_->device());
  guard.exchangeStream(*before_);
  guard.uncheckedSetDevice(device_before_);
}

}  // namespace hetermoe
