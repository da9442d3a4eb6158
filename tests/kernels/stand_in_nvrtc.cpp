#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

// A library with the functions of NVRTC, whose machine code is the program itself. Each compilation lasts
// until two run at once, or a second.
namespace {

std::atomic<int> running = 0, most_at_once = 0, num_compiled = 0;

struct Program {
  std::string text;
};

int size_of(void* program, std::size_t* size) {
  *size = static_cast<Program*>(program)->text.size();
  return 0;
}
int copy_of(void* program, char* out) {
  const std::string& text = static_cast<Program*>(program)->text;
  std::memcpy(out, text.data(), text.size());
  return 0;
}

}  // namespace

extern "C" {

int nvrtcCreateProgram(void** program, const char* text, const char*, int, const char* const*,
                       const char* const*) {
  *program = new Program{text};
  return 0;
}
int nvrtcCompileProgram(void*, int, const char* const*) {
  const int now = ++running;
  for (int most = most_at_once; most < now && !most_at_once.compare_exchange_weak(most, now);) {
  }
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (most_at_once < 2 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  ++num_compiled;
  --running;
  return 0;
}
int nvrtcDestroyProgram(void** program) {
  delete static_cast<Program*>(*program);
  return 0;
}
int nvrtcVersion(int* major, int* minor) {
  *major = 13, *minor = 0;
  return 0;
}
int nvrtcGetProgramLogSize(void*, std::size_t* size) {
  *size = 0;
  return 0;
}
int nvrtcGetProgramLog(void*, char*) { return 0; }
int nvrtcGetCUBINSize(void* program, std::size_t* size) { return size_of(program, size); }
int nvrtcGetCUBIN(void* program, char* out) { return copy_of(program, out); }
int nvrtcGetPTXSize(void* program, std::size_t* size) { return size_of(program, size); }
int nvrtcGetPTX(void* program, char* out) { return copy_of(program, out); }
const char* nvrtcGetErrorString(int) { return "no error"; }
int nvrtcGetNumSupportedArchs(int* count) {
  *count = 2;
  return 0;
}
int nvrtcGetSupportedArchs(int* architectures) {
  architectures[0] = 75, architectures[1] = 90;
  return 0;
}

/// For tests.
int stand_in_most_at_once() { return most_at_once; }
int stand_in_num_compiled() { return num_compiled; }

}  // extern "C"
