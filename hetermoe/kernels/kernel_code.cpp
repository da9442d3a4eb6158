#include "hetermoe/kernels/kernel_code.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <thread>

#include "hetermoe/base/hash.h"
#include "hetermoe/base/index.h"
#include "hetermoe/kernels/cuda_driver.h"
#include "hetermoe/kernels/made_once.h"
#include "hetermoe/kernels/nvrtc.h"

namespace hetermoe::kernels {
namespace {

u64 hash_of_sources() {
  Fnv hash;
  for (const SourceText& source : source_texts()) hash.add(source.name).add(source.text);
  return hash.value();
}

CachedCode find_or_compile(const Kernel& kernel, int capability) {
  static const u64 sources = hash_of_sources();
  const CodeTarget target = code_target(capability);
  const std::array<const Kernel*, 1> one = {&kernel};
  const std::string program = cuda_program(one);
  const std::string identity = fmt::format("{} {} driver {} sources {:016x}\n{}", compiler_identity(),
                                           target.option(), cuda_driver_version(), sources, program);
  return cached_code(code_cache_folder(), identity, [&] { return compile_cuda(program, target).code; });
}

std::vector<const Kernel*> kernels_of(std::span<const at::ScalarType> elements) {
  std::vector<const Kernel*> out;
  for (const Kernel& kernel : all_kernels()) {
    const bool all_known = std::all_of(kernel.types.begin(), kernel.types.end(), [&](at::ScalarType type) {
      return std::find(elements.begin(), elements.end(), type) != elements.end();
    });
    if (all_known) out.push_back(&kernel);
  }
  return out;
}

}  // namespace

CachedCode kernel_code(const Kernel& kernel, int capability) {
  static MadeOnce<std::pair<const Kernel*, int>, CachedCode> codes;
  return codes.get({&kernel, capability}, [&] { return find_or_compile(kernel, capability); });
}

i64 compile_ahead(int capability, std::span<const at::ScalarType> elements, i64 num_threads) {
  const std::vector<const Kernel*> wanted = kernels_of(elements);
  std::atomic<std::size_t> next = 0;
  std::vector<std::exception_ptr> faults(wanted.size());
  std::vector<std::jthread> threads;
  for (i64 t = 0; t < num_threads; ++t)
    threads.emplace_back([&] {
      for (std::size_t k = next++; k < wanted.size(); k = next++) {
        try {
          kernel_code(*wanted[k], capability);
        } catch (...) {
          faults[k] = std::current_exception();
        }
      }
    });
  threads.clear();
  for (const std::exception_ptr& fault : faults) {
    if (fault) std::rethrow_exception(fault);
  }
  return static_cast<i64>(wanted.size());
}

}  // namespace hetermoe::kernels
