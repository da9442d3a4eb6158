#include "hetermoe/data/parallel_encode.h"

#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

namespace hetermoe {

void on_all_cores(std::size_t count, const std::function<void(std::size_t)>& run) {
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        run(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    const std::size_t most = std::min<std::size_t>(count, std::thread::hardware_concurrency());
    for (std::size_t t = 1; t < most; ++t) threads.emplace_back(work);
    work();
  }
  if (error) std::rethrow_exception(error);
}

std::vector<std::vector<i64>> encode_each(const Tokenizer& tokenizer, std::span<const std::string> texts) {
  std::vector<std::vector<i64>> out(texts.size());
  on_all_cores(texts.size(), [&](std::size_t i) { out[i] = tokenizer.encode(texts[i]); });
  return out;
}

}  // namespace hetermoe
