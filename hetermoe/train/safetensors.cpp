#include "hetermoe/train/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "hetermoe/base/checksum.h"
#include "hetermoe/base/json.h"

namespace hetermoe {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian");

constexpr std::array<std::pair<at::ScalarType, const char*>, 5> kDtypes = {{{at::kDouble, "F64"},
                                                                            {at::kFloat, "F32"},
                                                                            {at::kBFloat16, "BF16"},
                                                                            {at::kHalf, "F16"},
                                                                            {at::kLong, "I64"}}};
/// Longer headers are refused, as the format's own library does.
constexpr i64 kMaxHeader = 100 << 20;

const char* dtype_text(at::ScalarType dtype) {
  for (const auto& [type, text] : kDtypes) {
    if (type == dtype) return text;
  }
  HM_CHECK(false, "no safetensors dtype for {}", static_cast<int>(dtype));
}

[[noreturn]] void fail_io(const std::filesystem::path& path, const char* what) {
  fail<IoError>(path.string(), "cannot {}: {}", what, std::strerror(errno));
}

/// A new file; removed again unless it was finished.
class NewFile {
 public:
  explicit NewFile(const std::filesystem::path& path)
      : path_(path), file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
    if (file_ < 0) fail_io(path_, "create file");
  }
  ~NewFile() {
    if (file_ < 0) return;
    ::close(file_);
    ::unlink(path_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(const void* data, std::size_t size) {
    const char* at = static_cast<const char*>(data);
    while (size > 0) {
      const ssize_t done = ::write(file_, at, size);
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) fail_io(path_, "write");
      at += done;
      size -= static_cast<std::size_t>(done);
    }
  }
  void finish() {
    if (::fsync(file_) != 0) fail_io(path_, "write");
    if (::close(std::exchange(file_, -1)) != 0) {
      ::unlink(path_.c_str());
      fail_io(path_, "write");
    }
  }

 private:
  std::filesystem::path path_;
  int file_;
};

}  // namespace

void sync_to_disk(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail_io(path, "open");
  const int code = ::fsync(file);
  ::close(file);
  if (code != 0) fail_io(path, "write");
}

void write_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors) {
  Json header = {{"__metadata__", {{"format", "pt"}}}};
  i64 end = 0;
  std::vector<at::Tensor> whole;
  for (const NamedTensor& named : tensors) {
    const at::Tensor& tensor = whole.emplace_back(named.tensor.contiguous());
    const i64 begin = std::exchange(end, end + static_cast<i64>(tensor.nbytes()));
    header[named.name] = {{"dtype", dtype_text(tensor.scalar_type())},
                          {"shape", tensor.sizes().vec()},
                          {"data_offsets", {begin, end}}};
    header["__metadata__"]["checksum " + named.name] =
        fmt::format("{:016x}", checksum(tensor.const_data_ptr(), tensor.nbytes()));
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the tensors begin at a multiple of 8
  const u64 length = text.size();
  NewFile file(path);
  file.write(&length, sizeof length);
  file.write(text.data(), text.size());
  for (const at::Tensor& tensor : whole) file.write(tensor.const_data_ptr(), tensor.nbytes());
  file.finish();
}

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path)
    : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (file_ < 0) fail_io(path_, "open");
  try {
    read_header();
  } catch (...) {
    ::close(file_);
    throw;
  }
}

SafetensorsReader::~SafetensorsReader() { ::close(file_); }

void SafetensorsReader::read_bytes(void* out, i64 begin, i64 size) const {
  char* at = static_cast<char*>(out);
  while (size > 0) {
    const ssize_t done = ::pread(file_, at, static_cast<std::size_t>(size), begin);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail_io(path_, "read");
    if (done == 0) fail<IoError>(path_.string(), "the file is cut: it ends at byte {}", begin);
    at += done;
    begin += done;
    size -= done;
  }
}

void SafetensorsReader::read_header() {
  struct stat info {};
  if (::fstat(file_, &info) != 0) fail_io(path_, "read");
  size_ = info.st_size;
  i64 length = 0;
  read_bytes(&length, 0, 8);
  if (length < 2 || length > std::min(kMaxHeader, size_ - 8)) {
    fail<IoError>(path_.string(), "no safetensors file: got a header of {} bytes in a file of {}", length,
                  size_);
  }
  data_begin_ = 8 + length;
  std::string text(static_cast<std::size_t>(length), '\0');
  read_bytes(text.data(), 8, length);
  try {
    const Json header = parse_json(text, path_.string());
    const Json none = Json::object();
    const Json& metadata = header.contains("__metadata__") ? header.at("__metadata__") : none;
    for (const auto& [name, json] : header.items()) {
      if (name == "__metadata__") continue;
      const std::string dtype = json.at("dtype");
      const auto known =
          std::find_if(kDtypes.begin(), kDtypes.end(), [&](const auto& d) { return d.second == dtype; });
      if (known == kDtypes.end()) fail<IoError>(path_.string(), "{}: unknown dtype {}", name, dtype);
      Entry entry{known->first, json.at("shape"), json.at("data_offsets").at(0),
                  json.at("data_offsets").at(1), metadata.value("checksum " + name, "")};
      i64 bytes = static_cast<i64>(c10::elementSize(entry.dtype));
      for (const i64 size : entry.shape) bytes *= size;
      if (entry.begin < 0 || entry.end - entry.begin != bytes || data_begin_ + entry.end > size_) {
        fail<IoError>(path_.string(),
                      "{}: got bytes {} to {} of a file of {}, expected {} bytes. Is the file cut?", name,
                      entry.begin, entry.end, size_, bytes);
      }
      entries_.emplace(name, std::move(entry));
    }
  } catch (const Json::exception& error) {
    fail<IoError>(path_.string(), "no safetensors header: {}", error.what());
  } catch (const ConfigError& error) {
    fail<IoError>(path_.string(), "no safetensors header: {}", error.what());
  }
}

std::vector<std::string> SafetensorsReader::names() const {
  std::vector<std::string> out;
  for (const auto& [name, entry] : entries_) out.push_back(name);
  return out;
}

at::Tensor SafetensorsReader::read(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) fail<IoError>(path_.string(), "has no tensor {}", name);
  const Entry& entry = found->second;
  at::Tensor tensor = at::empty(entry.shape, entry.dtype);
  read_bytes(tensor.mutable_data_ptr(), data_begin_ + entry.begin, entry.end - entry.begin);
  const std::string sum = fmt::format("{:016x}", checksum(tensor.const_data_ptr(), tensor.nbytes()));
  if (!entry.checksum.empty() && sum != entry.checksum) {
    fail<IoError>(path_.string(), "{} is damaged: got checksum {}, expected {}", name, sum, entry.checksum);
  }
  return tensor;
}

}  // namespace hetermoe
