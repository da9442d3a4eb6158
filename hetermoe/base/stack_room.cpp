#include "hetermoe/base/stack_room.h"

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <thread>

namespace hetermoe {
namespace {

constexpr rlim_t kUsual = 8 << 20;  // bytes

/// The C library gives threads what the soft limit was when the process began.
void give_threads_room() {
  pthread_attr_t attributes;
  if (pthread_getattr_default_np(&attributes) != 0) return;
  std::size_t bytes = 0;
  pthread_attr_getstacksize(&attributes, &bytes);
  if (bytes < kUsual && pthread_attr_setstacksize(&attributes, kUsual) == 0)
    pthread_setattr_default_np(&attributes);
  pthread_attr_destroy(&attributes);
}

/// Whether the main thread has room, or has it now.
bool main_thread_has_room() {
  rlimit limit{};
  if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= kUsual) return true;
  limit.rlim_cur = std::min(kUsual, limit.rlim_max);
  return setrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur == kUsual;
}

}  // namespace

int with_stack_room(const std::function<int()>& program) {
  give_threads_room();
  if (main_thread_has_room()) return program();
  int code = 0;
  std::thread([&] { code = program(); }).join();
  return code;
}

}  // namespace hetermoe
