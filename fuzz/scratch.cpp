#include "fuzz/scratch.h"

#include <sys/mman.h>
#include <unistd.h>

#include <stdexcept>

namespace hetermoe::fuzz {
namespace fs = std::filesystem;

ScratchFile::ScratchFile()
    : file_(::memfd_create("input", MFD_CLOEXEC)), path_("/proc/self/fd/" + std::to_string(file_)) {
  if (file_ < 0) throw std::runtime_error("no memory for a file");
}

ScratchFile::~ScratchFile() { ::close(file_); }

void ScratchFile::write(const std::string& bytes) {
  const auto size = static_cast<ssize_t>(bytes.size());
  if (::ftruncate(file_, 0) != 0 || ::pwrite(file_, bytes.data(), bytes.size(), 0) != size)
    throw std::runtime_error("no memory for the bytes of a file");
}

ScratchFolder::ScratchFolder() {
  const fs::path memory = "/dev/shm";
  const fs::path root = ::access(memory.c_str(), W_OK) == 0 ? memory : fs::temp_directory_path();
  path_ = root / ("hetermoe-fuzz-" + std::to_string(::getpid()));
  fs::create_directories(path_);
}

ScratchFolder::~ScratchFolder() {
  std::error_code code;
  fs::remove_all(path_, code);
}

}  // namespace hetermoe::fuzz
