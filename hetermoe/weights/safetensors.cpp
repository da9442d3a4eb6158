#include "hetermoe/weights/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
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

constexpr std::array<std::pair<at::ScalarType, const char*>, 12> kDtypes = {{{at::kDouble, "F64"},
                                                                             {at::kFloat, "F32"},
                                                                             {at::kBFloat16, "BF16"},
                                                                             {at::kHalf, "F16"},
                                                                             {at::kFloat8_e4m3fn, "F8_E4M3"},
                                                                             {at::kFloat8_e5m2, "F8_E5M2"},
                                                                             {at::kLong, "I64"},
                                                                             {at::kInt, "I32"},
                                                                             {at::kShort, "I16"},
                                                                             {at::kChar, "I8"},
                                                                             {at::kByte, "U8"},
                                                                             {at::kBool, "BOOL"}}};
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

template <class E = IoError>
[[noreturn]] void fail_io(const std::filesystem::path& path, const char* what) {
  fail<E>(path.string(), "cannot {}: {}", what, std::strerror(errno));
}

/// A part of a file in memory.
class Mapping {
 public:
  Mapping(const std::filesystem::path& path, int file, i64 begin, i64 size) {
    const i64 page = ::sysconf(_SC_PAGESIZE), before = begin % page;
    length_ = static_cast<std::size_t>(size + before);
    start_ =
        ::mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file, begin - before);
    if (start_ == MAP_FAILED) fail_io(path, "map");
    data_ = static_cast<char*>(start_) + before;
  }
  ~Mapping() { ::munmap(start_, length_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  void* data() const { return data_; }

 private:
  void* start_ = nullptr;
  std::size_t length_ = 0;
  char* data_ = nullptr;
};

}  // namespace

const char* dtype_text(at::ScalarType dtype) {
  for (const auto& [type, text] : kDtypes) {
    if (type == dtype) return text;
  }
  HM_CHECK(false, "no safetensors dtype for {}", static_cast<int>(dtype));
}

i64 TensorHead::bytes() const {
  return bytes_of(shape, static_cast<i64>(c10::elementSize(dtype))).value_or(0);
}

void sync_to_disk(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail_io(path, "open");
  const int code = ::fsync(file);
  ::close(file);
  if (code != 0) fail_io<WriteError>(path, "write");
}

class SafetensorsWriter::File {
 public:
  explicit File(const std::filesystem::path& path)
      : path_(path), file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
    if (file_ < 0) fail_io(path_, "create file");
    struct stat info {};
    is_own_ = ::lstat(path_.c_str(), &info) == 0 && S_ISREG(info.st_mode);
  }
  ~File() {
    if (file_ < 0) return;
    ::close(file_);
    remove();
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

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
  void rewrite(std::size_t begin, const std::string& text) {
    for (std::size_t done = 0; done < text.size();) {
      const ssize_t count =
          ::pwrite(file_, text.data() + done, text.size() - done, static_cast<off_t>(begin + done));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) fail_io<WriteError>(path_, "write");
      done += static_cast<std::size_t>(count);
    }
  }
  void finish() {
    const bool synced =
        ::fsync(file_) == 0 || errno == EINVAL || errno == EROFS;  // as pipes and devices answer
    if (!synced) fail_io<WriteError>(path_, "write");
    if (::close(std::exchange(file_, -1)) != 0) {
      const int error = errno;
      remove();
      errno = error;
      fail_io<WriteError>(path_, "write");
    }
  }

 private:
  /// Devices, pipes and links were there before and stay.
  void remove() const {
    if (is_own_) ::unlink(path_.c_str());
  }

  bool is_own_ = false;
  std::filesystem::path path_;
  int file_;
};

std::string SafetensorsWriter::header_of(const SortedJson& metadata) const {
  SortedJson header = {{kMetadata, {{"format", "pt"}}}};
  header[kMetadata].update(metadata);
  i64 end = 0;
  for (const TensorHead& head : heads_) {
    const i64 begin = std::exchange(end, end + head.bytes());
    header[head.name] = {
        {"dtype", dtype_text(head.dtype)}, {"shape", head.shape}, {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the tensors begin at a multiple of 8
  return text;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorHead> heads,
                                     const SortedJson& metadata)
    : heads_(std::move(heads)) {
  const std::string text = header_of(metadata);
  header_bytes_ = text.size();
  file_ = std::make_unique<File>(path);
  file_->write(&header_bytes_, sizeof header_bytes_);
  file_->write(text.data(), text.size());
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::add(const at::Tensor& tensor) {
  HM_CHECK(next_ < heads_.size(), "more than the {} tensors of the header", heads_.size());
  const TensorHead& head = heads_[next_++];
  HM_CHECK(tensor.scalar_type() == head.dtype && tensor.sizes() == at::IntArrayRef(head.shape),
           "{} is not what the header says of it", head.name);
  const at::Tensor whole = tensor.contiguous();
  file_->write(whole.const_data_ptr(), whole.nbytes());
}

void SafetensorsWriter::finish() {
  HM_CHECK(next_ == heads_.size(), "{} of {} tensors written", next_, heads_.size());
  file_->finish();
}

void SafetensorsWriter::finish(const SortedJson& metadata) {
  const std::string text = header_of(metadata);
  HM_CHECK(text.size() == header_bytes_, "a header of {} bytes, expected {}", text.size(), header_bytes_);
  file_->rewrite(sizeof header_bytes_, text);
  finish();
}

namespace {

std::string checksum_text(const at::Tensor& tensor) {
  return fmt::format("{:016x}", checksum(tensor.const_data_ptr(), tensor.nbytes()));
}

}  // namespace

OutTensor kept_tensor(const std::string& name, const at::Tensor& tensor) {
  return {{name, tensor.scalar_type(), tensor.sizes().vec()}, [tensor] { return tensor; }};
}

void write_in_turn(const std::filesystem::path& path, const std::vector<OutTensor>& tensors) {
  SortedJson checksums = SortedJson::object();
  std::vector<TensorHead> heads;
  for (const OutTensor& tensor : tensors) {
    heads.push_back(tensor.head);
    checksums[kChecksum + tensor.head.name] = std::string(16, '0');  // until it is made
  }
  SafetensorsWriter writer(path, std::move(heads), checksums);
  for (const OutTensor& tensor : tensors) {
    const at::Tensor made = tensor.make().contiguous();
    checksums[kChecksum + tensor.head.name] = checksum_text(made);
    writer.add(made);
  }
  writer.finish(checksums);
}

void write_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors) {
  SortedJson checksums = SortedJson::object();
  std::vector<TensorHead> heads;
  std::vector<at::Tensor> whole;
  for (const NamedTensor& named : tensors) {
    const at::Tensor& tensor = whole.emplace_back(named.tensor.contiguous());
    heads.push_back({named.name, tensor.scalar_type(), tensor.sizes().vec()});
    checksums[kChecksum + named.name] = checksum_text(tensor);
  }
  SafetensorsWriter writer(path, std::move(heads), checksums);
  for (const at::Tensor& tensor : whole) writer.add(tensor);
  writer.finish();
}

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path, Checksums checksums)
    : path_(path),
      file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {  // a pipe without writer is refused
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
    const SortedJson header = parse_sorted_json(text, path_.string());
    if (!header.is_object())
      fail<ConfigError>("header", "got {}, expected an object", describe(Json(header)));
    SortedJson metadata = header.value(kMetadata, SortedJson());
    if (metadata.is_null()) metadata = SortedJson::object();
    if (!metadata.is_object())
      fail<ConfigError>(kMetadata, "got {}, expected an object", describe(Json(metadata)));
    for (const auto& [name, json] : header.items()) {
      if (name != kMetadata) add_entry(name, json, metadata);
    }
    check_places();
    check_checksums(metadata, checksums);
  } catch (const ConfigError& error) {
    fail<IoError>(path_.string(), "no safetensors header: {}", error.what());
  }
}

namespace {

const std::string& header_text_of(const SortedJson& json, const std::string& where) {
  if (!json.is_string()) fail<ConfigError>(where, "got {}, expected a text", describe(Json(json)));
  return json.get_ref<const std::string&>();
}

/// A part of what a header says of a tensor.
const SortedJson& part_of(const SortedJson& tensor, const char* key, const std::string& name) {
  const auto part = tensor.find(key);  // there is none in what is no object
  if (part == tensor.end())
    fail<ConfigError>(name, "has no {}: got {}, expected an object with dtype, shape and data_offsets", key,
                      describe(Json(tensor)));
  return *part;
}

}  // namespace

void SafetensorsReader::add_entry(const std::string& name, const SortedJson& json,
                                  const SortedJson& metadata) {
  const std::string& dtype = header_text_of(part_of(json, "dtype", name), name + " dtype");
  const auto known =
      std::find_if(kDtypes.begin(), kDtypes.end(), [&](const auto& d) { return d.second == dtype; });
  if (known == kDtypes.end()) fail<IoError>(path_.string(), "{}: unknown dtype {}", name, dtype);
  Entry entry{.head = {name, known->first, {}}, .begin = 0, .end = 0, .checksum = {}};
  read_value(Json(part_of(json, "shape", name)), entry.head.shape, name + " shape", at_least(0));
  const SortedJson& offsets = part_of(json, "data_offsets", name);
  if (!offsets.is_array() || offsets.size() != 2)
    fail<ConfigError>(name + " data_offsets",
                      "got {}, expected where the tensor begins and ends: [0, 8], say",
                      describe(Json(offsets)));
  read_value(Json(offsets[0]), entry.begin, name + " data_offsets", at_least(0));
  read_value(Json(offsets[1]), entry.end, name + " data_offsets", at_least(0));
  const auto sum = metadata.find(kChecksum + name);
  if (sum != metadata.end()) entry.checksum = header_text_of(*sum, sum.key());
  const std::optional<i64> bytes =
      bytes_of(entry.head.shape, static_cast<i64>(c10::elementSize(known->first)));
  if (!bytes) fail<IoError>(path_.string(), "{}: has no possible shape: {}", name, json.at("shape").dump());
  if (entry.end - entry.begin != *bytes || entry.end > size_ - data_begin_) {
    fail<IoError>(path_.string(),
                  "{}: got bytes {} to {} of a file of {}, expected {} bytes. Is the file cut?", name,
                  entry.begin, entry.end, size_, *bytes);
  }
  entries_.emplace(name, std::move(entry));
}

/// The format allows no holes, so that nothing hides in a file, and what is missing shows.
void SafetensorsReader::check_places() const {
  std::vector<const Entry*> by_place;
  for (const auto& [name, entry] : entries_) by_place.push_back(&entry);
  std::sort(by_place.begin(), by_place.end(), [](const Entry* a, const Entry* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  i64 end = 0;
  for (const Entry* entry : by_place) {
    if (entry->begin != end) {
      fail<IoError>(path_.string(), "{} begins at byte {} of the data, expected {}: tensors {}",
                    entry->head.name, entry->begin, end,
                    entry->begin < end ? "overlap" : "have a gap between them");
    }
    end = entry->end;
  }
  if (end != size_ - data_begin_) {
    fail<IoError>(path_.string(), "the tensors have {} bytes, the file {}: what is the rest?", end,
                  size_ - data_begin_);
  }
}

/// A tensor whose checksum lost its name would be read without a look.
void SafetensorsReader::check_checksums(const SortedJson& metadata, Checksums checksums) const {
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

std::vector<TensorHead> SafetensorsReader::heads() const {
  std::vector<TensorHead> out;
  for (const auto& [name, entry] : entries_) out.push_back(entry.head);
  return out;
}

const SafetensorsReader::Entry& SafetensorsReader::entry(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) fail<IoError>(path_.string(), "has no tensor {}", name);
  return found->second;
}

at::Tensor SafetensorsReader::read(const std::string& name) const {
  const Entry& found = entry(name);
  at::Tensor tensor = at::empty(found.head.shape, found.head.dtype);
  read_bytes(tensor.mutable_data_ptr(), data_begin_ + found.begin, found.end - found.begin);
  check_bytes(found, tensor.const_data_ptr());
  return tensor;
}

void SafetensorsReader::check_bytes(const Entry& entry, const void* data) const {
  if (entry.checksum.empty()) return;
  const std::string sum =
      fmt::format("{:016x}", checksum(data, static_cast<std::size_t>(entry.end - entry.begin)));
  if (sum != entry.checksum)
    fail<IoError>(path_.string(), "{} is damaged: got checksum {}, expected {}", entry.head.name, sum,
                  entry.checksum);
}

at::Tensor SafetensorsReader::map(const std::string& name) const {
  const Entry& found = entry(name);
  const i64 begin = data_begin_ + found.begin, bytes = found.end - found.begin;
  const auto element = static_cast<i64>(c10::elementSize(found.head.dtype));
  // Other writers do not always align; a mapping of nothing is no mapping.
  if (bytes == 0 || begin % element != 0) return read(name);
  // Pages beyond the end of a file end the process where they are touched.
  struct stat now {};
  if (::fstat(file_, &now) != 0) fail_io(path_, "read");
  if (now.st_size < size_)
    fail<IoError>(path_.string(), "the file is cut: got {} bytes, it had {}", now.st_size, size_);
  const auto mapping = std::make_shared<Mapping>(path_, file_, begin, bytes);
  const std::atomic_ref<char> compared(found.compared);  // of many slices of a tensor the first
  if (compared == 0) check_bytes(found, mapping->data());
  compared = 1;
  return at::from_blob(
      mapping->data(), found.head.shape, [mapping](void*) {}, found.head.dtype);
}

}  // namespace hetermoe
