#include "hetermoe/kernels/nvrtc.h"

#include <ATen/ATen.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/kernels/table.h"

namespace hetermoe::kernels {
namespace {

namespace fs = std::filesystem;

using NvrtcResult = int;  // 0 = success
using Program = void*;
constexpr const char* kFlags[] = {"--std=c++17"};

/// Where the torch wheel and the wheels beside it keep the library, then a toolkit, then wherever the loader
/// looks.
std::vector<std::string> candidates() {
  const std::vector<std::string> names = {"libnvrtc.so.13", "libnvrtc.so.12"};
  std::vector<fs::path> folders;
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&at::globalContext), &info) != 0) {
    const fs::path torch = fs::path(info.dli_fname).parent_path();
    folders.push_back(torch);
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(torch / "../../nvidia", none))
      folders.push_back(entry.path() / "lib");
  }
  folders.push_back("/usr/local/cuda/lib64");
  std::vector<std::string> out;
  for (const std::string& name : names) {
    for (const fs::path& folder : folders) {
      std::error_code none;
      if (fs::exists(folder / name, none)) out.push_back((folder / name).string());
    }
  }
  out.insert(out.end(), names.begin(), names.end());
  return out;
}

/// The library's functions, opened once and never closed.
class Library {
 public:
  Library() {
    const char* const asked = std::getenv("HETERMOE_NVRTC");
    if (asked != nullptr && std::string(asked) == "off") {
      missing = "kernels of our own are switched off (HETERMOE_NVRTC=off): libtorch's are used";
      return;
    }
    const std::vector<std::string> names = asked != nullptr ? std::vector<std::string>{asked} : candidates();
    for (std::size_t i = 0; i < names.size() && handle_ == nullptr; ++i)
      handle_ = dlopen(names[i].c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) {
      missing = fmt::format(
          "no NVRTC here ({}): GPUs use libtorch's kernels, which are slower; `pip install "
          "nvidia-cuda-nvrtc` beside torch, or HETERMOE_NVRTC=PATH, helps",
          asked != nullptr ? fmt::format("cannot open HETERMOE_NVRTC={}", asked)
                           : "no libnvrtc.so.13 or .12 beside torch or where the loader looks");
      return;
    }
    find(create, "nvrtcCreateProgram"), find(compile, "nvrtcCompileProgram");
    find(destroy, "nvrtcDestroyProgram"), find(get_version, "nvrtcVersion");
    find(log_size, "nvrtcGetProgramLogSize"), find(get_log, "nvrtcGetProgramLog");
    find(cubin_size, "nvrtcGetCUBINSize"), find(get_cubin, "nvrtcGetCUBIN");
    find(ptx_size, "nvrtcGetPTXSize"), find(get_ptx, "nvrtcGetPTX");
    find(error_text, "nvrtcGetErrorString");
    find(num_architectures, "nvrtcGetNumSupportedArchs"), find(get_architectures, "nvrtcGetSupportedArchs");
    if (missing.empty() && get_version(&major, &minor) != 0) missing = "NVRTC does not say its version";
    if (missing.empty()) ask_architectures();
  }

  std::string path() const {
    Dl_info info{};
    return dladdr(reinterpret_cast<const void*>(get_version), &info) != 0 ? info.dli_fname : "libnvrtc";
  }

  std::string missing;
  int major = 0, minor = 0;
  std::vector<int> architectures;
  NvrtcResult (*create)(Program* program, const char* text, const char* name, int num_headers,
                        const char* const* headers, const char* const* names) = nullptr;
  NvrtcResult (*compile)(Program program, int num_options, const char* const* options) = nullptr;
  NvrtcResult (*destroy)(Program* program) = nullptr;
  NvrtcResult (*get_version)(int* major, int* minor) = nullptr;
  NvrtcResult (*log_size)(Program program, std::size_t* size) = nullptr;
  NvrtcResult (*get_log)(Program program, char* text) = nullptr;
  NvrtcResult (*cubin_size)(Program program, std::size_t* size) = nullptr;
  NvrtcResult (*get_cubin)(Program program, char* code) = nullptr;
  NvrtcResult (*ptx_size)(Program program, std::size_t* size) = nullptr;
  NvrtcResult (*get_ptx)(Program program, char* code) = nullptr;
  const char* (*error_text)(NvrtcResult result) = nullptr;
  NvrtcResult (*num_architectures)(int* count) = nullptr;
  NvrtcResult (*get_architectures)(int* architectures) = nullptr;

 private:
  template <class Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(handle_, name));
    if (function == nullptr && missing.empty())
      missing = fmt::format("the NVRTC here is too old: it has no {}; GPUs use libtorch's kernels", name);
  }
  void ask_architectures() {
    int count = 0;
    if (num_architectures(&count) != 0 || count <= 0) return;
    architectures.resize(idx(count));
    if (get_architectures(architectures.data()) != 0) architectures.clear();
  }

  void* handle_ = nullptr;
};

const Library& library() {
  static const Library opened;
  return opened;
}

/// A program that is destroyed at the end.
struct OwnedProgram {
  Program program = nullptr;
  ~OwnedProgram() {
    if (program != nullptr) library().destroy(&program);
  }
};

std::string text_of(Program program, NvrtcResult (*size_of)(Program, std::size_t*),
                    NvrtcResult (*get)(Program, char*)) {
  std::size_t size = 0;
  if (size_of(program, &size) != 0) return "";
  std::string out(size, '\0');
  return size > 0 && get(program, out.data()) == 0 ? out : "";
}

}  // namespace

const std::string& nvrtc_missing() { return library().missing; }

std::string nvrtc_description() {
  const Library& nvrtc = library();
  return nvrtc.missing.empty() ? fmt::format("NVRTC {}.{} ({})", nvrtc.major, nvrtc.minor, nvrtc.path())
                               : nvrtc.missing;
}

std::string compiler_identity() {
  return fmt::format("NVRTC {}.{} {}", library().major, library().minor, fmt::join(kFlags, " "));
}

std::string CodeTarget::option() const {
  return fmt::format("--gpu-architecture={}_{}", by_driver ? "compute" : "sm", architecture);
}

CodeTarget code_target(int capability, const std::vector<int>& known) {
  constexpr int kOldest = 70;  // arguments of our kernels are __grid_constant__
  CodeTarget out;
  for (const int one : known) {
    if (kOldest <= one && one <= capability) out.architecture = std::max(out.architecture, one);
  }
  // Machine code runs within its major version; the driver compiles PTX for any later one.
  out.by_driver = out.architecture / 10 != capability / 10;
  return out;
}

CodeTarget code_target(int capability) { return code_target(capability, library().architectures); }

Compiled compile_cuda(const std::string& program, const CodeTarget& target,
                      const std::vector<std::string>& more_options) {
  const Library& nvrtc = library();
  HM_CHECK(nvrtc.missing.empty(), "{}", nvrtc.missing);
  std::vector<const char*> names, texts;
  for (const SourceText& source : source_texts()) {
    names.push_back(source.name);
    texts.push_back(source.text);
  }
  const std::string architecture = target.option();
  std::vector<const char*> options(std::begin(kFlags), std::end(kFlags));
  options.push_back(architecture.c_str());
  for (const std::string& option : more_options) options.push_back(option.c_str());
  OwnedProgram owned;
  NvrtcResult result = nvrtc.create(&owned.program, program.c_str(), "kernel.cu",
                                    static_cast<int>(names.size()), texts.data(), names.data());
  HM_CHECK(result == 0, "nvrtcCreateProgram: {}", nvrtc.error_text(result));
  result = nvrtc.compile(owned.program, static_cast<int>(options.size()), options.data());
  Compiled out;
  out.log = text_of(owned.program, nvrtc.log_size, nvrtc.get_log);
  HM_CHECK(result == 0, "{} cannot compile for {}: {}\n{}", nvrtc_description(), architecture,
           nvrtc.error_text(result), out.log);
  out.code = target.by_driver ? text_of(owned.program, nvrtc.ptx_size, nvrtc.get_ptx)
                              : text_of(owned.program, nvrtc.cubin_size, nvrtc.get_cubin);
  return out;
}

}  // namespace hetermoe::kernels
