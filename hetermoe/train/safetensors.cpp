#include "hetermoe/train/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "hetermoe/base/checksum.h"
#include "hetermoe/base/fields.h"

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

constexpr const char* kMetadata = "__metadata__";
const std::string kChecksum = "checksum ";

/// Empty where no tensor is as large.
std::optional<i64> bytes_of(const std::vector<i64>& shape, i64 element) {
  bool empty = false;
  i64 bytes = element;
  for (const i64 size : shape) {
    empty = empty || size == 0;
    // The sizes beside a 0 have to make sense as well: a tensor's strides are their products.
    if (size < 0 || __builtin_mul_overflow(bytes, std::max<i64>(size, 1), &bytes)) return {};
  }
  return empty ? 0 : bytes;
}

const char* dtype_text(at::ScalarType dtype) {
  for (const auto& [type, text] : kDtypes) {
    if (type == dtype) return text;
  }
  HM_CHECK(false, "no safetensors dtype for {}", static_cast<int>(dtype));
}

template <class E = IoError>
[[noreturn]] void fail_io(const std::filesystem::path& path, const char* what) {
  fail<E>(path.string(), "cannot {}: {}", what, std::strerror(errno));
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
      if (done <= 0) fail_io<WriteError>(path_, "write");
      at += done;
      size -= static_cast<std::size_t>(done);
    }
  }
  void finish() {
    if (::fsync(file_) != 0) fail_io<WriteError>(path_, "write");
    if (::close(std::exchange(file_, -1)) != 0) {
      ::unlink(path_.c_str());
      fail_io<WriteError>(path_, "write");
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
  if (code != 0) fail_io<WriteError>(path, "write");
}

void write_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors) {
  Json header = {{kMetadata, {{"format", "pt"}}}};
  i64 end = 0;
  std::vector<at::Tensor> whole;
  for (const NamedTensor& named : tensors) {
    const at::Tensor& tensor = whole.emplace_back(named.tensor.contiguous());
    const i64 begin = std::exchange(end, end + static_cast<i64>(tensor.nbytes()));
    header[named.name] = {{"dtype", dtype_text(tensor.scalar_type())},
                          {"shape", tensor.sizes().vec()},
                          {"data_offsets", {begin, end}}};
    header[kMetadata][kChecksum + named.name] =
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

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path, Checksums checksums)
    : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (file_ < 0) fail_io(path_, "open");
  try {
    read_header(checksums);
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

void SafetensorsReader::read_header(Checksums checksums) {
  struct stat info {};
  if (::fstat(file_, &info) != 0) fail_io(path_, "read");
  if (!S_ISREG(info.st_mode)) fail<IoError>(path_.string(), "is no regular file, expected safetensors");
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
    const Json& metadata = header.contains(kMetadata) ? header.at(kMetadata) : none;
    for (const auto& [name, json] : header.items()) {
      if (name != kMetadata) add_entry(name, json, metadata);
    }
    check_checksums(metadata, checksums);
  } catch (const Json::exception& error) {
    fail<IoError>(path_.string(), "no safetensors header: {}", error.what());
  } catch (const ConfigError& error) {
    fail<IoError>(path_.string(), "no safetensors header: {}", error.what());
  }
}

void SafetensorsReader::add_entry(const std::string& name, const Json& json, const Json& metadata) {
  const std::string dtype = json.at("dtype");
  const auto known =
      std::find_if(kDtypes.begin(), kDtypes.end(), [&](const auto& d) { return d.second == dtype; });
  if (known == kDtypes.end()) fail<IoError>(path_.string(), "{}: unknown dtype {}", name, dtype);
  Entry entry{.dtype = known->first, .shape = {}, .begin = 0, .end = 0, .checksum = {}};
  read_value(json.at("shape"), entry.shape, path_.string() + " " + name, at_least(0));
  read_value(json.at("data_offsets").at(0), entry.begin, path_.string() + " " + name, at_least(0));
  read_value(json.at("data_offsets").at(1), entry.end, path_.string() + " " + name, at_least(0));
  const auto sum = metadata.find(kChecksum + name);
  if (sum != metadata.end()) entry.checksum = sum->get<std::string>();
  const std::optional<i64> bytes = bytes_of(entry.shape, static_cast<i64>(c10::elementSize(entry.dtype)));
  if (!bytes) fail<IoError>(path_.string(), "{}: has no possible shape: {}", name, json.at("shape").dump());
  if (entry.end - entry.begin != *bytes || entry.end > size_ - data_begin_) {
    fail<IoError>(path_.string(),
                  "{}: got bytes {} to {} of a file of {}, expected {} bytes. Is the file cut?", name,
                  entry.begin, entry.end, size_, *bytes);
  }
  entries_.emplace(name, std::move(entry));
}

/// A tensor whose checksum lost its name would be read without a look.
void SafetensorsReader::check_checksums(const Json& metadata, Checksums checksums) const {
  bool some = checksums == Checksums::kOfAll;
  for (const auto& [key, value] : metadata.items()) {
    if (!key.starts_with(kChecksum)) continue;
    const std::string name = key.substr(kChecksum.size());
    if (entries_.count(name) == 0)
      fail<IoError>(path_.string(), "is damaged: there is a checksum of {}, and no such tensor", name);
    some = true;
  }
  for (const auto& [name, entry] : entries_) {
    if (some && entry.checksum.empty())
      fail<IoError>(path_.string(), "is damaged: {} has no checksum, expected one of every tensor", name);
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
