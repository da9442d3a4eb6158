#include "hetermoe/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "hetermoe/base/error.h"

namespace hetermoe {

MappedFile::MappedFile(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail<IoError>("data.paths", "cannot read {}: {}", path.string(), std::strerror(errno));
  struct stat info {};
  const bool is_file = ::fstat(file, &info) == 0 && S_ISREG(info.st_mode);
  size_ = is_file ? static_cast<std::size_t>(info.st_size) : 0;
  if (size_ > 0) start_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
  const int code = errno;
  ::close(file);
  if (!is_file) fail<IoError>("data.paths", "cannot read {}: it is no regular file", path.string());
  if (start_ == MAP_FAILED)
    fail<IoError>("data.paths", "cannot read {}: {}", path.string(), std::strerror(code));
}

MappedFile::~MappedFile() {
  if (start_ != nullptr) ::munmap(start_, size_);
}

}  // namespace hetermoe
